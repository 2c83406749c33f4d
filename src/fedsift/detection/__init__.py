"""Which sites have label trouble, and which labels are wrong: indicators, mixtures, tests, posteriors.

Pure functions.
"""
