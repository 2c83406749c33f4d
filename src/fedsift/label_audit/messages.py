"""What leaves a site in a label audit: tables of whole numbers with no cell below the site's floor, and models.

An audit asks one or more *questions* of a sample: for one class a sample a single question with K answers, for several
labels a question with the answers no and yes for each class. Q: questions, C: answers, A: exponents that are tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedsift.detection.label_posterior import GRID
from fedsift.formulas.small_counts import CensoredTable
from fedsift.protocol.messages import Reply, SiteFacts, Weights, disclosed
from fedsift.training.requests import count_refusal


def stacked_tables(tables: Sequence[CensoredTable]) -> dict[str, Tensor]:
    """Censored tables of one shape as three tensors of a reply: cells `[T, R, C]`, remainders `[T, R]`, rest `[T]`."""
    return {
        "cells": torch.stack([torch.from_numpy(table.cells) for table in tables]),
        "remainders": torch.stack([torch.from_numpy(table.remainders) for table in tables]),
        "rest": torch.tensor([table.rest for table in tables], dtype=torch.int64),
    }


def tables_of(cells: Tensor, remainders: Tensor, rest: Tensor) -> list[CensoredTable]:
    """The reverse."""
    return [CensoredTable(own.numpy(), left.numpy(), int(lump)) for own, left, lump in zip(cells, remainders, rest)]


def _table_refusal(reply: Any, shape: tuple[int, ...], most: int) -> str | None:
    """Why these are no tables of that many samples: types, shapes, signs, sums."""
    cells_of_one = shape[1] * shape[2]
    parts = {"cells": shape, "remainders": shape[:-1], "rest": shape[:1]}
    for name, wanted in parts.items():
        value: Tensor = getattr(reply, name)
        if value.dtype != torch.int64 or tuple(value.shape) != wanted:
            return f"{name} has shape {tuple(value.shape)} and type {value.dtype}, asked were {wanted} whole numbers"
        if value.numel() and not -1 <= int(value.min()) <= int(value.max()) <= most:
            return f"{name} lies outside -1 to {most}, which the site declared"
    rounded = cells_of_one // 2  # expected counts are rounded cell by cell
    for table in tables_of(reply.cells, reply.remainders, reply.rest):
        if table.total > most + rounded:
            return f"a table counts {table.total} samples, the site declared {most}"
    return None


@dataclass(frozen=True)
class LabelsCounted(Reply):
    """The first exchange: how often each label was given."""

    cells: Tensor = disclosed("given labels by class, [Q, 1, C]; a count below the site's floor is lumped")
    remainders: Tensor = disclosed("what was lumped, [Q, 1]")
    rest: Tensor = disclosed("what was lumped of whole rows, [Q]")
    sums: Tensor | None = disclosed(
        "sums and sums of squares of the features over all samples, [2, F] (heads on features alone)"
    )
    samples: int = disclosed("how many samples there are")

    def refusal(self, request: Any, facts: SiteFacts) -> str | None:
        questions, answers = request.questions
        wrong = _table_refusal(self, (questions, 1, answers), facts.samples)
        if wrong is None and (self.sums is None) == request.features:
            wrong = "the features' sums do not fit what was asked"
        if wrong is None and self.sums is not None and (self.sums.dim() != 2 or len(self.sums) != 2):
            wrong = f"the features' sums have shape {tuple(self.sums.shape)}"
        return wrong or count_refusal("samples", self.samples, facts.samples)


@dataclass(frozen=True)
class FoldsFitted(Reply):
    """Linear models, each trained without one fold of the site's samples."""

    models: Tensor = disclosed("the site's linear models, each trained without one fold, [F + 1, k, K]", update="")
    likelihoods: Tensor = disclosed("of each model the log-likelihood of the labels that it left out, [k]", most=0.0)
    samples: int = disclosed("how many samples there are")

    def refusal(self, request: Any, facts: SiteFacts) -> str | None:
        if self.models.shape != request.models.shape or self.models.dtype != torch.float32:
            return f"the models have shape {tuple(self.models.shape)}, sent were {tuple(request.models.shape)}"
        if tuple(self.likelihoods.shape) != (request.models.shape[1],):
            return f"{tuple(self.likelihoods.shape)} likelihoods for {request.models.shape[1]} models"
        return count_refusal("samples", self.samples, facts.samples)

    def moves(self, request: Any) -> tuple[tuple[Weights, Weights], ...]:
        return tuple(
            ({"linear": own}, {"linear": sent}) for own, sent in zip(self.models.unbind(1), request.models.unbind(1))
        )


@dataclass(frozen=True)
class GridJudged(Reply):
    """The second exchange: how well each exponent explains the given labels, and who is mistaken for whom."""

    nats: Tensor = disclosed("log-likelihood of the given labels by exponent, whole numbers, [Q, A]", most=0)
    faithful: Tensor = disclosed("the same if every label were right, [Q, A]", most=0)
    cells: Tensor = disclosed("expected labels by probable and given class, [Q, C, C], lumped below the floor")
    remainders: Tensor = disclosed("what was lumped in each row, [Q, C]")
    rest: Tensor = disclosed("what was lumped of whole rows, [Q]")

    def refusal(self, request: Any, facts: SiteFacts) -> str | None:
        questions, answers = request.questions
        for name in ("nats", "faithful"):
            value: Tensor = getattr(self, name)
            if value.dtype != torch.int64 or tuple(value.shape) != (questions, len(GRID)):
                return f"{name} has shape {tuple(value.shape)}, asked were {(questions, len(GRID))}"
        return _table_refusal(self, (questions, answers, answers), facts.samples)


@dataclass(frozen=True)
class LabelsJudged(Reply):
    """The third exchange: the site's line in the consortium's table."""

    wrong: Tensor = disclosed(
        "labels that are probably wrong and both ends of the interval, whole numbers, [Q, 3]; -1 below the floor",
        least=-1,
    )
    evidence: bool = disclosed("whether there is evidence of wrong labels at all")
    flagged: int = disclosed("how many samples the site should look at, 0 if fewer than its floor", least=0)
    cells: Tensor = disclosed("labels by given and probable class, [Q, C, C], lumped below the floor")
    remainders: Tensor = disclosed("what was lumped in each row, [Q, C]")
    rest: Tensor = disclosed("what was lumped of whole rows, [Q]")

    def refusal(self, request: Any, facts: SiteFacts) -> str | None:
        questions, answers = len(request.shared), len(request.shared[0].model.shares)
        if self.wrong.dtype != torch.int64 or tuple(self.wrong.shape) != (questions, 3):
            return f"wrong has shape {tuple(self.wrong.shape)}, asked were {(questions, 3)}"
        if int(self.wrong.max()) > facts.samples or self.flagged > facts.samples:
            return f"more labels are wrong than the {facts.samples} that the site declared"
        return _table_refusal(self, (questions, answers, answers), facts.samples)
