"""The live page: `fedsift serve` shows runs while they run, from their folders. Imports no torch."""
