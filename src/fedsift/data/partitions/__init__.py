"""How samples are spread over sites; a new partition is one new file in this folder."""

from fedsift.contract.registry import import_modules
from fedsift.data.partitions.base import Partition, Placement, Pool, partitions

import_modules(__name__, __path__)

__all__ = ["Partition", "Placement", "Pool", "partitions"]
