"""A real consortium: site files, the app, launching, the coordinator's program, a site's own process.

Importing this package imports nothing else: Flower starts a process for every message, and its first import is this.
"""
