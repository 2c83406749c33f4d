"""Cross-fitting at a site: k models, each trained without one fold, so that every sample is judged by a model that was
not trained on its label."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from fedsift.core.errors import RunError
from fedsift.core.randomness import numpy_generator
from fedsift.protocol.messages import Reply, Request, SiteFacts, Weights, disclosed
from fedsift.protocol.notebook import Notebook
from fedsift.protocol.site import Site
from fedsift.training.dispatch import train_many
from fedsift.training.job import TrainingJob, TrainingResult
from fedsift.training.plan import reach
from fedsift.training.predict import logits_of
from fedsift.training.recipe import Recipe
from fedsift.training.requests import count_refusal, weights_refusal

# Folds of a site's samples for cross-fitting: whole groups, every class in every fold as evenly as it
# can be
# ------------------------------------------------------------------------------

Numbers = NDArray[np.int64]


def deal_folds(strata: Numbers, folds: int, random: np.random.Generator, units: Numbers | None = None) -> Numbers:
    """A fold for each sample, int64 `[n]` in 0..folds-1.

    strata `[n]`: what every fold should hold alike, e.g. the given class. units `[n]`: samples that must stay
    together (a patient, a lesion, copies of one picture); each sample for itself when None. Larger units are dealt
    first, each to the fold that holds least of its stratum, then least of all.
    """
    n = len(strata)
    if folds < 1:
        raise ValueError(f"{folds} folds: at least one is needed")
    _, unit_of = np.unique(np.arange(n) if units is None else units, return_inverse=True)
    sizes = np.bincount(unit_of)
    first = np.full(len(sizes), n, np.int64)
    np.minimum.at(first, unit_of, np.arange(n))
    stratum_of = np.unique(strata, return_inverse=True)[1][first] if n else np.zeros(0, np.int64)
    shuffled = random.permutation(len(sizes))
    order = shuffled[np.lexsort((-sizes[shuffled], stratum_of[shuffled]))]
    held = np.zeros((int(stratum_of.max(initial=-1)) + 1, folds), np.int64)
    total = np.zeros(folds, np.int64)
    fold_of_unit = np.zeros(len(sizes), np.int64)
    for unit in order:
        own = held[stratum_of[unit]]
        fold = int(np.lexsort((total, own))[0])
        fold_of_unit[unit] = fold
        own[fold] += sizes[unit]
        total[fold] += sizes[unit]
    return fold_of_unit[unit_of]


def copies(samples: NDArray[np.generic]) -> Numbers:
    """Equal numbers for samples `[n, ...]` that are the same to the byte, int64 `[n]`."""
    digests = [hashlib.blake2b(np.ascontiguousarray(row).tobytes(), digest_size=16).digest() for row in samples]
    return np.unique(np.array(digests, dtype="S16"), return_inverse=True)[1].astype(np.int64)


def joined(first: Numbers, second: Numbers) -> Numbers:
    """Units that keep together what either of two groupings keeps together, int64 `[n]`."""
    n = len(first)
    a = np.unique(first, return_inverse=True)[1]
    b = np.unique(second, return_inverse=True)[1]
    width = int(a.max(initial=-1)) + 1
    size = width + int(b.max(initial=-1)) + 1
    links = coo_array((np.ones(n), (a, width + b)), shape=(size, size))
    parts: Numbers = connected_components(links, directed=False)[1].astype(np.int64)
    return parts[a]


def disagreeing_copies(units: Numbers, labels: Numbers) -> NDArray[np.bool_]:
    """Samples `[n]` whose exact copy carries another label (any other row, for labels `[n, K]`)."""
    if len(units) == 0:
        return np.zeros(0, np.bool_)
    kinds = np.unique(labels, axis=0, return_inverse=True)[1].reshape(len(units))
    pairs = np.unique(np.stack([units, kinds], 1), axis=0)
    distinct = np.bincount(pairs[:, 0], minlength=int(units.max()) + 1)
    return np.asarray(distinct[units] > 1)


FOLDS = "audit folds"
"""The notebook's page with the fold of each sample, int64 `[n]`."""
COPIES = "audit copies"
"""The notebook's page with equal numbers for exact copies, int64 `[n]`."""
MOST_FOLDS = 100
"""That a message may ask any site to deal its samples into."""
FEW_FOLDS = 5
"""That every site deals, however small; more only where each holds as many samples as the site's minimum count."""
WHOLE = 1
"""With a single fold nothing is held out: the model sees every sample."""


def folds_of(site: Site, folds: int) -> Tensor:
    """The fold of each of the site's samples, int64 `[n]`; dealt once and kept in its notebook.

    Whole groups (patients, lesions) and exact copies stay in one fold: siblings defend a shared wrong label. Of a few
    samples each, folds and the models that leave them out would tell of single ones.
    """
    most = max(FEW_FOLDS, len(site.samples) // max(site.audit_min_count, 1))
    if folds > most:
        raise RunError(f"site '{site.name}' deals its samples into {most} folds at most, {folds} were asked for")
    kept: Tensor | None = site.notebook.get(FOLDS)
    if kept is not None and len(kept) == len(site.samples):
        return kept
    same = copies(site.samples.pool[site.samples.rows].cpu().numpy())
    units = same if site.groups is None else joined(same, site.groups.numpy())
    labels = site.given.numpy()
    strata = labels if labels.ndim == 1 else np.unique(labels, axis=0, return_inverse=True)[1].reshape(-1)
    dealt = deal_folds(strata, folds, numpy_generator(site.moment.seed, site.name, "audit folds"), units)
    site.notebook[COPIES] = torch.from_numpy(same)
    site.notebook[FOLDS] = torch.from_numpy(dealt)
    return torch.from_numpy(dealt)


def part_of(site: Site, positions: Tensor, labels: Tensor | None = None) -> Site:
    """The site with these of its samples alone; what it writes does not reach the notebook.

    labels: of all of the site's samples, `[n]`, in the place of those that it believes.
    """
    return replace(
        site,
        samples=replace(site.samples, rows=site.samples.rows[positions]),
        given=(site.labels if labels is None else labels)[positions],
        groups=None if site.groups is None else site.groups[positions],
        notebook=Notebook(),
        workbench={},
    )


@dataclass(frozen=True)
class CrossTrained(Reply):
    """The reply to cross-fitted training."""

    models: tuple[Weights, ...] = disclosed(
        "the site's models, each trained without one fold of its samples", "model", update="models"
    )
    samples: tuple[int, ...] = disclosed("how many samples each was trained on", "count")
    loss: float | None = disclosed("mean training loss over the models", "loss", spare=True)

    def refusal(self, request: CrossTrain, facts: SiteFacts) -> str | None:
        if len(self.models) != len(request.models) or len(self.samples) != len(request.models):
            return f"{len(self.models)} models came back, {len(request.models)} were sent"
        reasons = [
            weights_refusal(own, sent) or count_refusal("samples", count, facts.samples, least=0)
            for own, sent, count in zip(self.models, request.models, self.samples)
        ]
        return next((f"model {number}: {text}" for number, text in enumerate(reasons, 1) if text), None)

    def moves(self, request: CrossTrain) -> tuple[tuple[Weights, Weights], ...]:
        return tuple(zip(self.models, request.models))


@dataclass(frozen=True)
class CrossTrain(Request[CrossTrained]):
    """Train k models by one recipe, model f on all of the site's samples but those of its fold f."""

    reply_type: ClassVar[type[Reply]] = CrossTrained

    models: tuple[Weights, ...]
    recipe: Recipe

    def reach(self, samples: int) -> float:
        return reach(samples, self.recipe)

    def work(self, facts: SiteFacts) -> float:
        return super().work(facts) + len(self.models) * self.recipe.work(facts)

    def parts(self, site: Site) -> list[Tensor]:
        """Positions that each model trains on; all of them for a single model."""
        folds = len(self.models)
        if folds == WHOLE:
            return [torch.arange(len(site.samples))]
        fold = folds_of(site, folds)
        return [(fold != number).nonzero().squeeze(-1) for number in range(folds)]

    def answer(self, site: Site) -> CrossTrained:
        [reply] = self.answer_many([(self, site)])
        if isinstance(reply, Exception):
            raise reply
        assert isinstance(reply, CrossTrained)
        return reply

    @classmethod
    def answer_many(cls, work: Sequence[tuple[Any, Site]]) -> list[Any]:
        jobs: list[TrainingJob] = []
        places: list[tuple[int, int]] = []
        for number, (request, site) in enumerate(work):
            for fold, positions in enumerate(request.parts(site)):
                if len(positions):
                    places.append((number, fold))
                    purpose = f"train without fold {fold + 1}"
                    jobs.append(
                        TrainingJob(part_of(site, positions), request.models[fold], request.recipe, purpose=purpose)
                    )
        found: dict[tuple[int, int], TrainingResult | Exception] = dict(zip(places, train_many(jobs)))
        return [
            _gathered(request, site, [found.get((number, fold)) for fold in range(len(request.models))])
            for number, (request, site) in enumerate(work)
        ]


def _gathered(request: CrossTrain, site: Site, results: list[TrainingResult | Exception | None]) -> Any:
    """One site's reply; a model for which it has no sample comes back as it was and counts for nothing."""
    failed = next((result for result in results if isinstance(result, Exception)), None)
    if failed is not None:
        return failed
    trained = [result for result in results if isinstance(result, TrainingResult)]
    sizes = [len(positions) for positions in request.parts(site)]
    models = tuple(
        result.weights if isinstance(result, TrainingResult) else sent for result, sent in zip(results, request.models)
    )
    return CrossTrained(models, tuple(sizes), sum(result.loss for result in trained) / max(len(trained), 1))


def out_of_fold_logits(site: Site, models: Sequence[Weights]) -> Tensor:
    """Logits `[n, K]` of every sample under the model that did not train on it."""
    if len(models) == WHOLE:
        return logits_of(site.network(models[0]), site.samples)
    fold = folds_of(site, len(models))
    logits = torch.zeros(len(site.samples), site.n_classes)
    for number, weights in enumerate(models):
        positions = (fold == number).nonzero().squeeze(-1)
        if len(positions):
            own = replace(site.samples, rows=site.samples.rows[positions])
            logits[positions] = logits_of(site.network(weights), own)
    return logits
