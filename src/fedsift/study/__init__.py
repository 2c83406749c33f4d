"""Studies: a TOML file, checked, completed, planned and run."""
