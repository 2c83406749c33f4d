"""Sites and views small enough to compute by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedsift.models.network import Network
from fedsift.protocol.messages import RequestMoment, SiteFacts, Weights
from fedsift.protocol.notebook import Notebook
from fedsift.protocol.site import Samples, Site
from fedsift.training.objective import View
from fedsift.training.requests import LocalSite


class Plain(Network):
    """A network whose features are its inputs."""

    def __init__(self, inputs: int, n_classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(inputs, n_classes)

    def features(self, x: Tensor) -> Tensor:
        return x


def plain(shape: tuple[int, ...], n_classes: int) -> Plain:
    return Plain(shape[0], n_classes)


PLAIN = f"{__name__}:plain"


def plain_weights(rows: Sequence[Sequence[float]], bias: Sequence[float] | None = None) -> Weights:
    """Weights of `plain`: one row a class."""
    return {
        "head.weight": torch.tensor(rows, dtype=torch.float32),
        "head.bias": torch.zeros(len(rows)) if bias is None else torch.tensor(bias, dtype=torch.float32),
    }


def site(
    samples: Sequence[Sequence[float]],
    given: Sequence[Any],
    *,
    classes: int,
    annotated: tuple[int, ...] | None = None,
    notebook: Notebook | None = None,
    seed: int = 1,
    round_: int = 0,
    ask: int = 0,
    name: str = "here",
    **more: Any,
) -> Site:
    pool = torch.tensor(samples, dtype=torch.float32)
    labels = torch.tensor(given, dtype=torch.int64)
    return LocalSite(
        facts=SiteFacts(name, len(pool), model=PLAIN, annotated=annotated),
        samples=Samples(pool, torch.arange(len(pool))),
        given=labels,
        classes=tuple(f"c{k}" for k in range(classes)),
        moment=RequestMoment(seed, "stage", round_, ask),
        notebook=notebook if notebook is not None else Notebook(),
        multilabel=labels.dim() == 2,
        **more,
    )


def view(logits: Any, target: Any, **more: Any) -> View:
    z = torch.as_tensor(logits, dtype=torch.float64)
    given = {key: None if value is None else torch.as_tensor(value, dtype=torch.float64) for key, value in more.items()}
    present = given.pop("present", None)
    return View(
        logits=z,
        target=torch.as_tensor(target, dtype=torch.float64),
        present=torch.ones(z.shape[:-1], dtype=torch.float64) if present is None else present,
        **given,  # type: ignore[arg-type]
    )
