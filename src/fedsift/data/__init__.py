"""Samples and labels: where they come from, how they are divided among sites, how their labels are corrupted."""
