"""Where a run's figures are copied to besides its folder; a new tracker is one new file in this folder."""

from fedsift.contract.registry import import_modules
from fedsift.tracking.base import TrackedRun, Tracker, trackers

import_modules(__name__, __path__)

__all__ = ["TrackedRun", "Tracker", "trackers"]
