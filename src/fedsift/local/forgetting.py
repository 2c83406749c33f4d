"""Leaving out the samples of large loss, as many as a site's labels seem to be wrong: what Co-teaching and RoFL share
at a site. The share is given, or the site's own estimate of its last visit (signals/noise_rate.py)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedsift.local import losses
from fedsift.local.extras import Extra, PerSample, PerSite
from fedsift.local.objective import View
from fedsift.local.site import Site
from fedsift.local.trainer import Result
from fedsift.signals.noise_rate import noise_rate

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
    now = losses.sureness(view.logits, view.target).to(before.dtype)
    view.keep(LOSSES, loss)
    view.keep(FIRST, torch.where(before[..., :1] > 0, before, now))


def judge(site: Site, method: str, *networks: Result) -> None:
    """Estimate the rate anew: of the mean loss of the networks, and the mean of what each said at first."""
    seen = torch.stack([network.rows[LOSSES] for network in networks]).mean(0)
    found = []
    for network in networks:
        confidence, rank = network.rows[FIRST].unbind(-1)
        found.append(noise_rate(seen, confidence, rank, site.n_classes))
    flagged = torch.zeros(len(seen), dtype=torch.bool)
    flagged[torch.from_numpy(found[0][1])] = True
    site.notebook[ESTIMATE] = sum(rate for rate, _ in found) / len(found)
    site.keep_evidence(method, suspicion=seen, flagged=flagged)
