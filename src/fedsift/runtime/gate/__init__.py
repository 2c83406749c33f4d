"""The gate: every reply is checked here before a method uses it."""
