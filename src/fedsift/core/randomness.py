"""Random generators derived from a seed and a purpose; there is no global generator.

Every use names what it is for: (run seed, site, stage, round, ask, purpose). So results cannot depend on the
order or grouping in which sites are served, and a resumed run draws what the unbroken one would have drawn.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def derive(*path: str | int) -> int:
    """A 63-bit seed from a path of names and numbers; the same on every machine."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in path)
    digest = hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def numpy_generator(*path: str | int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(derive(*path)))


def torch_generator(*path: str | int) -> torch.Generator:
    """Always a CPU generator: the same draws whatever device the training runs on."""
    import torch  # here, since splitting data and corrupting labels needs no torch

    return torch.Generator().manual_seed(derive(*path))
