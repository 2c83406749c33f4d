"""Studies: the TOML that a person writes, checked, completed, planned and run."""
