"""What a person sees of a run: the one-file report and the summary in the terminal, from its folder alone."""
