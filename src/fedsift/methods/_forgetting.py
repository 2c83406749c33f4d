"""Leaving out the samples of large loss, as many as a site's labels seem to be wrong: what Co-teaching and RoFL share
at a site. The share is given, or the site's own estimate of its last visit (`noise_rate` below)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fedsift.core.errors import ConfigError
from fedsift.detection.group_test import FEWEST_CLASSES, blind_share_of_ranks, knows_something
from fedsift.detection.mixtures import suspects
from fedsift.formulas import losses
from fedsift.protocol.site import Site
from fedsift.training.job import TrainingResult
from fedsift.training.objective import Extra, PerSample, PerSite, View


def forget_rate(t: float, rate: float, warm: float, form: Literal["paper", "official"] = "paper") -> float:
    """Share of samples left out at epoch t (Co-teaching).

    "paper": rate min(t / warm, 1), "official": rate min(t / (warm - 1), 1).
    """
    if form not in ("paper", "official"):
        raise ConfigError(f"forget_rate form = '{form}': choose 'paper' or 'official'")
    span = warm if form == "paper" else warm - 1
    return rate * min(t / span, 1.0) if span > 0 else rate


# How many of a site's labels are wrong, for methods that leave that share of the samples out
# ------------------------------------------------------------------------------

SUREST = 0.1
"""Share of the samples among which disowned labels are counted."""
FEWEST = 20
"""And at least so many of them."""


def disowned_share(confidence: ArrayLike, rank: ArrayLike) -> float:
    """Share of labels other than the network's own among the samples it is surest of, `[n], [n] -> 0..1`; 0 for none.

    confidence: its largest probability; rank: how many classes it holds for likelier than the given one.
    """
    sure, place = np.asarray(confidence, dtype=np.float64), np.asarray(rank)
    if not len(sure):
        return 0.0
    surest = np.argsort(-sure, kind="stable")[: max(FEWEST, math.ceil(SUREST * len(sure)))]
    return float((place[surest] > 0).mean())


def noise_rate(
    losses: ArrayLike, confidence: ArrayLike, rank: ArrayLike, classes: int
) -> tuple[float, NDArray[np.int64]]:
    """The smallest of the three estimates, and the samples of the mixture's larger component, `[n] x 3`.

    0 where the network knows nothing that could speak against a label. Two classes have no blind share: the other one
    is always in the lower half.
    """
    noisy, n = suspects(losses), len(np.asarray(losses))
    rate = min(len(noisy) / max(1, n), disowned_share(confidence, rank))
    if classes < FEWEST_CLASSES or not n:
        return rate, noisy
    blind = blind_share_of_ranks(confidence, rank, classes)
    return (min(rate, blind) if knows_something(blind, n, classes) else 0.0), noisy


FORGOTTEN = "forgotten share"
"""R(t), the share of a batch that is left out."""
LOSSES = "losses when last trained on"
"""The notebook page of each sample's loss when it was last trained on, `[n]`."""
FIRST = "first look"
"""What the network said of each sample when it first met it in this visit, before it was trained on that label: its
largest probability, and how many classes it held for likelier than the given one, `[n, 2]`; zeros before."""
ESTIMATE = "estimated noise rate"
"""The notebook page of the site's own estimate of its noise rate."""

NEEDS = frozenset({FORGOTTEN, LOSSES, FIRST})
MEMORY: Mapping[str, tuple[int, ...]] = {LOSSES: (), FIRST: (2,)}


def forgetting(site: Site, ramp: float, rate: float | None) -> dict[str, Extra]:
    """R(t) = ramp x rate, and an empty page of first looks. rate None: the site's own estimate, 0 before its first."""
    known = site.notebook.get(ESTIMATE, 0.0) if rate is None else rate
    return {
        FORGOTTEN: PerSite(torch.tensor(ramp * known, dtype=torch.float64)),
        FIRST: PerSample(torch.zeros(len(site.samples), 2)),
    }


def note(view: View, loss: Tensor) -> None:
    """Write down this step's losses `[..., B]`, and what the network says of samples that it meets for the first
    time."""
    before = view.rows(FIRST)
    now = losses.confidence_and_rank(view.logits, view.target).to(before.dtype)
    view.keep(LOSSES, loss)
    view.keep(FIRST, torch.where(before[..., :1] > 0, before, now))


def judge(site: Site, method: str, *networks: TrainingResult) -> None:
    """Estimate the rate anew: of the mean loss of the networks, and the mean of what each said at first."""
    seen = torch.stack([network.rows[LOSSES] for network in networks]).mean(0)
    looks = [network.rows[FIRST].unbind(-1) for network in networks]
    found = [noise_rate(seen, confidence, rank, site.n_classes) for confidence, rank in looks]
    flagged = torch.zeros(len(seen), dtype=torch.bool)
    flagged[torch.from_numpy(found[0][1])] = True
    site.notebook[ESTIMATE] = sum(rate for rate, _ in found) / len(found)
    site.keep_evidence(method, suspicion=seen, flagged=flagged)
