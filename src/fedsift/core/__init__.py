"""What every other package may use: errors, registries, field ranges, the codec, randomness, text, files."""
