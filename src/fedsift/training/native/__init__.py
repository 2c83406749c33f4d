"""Inner loops in C++, used where a compiler is at hand; without them everything works, but slower.

The `.cpp` files are compiled by the machine's own C++ compiler when they are first needed, for exactly this processor,
and kept in the cache folder. Results agree with torch's to rounding, whatever else is trained in the same cohort.
FEDSIFT_NATIVE=0 leaves them out.
"""

from fedsift.training.native.building import OFF, library, why_not
from fedsift.training.native.operations import (
    PooledBlock,
    batch_norm,
    block,
    knows,
    norm_suits,
    take_images,
    tiles_backward,
    tiles_forward,
)

__all__ = [
    "OFF",
    "PooledBlock",
    "batch_norm",
    "block",
    "knows",
    "library",
    "norm_suits",
    "take_images",
    "tiles_backward",
    "tiles_forward",
    "why_not",
]
