"""A deployed site: its file, policy, consent and data, and the process that answers requests."""
