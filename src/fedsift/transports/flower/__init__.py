"""The Flower transport. Importing this package imports nothing else: Flower starts a process for every message, and its
first import is this one."""
