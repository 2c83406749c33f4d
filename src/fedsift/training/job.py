"""`TrainingJob` and `TrainingResult`: what both trainers take and return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from fedsift.core.errors import ConfigError, DataError
from fedsift.formulas import losses
from fedsift.protocol.messages import Weights
from fedsift.protocol.site import Site
from fedsift.training.objective import PREPARED, Extra, FrozenNetwork, PerParameter, PerSample
from fedsift.training.recipe import Recipe


@dataclass(frozen=True)
class TrainingJob:
    """One site's training: from these weights, by this recipe."""

    site: Site
    weights: Weights
    recipe: Recipe
    purpose: str = "train"
    """Names the randomness, so that two trainings of one request differ."""
    extras: Mapping[str, Extra] = field(default_factory=dict)
    """What loss terms need beyond what the trainer knows. "teacher" and "anchors" put other networks in the place of
    the received one (FedDyn moves the anchor at each site)."""
    twin: TrainingJob | None = None
    """A second network that trains in step with this one: the same site, recipe and batches, but weights and extras of
    its own. Each sees the other's logits as `View.twin`."""
    dropout: str = "dropout"
    """Names the randomness inside the network; a twin has another."""

    @property
    def paired(self) -> bool:
        """Whether this is one of two networks."""
        return self.twin is not None or self.dropout != "dropout"

    def sides(self) -> list[TrainingJob]:
        """This network and its twin, if it has one."""
        if self.twin is None:
            return [self]
        return [
            self,
            replace(self.twin, site=self.site, recipe=self.recipe, purpose=self.purpose, dropout="twin dropout"),
        ]

    def targets(self) -> Tensor:
        """The site's working labels as dense rows, float32 `[n, K]`."""
        labels = self.site.labels
        if self.site.multilabel:
            return labels.to(torch.float32)
        return F.one_hot(labels, self.site.n_classes).to(torch.float32)

    def log_prior(self) -> Tensor:
        """What logit adjustment adds, `[1, K]`: log frequencies, or log-odds of positives (multi-label)."""
        counts = self.site.label_counts().to(torch.float32)
        if not self.site.multilabel:
            return losses.log_prior(counts)[None, :]
        known = self.known() if "known prior" in self.recipe.objective.needs else None
        among = torch.full_like(counts, len(self.site.samples)) if known is None else known.sum(0)
        return losses.multilabel_logit_shift(counts, among.clamp(min=1))[None, :]

    def known(self) -> Tensor | None:
        """1 where a label is annotated or supplied, float32 `[n, K]`; None: all are."""
        return self.site.known_entries

    def needed(self) -> dict[str, Extra]:
        """The extras that the objective's terms ask for; teacher and anchors are the received model by default."""
        received: dict[str, Extra] = {
            "teacher": FrozenNetwork(self.weights),
            "anchors": PerParameter(self.weights),
        }
        found = {**received, **self.remembered(), **self.extras}
        names = sorted(self.recipe.objective.needs - PREPARED)
        if "twin" in self.recipe.objective.needs and not self.paired:
            raise DataError(
                f"site '{self.site.name}': a loss term needs a second network in training; give the job a twin"
            )
        if "aside" in self.recipe.objective.needs and (self.recipe.views < 2 or self.recipe.mixup > 0):
            raise ConfigError(
                f"train.views = {self.recipe.views}, train.mixup = {self.recipe.mixup}: a teacher that sees a view of "
                "its own needs at least two views and no mixup"
            )
        for name in names:
            extra = found.get(name)
            if extra is None:
                raise DataError(
                    f"site '{self.site.name}': a loss term needs '{name}', which the request did not bring; "
                    "put it into the job's extras"
                )
            if isinstance(extra, PerSample) and len(extra.rows) != len(self.site.samples):
                raise DataError(
                    f"site '{self.site.name}': '{name}' has {len(extra.rows)} rows for {len(self.site.samples)} samples"
                )
        return {name: found[name] for name in names}

    def remembered(self) -> dict[str, Extra]:
        """What the terms remember of this site's samples; zeros before the first visit."""
        memory = self.recipe.objective.memory(self.site.n_classes)
        if memory and self.recipe.mixup > 0:
            raise ConfigError(
                f"train.mixup = {self.recipe.mixup}: a loss that remembers every sample ({', '.join(memory)}) cannot "
                "be computed on mixed ones; set train.mixup = 0"
            )
        rows: dict[str, Extra] = {}
        for name, shape in memory.items():
            kept: Tensor | None = self.site.notebook.get(self._page(name))
            fits = kept is not None and kept.shape == (len(self.site.samples), *shape)
            rows[name] = PerSample(kept if kept is not None and fits else torch.zeros(len(self.site.samples), *shape))
        return rows

    def remember(self, result: TrainingResult) -> None:
        """Keep in the notebook what the terms wrote."""
        for side, own in zip(self.sides(), (result, result.twin)):
            memory = side.recipe.objective.memory(side.site.n_classes)
            for name in memory.keys() - side.extras.keys():
                if own is not None and name in own.rows:
                    side.site.notebook[side._page(name)] = own.rows[name].cpu()

    def _page(self, name: str) -> str:
        """Where the notebook holds what a term remembers; a twin has memories of its own."""
        return name if self.dropout == "dropout" else f"{name} of the twin"

    def generator(self) -> torch.Generator:
        return self.site.random(self.purpose)

    def dropout_generator(self) -> torch.Generator:
        return self.site.random(f"{self.purpose}: {self.dropout}")


@dataclass(frozen=True)
class TrainingResult:
    """What training made: new weights, and the mean objective over all steps."""

    weights: Weights
    loss: float
    steps: int
    rows: Mapping[str, Tensor] = field(default_factory=dict)
    """Per-sample extras that a term wrote to, `[n, *]` as training left them."""
    learnt: Mapping[str, Tensor] = field(default_factory=dict)
    """Per-site extras with a step of their own, or that a term wrote to, as training left them."""
    followers: Mapping[str, Weights] = field(default_factory=dict)
    """Networks that followed this one, as training left them."""
    twin: TrainingResult | None = None
    """What became of the second network."""
