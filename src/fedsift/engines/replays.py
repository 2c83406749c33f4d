"""Models that a site sends a second time."""

from __future__ import annotations

from collections.abc import Collection

import torch

from fedsift.contract.codec import digest_of
from fedsift.contract.messages import Weights

KEPT_DIGESTS = 64
"""Accepted models of a site that are known again if they are sent a second time."""
SHORT = 12


class Starts:
    """The models that an exchange's answers began at: most are one object, whose fingerprint is taken once."""

    def __init__(self) -> None:
        self.known: dict[int, tuple[Weights, str]] = {}
        """By identity; the model is held, for otherwise another one could get its identity."""

    def mark(self, model: Weights, start: Weights) -> str:
        """Fingerprints of a model and of where it began; "" for one that came back as it was sent, which a site may do
        as often as it is asked."""
        if all(torch.equal(tensor, start[name]) for name, tensor in model.items()):
            return ""
        if id(start) not in self.known:
            self.known[id(start)] = start, digest_of(start)[:SHORT]
        return f"{digest_of(model)[:SHORT]}-{self.known[id(start)][1]}"


def replays(mark: str, seen: Collection[str]) -> bool:
    """Whether the model was sent before and began elsewhere then: trained twice from one place, on few samples, it may
    well end at one place."""
    model, _, begun = mark.partition("-")
    return bool(begun) and any(known != mark and known.startswith(model) for known in seen)
