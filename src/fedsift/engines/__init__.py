"""What carries `ask` to the sites, guards what comes back, and keeps a run alive across crashes."""
