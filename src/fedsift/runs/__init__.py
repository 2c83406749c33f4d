"""The run folder, written and read in one place: rounds, events, plan, summary, sites, checkpoint. Imports no torch."""
