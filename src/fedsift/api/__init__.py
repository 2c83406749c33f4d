"""What `import fedsift` offers: run, resume and load a study, and what a run gives back."""
