"""Inner loops in C++, for processors whose compiler is at hand; everything works without them, only slower.

`kernels.cpp` is compiled by the machine's own C++ compiler when it is first needed, for exactly this processor, and
kept in the cache folder. Results agree with torch's to rounding, whoever trains beside whom. FEDSIFT_NATIVE=0 leaves
them out.
"""

from fedsift.local.native.block import Block, block
from fedsift.local.native.build import library, why_not
from fedsift.local.native.images import take_images

__all__ = ["Block", "block", "library", "take_images", "why_not"]
