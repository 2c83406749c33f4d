"""Pure functions that two or more packages use: losses, aggregation rules, metrics, intervals, privacy."""
