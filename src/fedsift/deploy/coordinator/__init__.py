"""The coordinator: the roster, starting and following a run, and the program that carries it out."""
