"""Reports of a run, made from its folder alone: one HTML file, and a summary in the terminal."""
