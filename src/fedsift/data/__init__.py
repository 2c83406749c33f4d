"""Samples and labels: where they come from, how they are spread over sites, how their labels are spoiled."""

from fedsift.data.build import build
from fedsift.data.dataset import Dataset, Labels, Rows, Spread, Truth
from fedsift.data.ledger import Change, Ledger, ledger
from fedsift.data.noise import Noise, noises
from fedsift.data.partitions import Partition, partitions
from fedsift.data.sources import Source, sources

__all__ = [
    "Change",
    "Dataset",
    "Labels",
    "Ledger",
    "Noise",
    "Partition",
    "Rows",
    "Source",
    "Spread",
    "Truth",
    "build",
    "ledger",
    "noises",
    "partitions",
    "sources",
]
