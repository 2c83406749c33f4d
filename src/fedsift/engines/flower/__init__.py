"""The Flower engine: the same methods under Flower's simulation and across real sites.

Flower carries messages; the loop, the gate, the checkpoints and the sites' notebooks are our own. `flwr` is only
imported by the modules that run inside Flower's processes, so this package can be read without it.
"""

from fedsift.engines.flower.simulation import simulate, simulate_many

__all__ = ["simulate", "simulate_many"]
