"""Showing: a site's predictions for public samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fedsift.contract.codec import Wire
from fedsift.contract.messages import SiteFacts, Weights
from fedsift.contract.work import Costly, passed
from fedsift.local.plan import batch_bounds
from fedsift.local.predict import BATCH
from fedsift.local.public.samples import PublicPart, shared_dropout
from fedsift.local.site import Site


@dataclass(frozen=True)
class Show(Wire, Costly):
    """Which predictions a site shows."""

    part: PublicPart
    classes: int
    kind: Literal["probabilities", "logits"] = "probabilities"
    mode: Literal["eval", "train"] = "eval"
    """Batch norm by its running statistics, or by those of each batch (as when the release takes a step)."""
    batch_size: int = BATCH
    """Of the batches in mode "train"; in mode "eval" it makes no difference."""

    def outputs(self, site: Site, weights: Weights) -> Tensor:
        """float32 `[n, K]`, in the part's order."""
        network = site.network(weights).train(self.mode == "train")
        parts: list[Tensor] = []
        size = self.batch_size if self.mode == "train" else BATCH
        with torch.no_grad(), shared_dropout(site, "show", self.part.shuffle):
            for start, stop in batch_bounds(len(self.part), size):
                parts.append(network(self.part.images(site, torch.arange(start, stop))).cpu())
        logits = torch.cat(parts)
        return torch.softmax(logits, -1) if self.kind == "probabilities" else logits

    def work(self, facts: SiteFacts) -> float:
        return passed(self.part.size, self.batch_size)

    def refusal(self, outputs: Any) -> str | None:
        """Why these cannot be the predictions that were asked for."""
        wanted = (len(self.part), self.classes)
        if not isinstance(outputs, Tensor):
            return "the predictions for the public samples are missing"
        if tuple(outputs.shape) != wanted:
            return f"the public predictions have shape {tuple(outputs.shape)}, asked were {wanted}"
        if outputs.dtype != torch.float32:
            return f"the public predictions are {outputs.dtype}, not torch.float32"
        if self.kind == "probabilities" and not _distributions(outputs):
            return "the public predictions are no probabilities: they are negative or do not sum to 1"
        return None


def _distributions(rows: Tensor) -> bool:
    return bool((rows >= 0).all()) and bool(((rows.sum(-1) - 1).abs() < 1e-3).all())
