"""A site as its requests see it: samples, current labels, notebook and random generators; how a process computes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from fedsift.protocol.notebook import EVIDENCE, LabelEvidence, Notebook, evidence_of

if TYPE_CHECKING:  # a request is answered on a site, and a site has its request's moment
    from fedsift.protocol.messages import RequestMoment, SiteFacts, Weights


@dataclass(frozen=True)
class Samples:
    """Rows of a shared pool of images. `pool`: uint8 `[N, channels, height, width]` or float32 `[N, features]`."""

    pool: Tensor
    rows: Tensor
    """int64 `[n]`"""
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)

    def __len__(self) -> int:
        return int(self.rows.numel())

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.pool.shape[1:])

    def take(self, positions: Tensor) -> Tensor:
        """Normalised float32 samples at these positions: `[B, *shape]`."""
        return self.normalise(self.pool[self.rows[positions.to(self.rows.device)]])

    def digest(self) -> str:
        """A fingerprint of the samples, their order and their normalisation: equal sets, equal digests."""
        hasher = hashlib.blake2b(repr((self.mean, self.std, self.shape)).encode(), digest_size=16)
        for start in range(0, len(self), 1024):
            hasher.update(self.pool[self.rows[start : start + 1024]].cpu().numpy().tobytes())
        return hasher.hexdigest()

    def normalise(self, raw: Tensor) -> Tensor:
        if raw.dtype != torch.uint8:
            return raw
        view = (-1,) + (1,) * (raw.dim() - 2)
        scale = torch.tensor([1 / (255 * s) for s in self.std], device=raw.device).view(view)
        shift = torch.tensor([m / s for m, s in zip(self.mean, self.std)], device=raw.device).view(view)
        return raw.to(torch.float32).mul_(scale).sub_(shift)


@dataclass(frozen=True)
class ComputeSettings:
    """How this process computes: no part of a result's meaning, though all but `workers` show in its last bits."""

    device: str = "cpu"
    trainer: Literal["auto", "measure", "cohort", "one"] = "auto"
    workers: int = 0
    """Worker processes of the in-process engine; 0 trains in this process. Results are the same, to the last bit."""
    threads: int = 1
    """Torch threads of every process that computes."""
    parts: int = 0
    """Parts that a round's sites are cut into before anybody trains them; 0: as `workers.cut` thinks best."""
    cohorts: dict[str, int] = field(default_factory=dict, hash=False)
    """Sites trained together, by kind of training; a run's choices are added as they are made."""


@dataclass
class Site:
    """Everything that answering one request may use."""

    facts: SiteFacts
    samples: Samples
    given: Tensor
    """Labels as the site received them: int64 `[n]`, or 0/1 `[n, K]` for multi-label data."""
    classes: tuple[str, ...]
    moment: RequestMoment
    notebook: Notebook = field(default_factory=Notebook)
    groups: Tensor | None = None
    """Equal numbers for samples of one patient or lesion, int64 `[n]`; None: every sample is its own."""
    held_out: Samples | None = None
    held_out_given: Tensor | None = None
    public: Samples | None = None
    """Unlabelled samples that every site has (RHFL, FedMD, FedDF)."""
    test: Samples | None = None
    """In a simulation, the common test set, to judge models that stay at their sites. Nothing trains on it."""
    test_labels: Tensor | None = None
    multilabel: bool = False
    secret: str = ""
    """Entropy that the site alone knows, for draws that protect its privacy; empty in a simulation."""
    privacy_budget: float | None = None
    """Epsilon that the site lets be spent on each of its labels, ever; None: it set no limit of its own."""
    audit_min_count: int = 10
    """The smallest count that the site lets out in an audit; smaller ones leave in a lump."""
    min_count: int = 0
    """The smallest group of samples that a reply may describe, outside an audit; 0: any."""
    compute: ComputeSettings = field(default_factory=ComputeSettings)
    workbench: dict[str, Any] = field(default_factory=dict)
    """Scratch for the parts of one request, e.g. the weights just trained; gone afterwards."""

    @property
    def name(self) -> str:
        return self.facts.name

    @property
    def n_classes(self) -> int:
        return len(self.classes)

    def suppress_small(self, count: int) -> int:
        """A count of samples as it may leave: 0 where it is below the site's minimum count."""
        return count if count >= self.min_count else 0

    @property
    def labels(self) -> Tensor:
        """What the site believes now: corrected labels if a method wrote any, else the given ones."""
        kept = self.evidence.labels
        return self.given if kept is None else kept

    @property
    def evidence(self) -> LabelEvidence:
        """What methods have found out about single labels; it stays in the notebook, given labels as they were."""
        return evidence_of(self.notebook)

    def keep_evidence(self, method: str, **found: Tensor | None) -> None:
        """Replace fields of the evidence (`labels`, `known`, `flagged`, `suspicion`, `proposed`); the others stay."""
        self.notebook[EVIDENCE] = replace(
            self.evidence,
            **found,
            method=method,
            round=self.moment.round + 1,
        )

    @property
    def known(self) -> Tensor | None:
        """`[K]` 1/0: classes that the site annotates, None for all."""
        if self.facts.annotated is None:
            return None
        mask = torch.zeros(self.n_classes)
        mask[list(self.facts.annotated)] = 1.0
        return mask

    @property
    def known_entries(self) -> Tensor | None:
        """`[n, K]` 1/0: labels that are annotated or that a method supplied, None for all."""
        kept = self.evidence.known
        if kept is not None:
            return kept.to(torch.float32)
        return None if self.known is None else self.known.expand(len(self.samples), -1)

    def label_counts(self) -> Tensor:
        """Samples of each class under the working labels, int64 `[K]` (positives for multi-label data)."""
        if self.multilabel:
            return self.labels.sum(0)
        return torch.bincount(self.labels, minlength=self.n_classes)

    def random(self, purpose: str) -> torch.Generator:
        return self.moment.torch(self.name, purpose)

    def private_random(self, purpose: str, *of: object) -> np.random.Generator:
        """For draws that protect the site: the same whenever asked, and only who knows `secret` can repeat them.

        `of`: all that the result depends on besides; of two results from one draw the difference would tell. Nothing
        that the coordinator chooses at will takes part, or its seeds would be as many draws. In a simulation the
        secret is empty and the draw follows from the run's seed alone.
        """
        about = (str(self.moment.seed),) if not self.secret else tuple(map(repr, of))
        path = "\x1f".join((self.secret, *about, self.name, purpose))
        key = hashlib.blake2b(path.encode("utf-8"), digest_size=32).digest()
        return np.random.Generator(np.random.PCG64(int.from_bytes(key, "big")))

    def network(self, weights: Weights, slot: str = "main") -> nn.Module:
        """The site's network with these weights. One module is kept per `slot` and is loaded anew, so do not keep
        it."""
        raise TypeError(f"site '{self.name}' is a {type(self).__name__}, which has no networks: make a LocalSite")

    def weights_for(self, weights: Weights | None) -> Weights:
        """The weights that a request carries, or those that its first part has just trained."""
        if weights is not None:
            return weights
        if "trained" not in self.workbench:
            raise ValueError("the request carries no weights and nothing was trained before it")
        trained: Weights = self.workbench["trained"]
        return trained
