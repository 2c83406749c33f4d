"""A site: its file, policy, consent, data, and the process that answers requests."""
