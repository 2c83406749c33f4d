"""FedCorr's label correction: who is relabelled, by how much, and to what (eq. 6-7, Alg. 1 lines 13-18)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsift.contract.errors import ConfigError
from fedsift.signals.counting import floor_count

Form = Literal["paper", "official"]


def clean_set(
    noise: ArrayLike, kappa: float, *, strict: bool = False, fallback: int = 1
) -> tuple[list[int], list[int]]:
    """Sites to finetune on and the remaining ones, ascending: estimated noise <= kappa (section 3.3).

    strict: < kappa instead, as in Alg. 1 line 14. If no site qualifies, the `fallback` ones with the lowest
    estimate are taken, lower index first.
    """
    levels = np.asarray(noise, dtype=np.float64)
    chosen = np.flatnonzero(levels < kappa if strict else levels <= kappa)
    if not len(chosen):
        chosen = np.sort(np.argsort(levels, kind="stable")[:fallback])
    remaining = np.setdiff1d(np.arange(len(levels)), chosen)
    return chosen.tolist(), remaining.tolist()


def relabel_sites(
    noise: ArrayLike, kappa: float, mixture_noisy: Sequence[int], form: Form = "official"
) -> list[int]:
    """Sites relabelled after finetuning, ascending.

    "paper": estimated noise > kappa (section 3.3). "official": the last noisy set of the mixture on LID.
    """
    if form == "paper":
        return np.flatnonzero(np.asarray(noise, dtype=np.float64) > kappa).tolist()
    if form == "official":
        return sorted(int(site) for site in mixture_noisy)
    raise ConfigError(f"relabel_after_finetuning = '{form}': choose 'paper' or 'official'")


@dataclass(frozen=True)
class Relabelled:
    """New labels of a site and how they came about; all index lists are positions in the site."""

    labels: NDArray[np.int64]
    """`[n]`, relabelled entries replaced."""
    candidates: NDArray[np.int64]
    """Samples whose confidence was tested, by falling loss."""
    relabelled: NDArray[np.int64]
    """Those that passed, ascending; some may keep their label because the model agrees with it."""
    changed: NDArray[np.int64]
    """Those whose label is another one now, ascending."""


def _take_confident(
    labels: NDArray[np.int64],
    probabilities: NDArray[np.float64],
    pool: NDArray[np.int64],
    theta: float,
    form: Form,
) -> Relabelled:
    top = probabilities[pool].max(axis=1) if len(pool) else np.zeros(0)
    passed = np.sort(pool[top >= theta if form == "paper" else top > theta])
    new = labels.copy()
    new[passed] = probabilities[passed].argmax(axis=1) if len(passed) else new[passed]
    return Relabelled(new, pool, passed, np.flatnonzero(new != labels).astype(np.int64))


def _checked(
    labels: ArrayLike, probabilities: ArrayLike, form: Form
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    if form not in ("paper", "official"):
        raise ConfigError(f"relabel form = '{form}': choose 'paper' or 'official'")
    return np.asarray(labels, dtype=np.int64), np.asarray(probabilities, dtype=np.float64)


def relabel(
    labels: ArrayLike,
    losses: ArrayLike,
    noisy: ArrayLike,
    probabilities: ArrayLike,
    ratio: float,
    theta: float,
    form: Form = "official",
) -> Relabelled:
    """Give the most suspicious samples the global model's label where it is confident (eq. 6-7).

    labels, losses `[n]`; noisy: positions that the mixture calls noisy (D_n); probabilities `[n, K]` of the
    global model.
    "paper": the floor(ratio |D_n|) largest losses inside D_n, relabelled if max p >= theta.
    "official": as many, counted as int(n (|D_n| / n) ratio), from the whole site, if max p > theta.
    """
    given, p = _checked(labels, probabilities, form)
    values, members = np.asarray(losses, dtype=np.float64), np.sort(np.asarray(noisy, dtype=np.int64))
    if form == "paper":
        count, pool = floor_count(ratio * len(members)), members
    else:
        n = len(given)
        count, pool = (int(n * (len(members) / n) * ratio) if n else 0), np.arange(n)
    ranked = pool[np.argsort(-values[pool], kind="stable")][:count]
    return _take_confident(given, p, ranked.astype(np.int64), theta, form)


def relabel_all(
    labels: ArrayLike, probabilities: ArrayLike, theta: float, form: Form = "official"
) -> Relabelled:
    """Every confident sample takes the global model's label, whatever its loss (section 3.3)."""
    given, p = _checked(labels, probabilities, form)
    return _take_confident(given, p, np.arange(len(given)), theta, form)
