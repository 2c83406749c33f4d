"""The switches that keep Flower and Ray on this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

SWITCHES = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""No telemetry, no look for updates, no installation of packages at run time, no usage statistics."""


def offline(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment with the four switches set.

    Flower's programs start one another by name, so the folder of this Python's programs comes first in the path.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return {**os.environ, "PATH": path, **SWITCHES, **(more or {})}
