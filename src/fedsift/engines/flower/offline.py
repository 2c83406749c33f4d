"""The switches that keep Flower and Ray on this machine, and the address that is on it."""

from __future__ import annotations

import os
from collections.abc import Mapping

SWITCHES = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""No telemetry, no look for updates, no installation of packages at run time, no usage statistics."""


def offline(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment with the four switches set."""
    return {**os.environ, **SWITCHES, **(more or {})}
