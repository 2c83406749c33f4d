"""`SiteRuntime`: what a site needs to answer requests: its facts, its data in memory, its notebook's folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from fedsift.core.version import __version__
from fedsift.protocol.messages import Reply, RequestEnvelope, RequestMoment, SiteFacts
from fedsift.protocol.notebook import Notebook
from fedsift.protocol.site import ComputeSettings, Samples, Site
from fedsift.training.requests import LocalSite
from fedsift.transports.remote.introduction import Introduction

Release = Callable[[RequestEnvelope, Reply, SiteFacts], Reply]
"""Makes of an envelope's raw reply what may leave; raises where nothing may."""


@dataclass(frozen=True)
class SiteRuntime:
    """A site that can answer requests, made from a real site's file or from what a simulation wrote for it."""

    name: str
    classes: tuple[str, ...]
    multilabel: bool
    mean: tuple[float, ...]
    std: tuple[float, ...]
    notebook: Path
    samples: Samples
    given: Tensor
    groups: Tensor | None = None
    """Equal numbers for samples of one patient or lesion, int64 `[n]`."""
    held_out: Samples | None = None
    held_out_given: Tensor | None = None
    public: Samples | None = None
    public_digest: str = ""
    test: Samples | None = None
    test_labels: Tensor | None = None
    model: str = ""
    """Another network than the study's."""
    annotated: tuple[int, ...] | None = None
    """Classes that the site annotates at all; None for every class."""
    privacy_budget: float | None = None
    audit_min_count: int = 10
    """The smallest count that the site lets out in an audit."""
    min_count: int = 0
    """The smallest group of samples that any other reply may describe."""
    release: Release | None = field(default=None, repr=False)
    """What the site does to a reply before it is kept and leaves: its policy's clipping, noise and account."""
    history: int = 0
    """Rounds by which a coordinator may be restored from a copy older than it was, and this site still goes on."""
    secret: str = field(default="", repr=False)
    device: str = "cpu"

    def facts(self, model: str) -> SiteFacts:
        """What the site declares; `model` is the study's network, which a site may replace by its own."""
        return SiteFacts(
            name=self.name,
            samples=len(self.samples),
            held_out=0 if self.held_out is None or len(self.held_out) < self.min_count else len(self.held_out),
            model=self.model or model,
            annotated=self.annotated,
            public=0 if self.public is None else len(self.public),
            public_digest=self.public_digest,
            test=0 if self.test is None else len(self.test),
            classes=len(self.classes),
            multilabel=self.multilabel,
        )

    def introduction(self, model: str) -> Introduction:
        return Introduction(
            self.facts(model),
            self.classes,
            self.multilabel,
            self.samples.shape,
            self.mean,
            self.std,
            __version__,
        )

    def site(self, moment: RequestMoment, notebook: Notebook, model: str) -> Site:
        """The site as one request sees it."""
        return LocalSite(
            facts=self.facts(model),
            samples=self.samples,
            given=self.given,
            classes=self.classes,
            moment=moment,
            notebook=notebook,
            groups=self.groups,
            held_out=self.held_out,
            held_out_given=self.held_out_given,
            public=self.public,
            test=self.test,
            test_labels=self.test_labels,
            multilabel=self.multilabel,
            secret=self.secret,
            privacy_budget=self.privacy_budget,
            audit_min_count=self.audit_min_count,
            min_count=self.min_count,
            compute=ComputeSettings(device=self.device, trainer="one"),  # a cohort of one only costs
        )
