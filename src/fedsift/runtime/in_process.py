"""The in-process engine: answers requests for all sites in this process, trained together, with one copy of the data.

`study.running.InProcessTransport`, the default transport, opens it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fedsift.data.dataset import FederatedDataset
from fedsift.data.splits import units_of
from fedsift.protocol.messages import ReplyEnvelope, RequestEnvelope, SiteFacts
from fedsift.protocol.notebook import Notebook
from fedsift.protocol.site import ComputeSettings, Samples, Site
from fedsift.runs.folder import RunFolder
from fedsift.runtime.federation import EngineFederation, EngineParts, SimulationSettings
from fedsift.training.processes import start_workers
from fedsift.training.requests import LocalSite
from fedsift.training.workers import answer_many

Tamper = Callable[[ReplyEnvelope], ReplyEnvelope | None]


class InProcess(EngineFederation):
    """Serves requests from a `FederatedDataset`. Sites are made when asked, so their number costs nothing."""

    def __init__(
        self,
        federated: FederatedDataset,
        *,
        models: Mapping[str, str] | None = None,
        compute: ComputeSettings | None = None,
        tamper: Tamper | None = None,
        **shared: Any,
    ) -> None:
        """`models`: another network for a site, by its name. `tamper`: what a bad wire does to answers, in tests."""
        self.federated = federated
        self.compute = compute or ComputeSettings()  # needed before the base is ready, which keeps it
        start_workers(self.compute)
        self.tamper = tamper
        self.notebooks: dict[str, dict[str, Any]] = {}
        """Current pages of the sites that have written any."""
        self.touched: set[str] = set()
        """Sites whose pages changed since the last checkpoint."""
        self._open: dict[str, Notebook] = {}
        data = federated.dataset
        self._pool = torch.from_numpy(data.images).to(self.compute.device)
        self.public = self._public()
        self._test = self.test_set()
        public: dict[str, Any] = {}
        if self.public is not None:
            public = {"public": len(self.public), "public_digest": self.public.digest()}
        super().__init__(
            facts={
                site: replace(facts_of(federated, site, (models or {}).get(site, shared["model"])), **public)
                for site in federated.sites
            },
            classes=data.classes,
            multilabel=data.multilabel,
            shape=data.shape,
            compute=self.compute,
            **shared,
        )
        self.cohorts = self.compute.cohorts

    def deliver(self, envelopes: Mapping[str, RequestEnvelope], deadline: float) -> Mapping[str, ReplyEnvelope]:
        self._open = {}
        kinds: dict[type, list[tuple[Any, Site]]] = {}
        for envelope in envelopes.values():
            kinds.setdefault(type(envelope.request), []).append((envelope.request, self.site(envelope)))
        answers: dict[str, ReplyEnvelope] = {}
        for kind, work in kinds.items():
            for (_, site), outcome in zip(work, answer_many(kind, work)):
                answers[site.name] = self._answer(envelopes[site.name], site, outcome)
        if self.tamper is None:
            return answers
        changed = {site: self.tamper(answer) for site, answer in answers.items()}
        return {site: answer for site, answer in changed.items() if answer is not None}

    def _answer(self, envelope: RequestEnvelope, site: Site, outcome: Any) -> ReplyEnvelope:
        if isinstance(outcome, Exception):
            failure = f"the site failed: {type(outcome).__name__}: {outcome}"
            return ReplyEnvelope(envelope.run, site.name, envelope.moment.id, None, failure)
        self._open[site.name] = site.notebook
        return ReplyEnvelope(envelope.run, site.name, envelope.moment.id, outcome)

    def accept_notebook(self, envelope: RequestEnvelope) -> None:
        super().accept_notebook(envelope)
        notebook = self._open.pop(envelope.site)
        if notebook.written:
            self.notebooks[envelope.site] = notebook.pages()
            self.touched.add(envelope.site)

    def site(self, envelope: RequestEnvelope) -> Site:
        """The site as this request sees it, with a copy of its notebook."""
        name, federated = envelope.site, self.federated
        data = federated.dataset
        held_out = federated.held_out.get(name)
        return LocalSite(
            facts=self.facts[name],
            samples=self._samples(federated.rows[name]),
            given=torch.from_numpy(federated.given[name]),
            classes=data.classes,
            moment=envelope.moment,
            notebook=Notebook(self.notebooks.get(name)),
            groups=self._groups(federated.rows[name]),
            held_out=None if held_out is None else self._samples(held_out),
            held_out_given=None if held_out is None else torch.from_numpy(federated.held_out_given[name]),
            public=self.public,
            test=None if self._test is None else self._test[0],
            test_labels=None if self._test is None else self._test[1],
            multilabel=data.multilabel,
            min_count=self.quorum.min_count,
            compute=self.compute,
        )

    def _groups(self, rows: Any) -> Tensor | None:
        groups = self.federated.dataset.groups
        return None if groups is None else torch.from_numpy(units_of(groups[rows]))

    def _samples(self, rows: Any) -> Samples:
        data = self.federated.dataset
        return Samples(self._pool, torch.from_numpy(rows), data.mean, data.std)

    def _public(self) -> Samples | None:
        public, data = self.federated.public, self.federated.dataset
        if public is None:
            return None
        shared = public.images is data.images
        pool = self._pool if shared else torch.from_numpy(public.images).to(self.compute.device)
        return Samples(pool, torch.from_numpy(public.rows), public.mean, public.std)

    def test_set(self) -> tuple[Samples, Tensor] | None:
        """The central test set, or None when the data has none."""
        data = self.federated.dataset
        if len(data.test) == 0:
            return None
        return self._samples(data.test), torch.from_numpy(data.labels[data.test])

    @property
    def simulated(self) -> bool:
        return True

    @property
    def simulation(self) -> SimulationSettings:
        return SimulationSettings(self.federated, self.notebooks)

    def notebooks_to_keep(self) -> dict[str, dict[str, Any]]:
        changed = {site: self.notebooks[site] for site in self.touched}
        self.touched = set()
        return changed

    def restore(self, notebooks: Mapping[str, dict[str, Any]]) -> None:
        self.notebooks = dict(notebooks)


@dataclass(frozen=True)
class InProcessFederation:
    """The in-process engine: every site of a federated dataset, in this process."""

    federated: FederatedDataset
    models: Mapping[str, str] = field(default_factory=dict)
    """Another network for a site, by its name."""
    compute: ComputeSettings = field(default_factory=ComputeSettings)
    kind: type[InProcess] = InProcess
    """A subclass lets a caller watch or disturb the messages."""

    def open(self, parts: EngineParts, folder: RunFolder) -> InProcess:
        return self.federation(parts, folder.id)

    def federation(self, parts: EngineParts, run: str) -> InProcess:
        return self.kind(self.federated, models=self.models, compute=self.compute, **parts.shared(run))


def facts_of(federated: FederatedDataset, site: str, model: str) -> SiteFacts:
    annotated = None
    if federated.annotated is not None:
        annotated = tuple(int(k) for k in federated.annotated[site].nonzero()[0])
    return SiteFacts(
        name=site,
        samples=len(federated.rows[site]),
        held_out=len(federated.held_out.get(site, ())),
        model=model,
        annotated=annotated,
        test=len(federated.dataset.test),
        classes=len(federated.dataset.classes),
        multilabel=federated.dataset.multilabel,
    )
