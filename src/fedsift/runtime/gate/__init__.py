"""The gate: what every reply passes before anything is made of it."""
