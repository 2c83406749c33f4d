"""The stacked cohort: many sites' copies of one network as one computation."""
