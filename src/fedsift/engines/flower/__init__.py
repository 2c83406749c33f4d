"""The Flower engine: the same methods under Flower's simulation and across real sites.

Flower carries messages; the loop, the gate, the checkpoints and the sites' notebooks are our own. Importing this
package imports nothing else: Flower starts a process for every message, and its first import is this one.
"""
