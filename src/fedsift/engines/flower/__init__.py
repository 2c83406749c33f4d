"""The Flower engine: the same methods under Flower's simulation and across real sites.

Flower carries messages; the loop, the gate, the checkpoints and the sites' notebooks are our own. Importing this
package imports nothing else: Flower starts a process for every message, and its first import is this one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedsift.contract.errors import FedsiftError
    from fedsift.engines.loop import Listener
    from fedsift.engines.runfolder import RunFolder
    from fedsift.study.study import Study


def simulate(study: Study, folder: RunFolder, listen: Listener | None = None) -> dict[str, Any]:
    """Run or go on with a study under Flower's simulation; returns the summary."""
    from fedsift.engines.flower import simulation

    return simulation.simulate(study, folder, listen)


def simulate_many(
    jobs: Sequence[tuple[Study, RunFolder]], listen: Callable[[int, dict[str, Any]], None] | None = None
) -> list[dict[str, Any] | FedsiftError]:
    """Run several studies one after the other under one start of Flower; a summary or an error for each.

    `listen` is told the number of the study and each finished round's line.
    """
    from fedsift.engines.flower import simulation

    return simulation.simulate_many(jobs, listen)


__all__ = ["simulate", "simulate_many"]
