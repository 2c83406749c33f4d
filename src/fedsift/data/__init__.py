"""Samples and labels: where they come from, how they are spread over sites, how their labels are corrupted."""
