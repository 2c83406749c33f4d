"""Utilities for all other packages: errors, registries, field ranges, the codec, randomness, text, files."""
