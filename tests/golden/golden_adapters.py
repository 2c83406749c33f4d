"""All adapters in one table."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import adapters_aggregate
import adapters_losses
import adapters_metrics
import adapters_signals
from golden_harness import Adapter


def all_adapters() -> dict[tuple[str, str], Adapter]:
    """(topic, op) to adapter; those of the data package (partitions and noise) join in where they exist."""
    table: dict[tuple[str, str], Adapter] = {}
    for module in (adapters_losses, adapters_signals, adapters_aggregate, adapters_metrics):
        table |= module.ADAPTERS.table
    if find_spec("adapters_data") is not None:
        table |= import_module("adapters_data").ADAPTERS
    return table
