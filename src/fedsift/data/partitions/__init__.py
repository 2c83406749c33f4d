"""How samples are spread over sites; a new partition is one new file, imported here."""

from fedsift.data.partitions import bernoulli_dirichlet, iid, natural, open_set, overlapping, own_sites
from fedsift.data.partitions.base import Partition, Placement, Pool, partitions

__all__ = [
    "Partition",
    "Placement",
    "Pool",
    "bernoulli_dirichlet",
    "iid",
    "natural",
    "open_set",
    "overlapping",
    "own_sites",
    "partitions",
]
