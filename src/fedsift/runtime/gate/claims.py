"""Claims beside models: a site that lies about its scores still sends the model that its labels made.

Where the coordinator has labelled samples of its own it measures the loss of each site's model on some of them, and
parts the sites by the test that methods use for claimed scores (`signals/tested.py`). A site whom the claims call clean
and its model noisy, or the other way round, is one to call; nothing else follows from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor, from_numpy
from torch.nn import functional as F

from fedsift.detection.group_test import tested_split
from fedsift.protocol.findings import Findings
from fedsift.protocol.messages import Weights
from fedsift.protocol.site import ComputeSettings, Samples
from fedsift.training.workers import predict

FEWEST_SITES = 4
"""Sites among which two groups can be told apart."""
LARGEST_LOSS = 20.0
"""Whatever a model loses beyond this says no more."""
MOST_SAMPLES = 200
"""Samples of the coordinator's own that every model is measured on."""


@dataclass(frozen=True)
class CrossCheck:
    """The coordinator's labelled samples, or as many of them as are enough."""

    samples: Samples
    labels: Tensor

    @staticmethod
    def of(samples: Samples, labels: Tensor, random: np.random.Generator) -> CrossCheck:
        if len(samples) <= MOST_SAMPLES:
            return CrossCheck(samples, labels)
        chosen = from_numpy(np.sort(random.choice(len(samples), MOST_SAMPLES, replace=False)))
        return CrossCheck(replace(samples, rows=samples.rows[chosen]), labels[chosen])

    def loss(self, network: str, weights: Weights, classes: int, compute: ComputeSettings) -> float:
        """A model's mean loss on these samples."""
        logits = predict(network, weights, self.samples, classes, compute)
        if self.labels.dim() == 2:
            found = F.binary_cross_entropy_with_logits(logits, self.labels.to(logits.dtype))
        else:
            found = F.cross_entropy(logits, self.labels)
        return float(found.nan_to_num(nan=LARGEST_LOSS).clamp(max=LARGEST_LOSS))


@dataclass(frozen=True)
class ClaimVerdict:
    """What the coordinator's own samples say, beside what a method made of the claims."""

    p_value: float
    """Chance of losses that part so well if all sites were alike."""
    worse: tuple[str, ...]
    """Claimed to be clean; their models are of the noisy group."""
    better: tuple[str, ...]
    """Claimed to be noisy; their models are of the clean group."""

    def line(self) -> dict[str, Any]:
        return {"p_value": self.p_value, "worse": list(self.worse), "better": list(self.better)}

    def words(self) -> str | None:
        parts = [
            f"{', '.join(sites)} ({what})"
            for sites, what in (
                (self.worse, "clean by what was claimed, noisy by the model"),
                (self.better, "noisy by what was claimed, clean by the model"),
            )
            if sites
        ]
        if not parts:
            return None
        return f"claims and models disagree on the coordinator's own samples: {'; '.join(parts)}"


def verdict(losses: Mapping[str, float], findings: Findings, random: np.random.Generator) -> ClaimVerdict | None:
    """None where there are too few models, or the method itself judges nobody.

    losses: of each site's latest model. Where these show no two groups nobody is contradicted.
    """
    sites = [site for site in losses if site not in findings.unmeasured]
    if len(sites) < FEWEST_SITES or findings.no_clean_reference:
        return None
    tested = tested_split(np.array([[losses[site]] for site in sites]), random)
    noisy = {sites[int(place)] for place in tested.noisy}
    return ClaimVerdict(
        tested.p_value,
        worse=tuple(site for site in sites if site in noisy and site not in findings.noisy),
        better=tuple(site for site in sites if noisy and site not in noisy and site in findings.noisy),
    )
