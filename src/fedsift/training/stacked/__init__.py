"""The stacked trainer: many sites' copies of one network as one computation."""
