"""A whole consortium on one machine, to try a deployment."""
