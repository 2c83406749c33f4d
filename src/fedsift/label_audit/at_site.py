"""The label audit's requests, and how a site answers them: count labels, train without each fold, judge its own
labels."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsift.core.codec import WireFormat, digest_of
from fedsift.core.randomness import numpy_generator
from fedsift.detection.label_posterior import (
    GRID,
    LabelModel,
)
from fedsift.detection.label_thresholds import FLAG
from fedsift.formulas.small_counts import CensoredTable, censored
from fedsift.label_audit.judge import Judgement, judge_labels
from fedsift.label_audit.linear_crossfit import (
    CrossfitSettings,
    as_probabilities,
    crossfit_step,
    held_out_likelihoods,
    out_of_fold,
    own_scale,
    share_shift,
    standardised,
)
from fedsift.label_audit.messages import (
    FoldsFitted,
    GridJudged,
    LabelsCounted,
    LabelsJudged,
    SecondReply,
    SharedModel,
    second_reply,
    site_tempering,
    stacked_tables,
    third_reply,
)
from fedsift.label_audit.site_files import MODELS, note_data
from fedsift.protocol.messages import Reply, Request, SiteFacts, Weights
from fedsift.protocol.site import Samples, Site
from fedsift.training.crossfit import (
    COPIES,
    MOST_FOLDS,
    copies,
    disagreeing_copies,
    folds_of,
    out_of_fold_logits,
)
from fedsift.training.predict import logits_of

Array = NDArray[np.float64]
Numbers = NDArray[np.int64]

NAME = "label audit"
JUDGED = "label audit"
"""The notebook's page with what the audit says of every label."""
PROBABILITIES = "label audit probabilities"
"""The page with the out-of-fold probabilities, float32 `[n, Q, C]`."""
NATS = "label audit likelihoods"
"""The page with the site's own likelihoods by exponent, int64 `[2, Q, A]`: with wrong labels, and without any."""
SCALE = "label audit scale"
"""The page with means and deviations of the site's features, float64 `[2, F]`."""
SEEN = "label audit average"
"""The page with the running mean of probabilities over the rounds, and how many there were (a single fold)."""


@dataclass(frozen=True)
class JudgedLabels(WireFormat):
    """What the audit found at this site; it never leaves. n samples, the held-out ones last; Q questions."""

    posterior: Tensor
    """float32 `[n, Q, C]`: P(true | picture, given, site); without the given label where that is not annotated."""
    wrong: Tensor
    """float32 `[n, Q]`: P(the given label is wrong); NaN where it is not annotated."""
    predicted: Tensor
    """int64 `[n, Q]`: what the model says, whatever was given."""
    flagged: Tensor
    """bool `[n]`: to look at again."""
    disagrees: Tensor
    """bool `[n]`: an exact copy of the sample carries another label."""
    training: int
    """How many of the n are training samples."""
    rates: tuple[tuple[int, int, int, bool], ...]
    """For each question: labels that are probably wrong, both ends of the interval, whether there is evidence."""
    swapped: tuple[bool, ...]
    """Whether the site's codes look swapped."""


def given_answers(labels: Tensor) -> Numbers:
    """Labels `[n]` or `[n, K]` as answers to the audit's questions, int64 `[n, Q]`."""
    values = labels.numpy()
    return values[:, None] if values.ndim == 1 else values


def answerable(site: Site) -> NDArray[np.bool_]:
    """Questions `[Q]` that the site's annotators answered at all."""
    if not site.multilabel:
        return np.ones(1, np.bool_)
    return np.ones(site.n_classes, np.bool_) if site.known is None else site.known.numpy() > 0


def answers_of(z: Array, *, multilabel: bool) -> Array:
    """Scores `[n, K]` as probabilities of the answers, `[n, Q, C]`."""
    if not multilabel:
        return as_probabilities(z)[:, None, :]
    p = as_probabilities(z, sigmoid=True)
    return np.stack([1 - p, p], -1)


def feature_rows(samples: Samples) -> NDArray[np.float32]:
    """All samples as rows of features, float32 `[n, F]`."""
    return np.asarray(samples.take(torch.arange(len(samples))).flatten(1).cpu().numpy(), np.float32)


def standard_rows(site: Site, samples: Samples) -> NDArray[np.float32]:
    """Samples of the site, standardised by its own training samples: nothing of that leaves it."""
    kept: Tensor | None = site.notebook.get(SCALE)
    if kept is None:
        kept = torch.from_numpy(own_scale(feature_rows(site.samples), None if site.multilabel else site.given.numpy()))
        site.notebook[SCALE] = kept
    return standardised(feature_rows(samples), kept.numpy())


# First exchange ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CountLabels(Request[LabelsCounted]):
    """How often each label was given."""

    reply_type: ClassVar[type[Reply]] = LabelsCounted

    questions: tuple[int, int]
    """Q and C."""

    def answer(self, site: Site) -> LabelsCounted:
        note_data(site)
        answers, known = given_answers(site.given), answerable(site)
        counts = [np.bincount(own, minlength=self.questions[1]) * kept for own, kept in zip(answers.T, known)]
        tables = stacked_tables([censored(count[None], site.audit_min_count) for count in counts])
        return LabelsCounted(**tables, samples=len(site.samples))


# Linear models on features ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FitFolds(Request[FoldsFitted]):
    """Train linear models on standardised features, each without one fold (`label_audit.linear_crossfit`)."""

    reply_type: ClassVar[type[Reply]] = FoldsFitted
    norm_tolerance: ClassVar[float] = 10.0
    """The chosen strength's models begin at zero again, when those of the search have settled."""

    models: Tensor
    """float32 `[F + 1, k, K]`"""
    held: tuple[int, ...]
    """The fold that each model leaves out; -1: none."""
    folds: int = field(metadata={"least": 1, "most": MOST_FOLDS})
    ridge: tuple[float, ...]
    shares: Tensor
    """g: shares of the given labels, float64 `[Q, C]`."""

    def work(self, facts: SiteFacts) -> float:
        return super().work(facts) + CrossfitSettings().work(facts.samples, len(self.held))

    @property
    def models_judged(self) -> int:
        return len(self.held)

    def shift(self, site: Site) -> Array:
        """log pi_s - log g `[K]`; the log-odds of yes for multi-label data."""
        shifts = [
            share_shift(np.bincount(own, minlength=self.shares.shape[1]), shares)
            for own, shares in zip(given_answers(site.given).T, self.shares.numpy())
        ]
        each = np.stack(shifts)
        return np.asarray(each[:, 1] - each[:, 0] if site.multilabel else each[0], np.float64)

    def answer(self, site: Site) -> FoldsFitted:
        x, held = standard_rows(site, site.samples), np.array(self.held)
        fold = folds_of(site, self.folds).numpy()
        given, shift = site.given.numpy(), self.shift(site)
        known = answerable(site) if site.multilabel else None
        if self.folds == 1:
            _remember(
                site,
                answers_of(x.astype(np.float64) @ self.models[:, 0].double().numpy(), multilabel=site.multilabel),
            )
        models = crossfit_step(
            self.models.numpy(), x, given, fold, held, np.array(self.ridge),
            numpy_generator(site.moment.seed, site.name, site.moment.round, site.moment.ask, "fit folds"),
            shift=shift, annotated=known,
        )  # fmt: skip
        sums = None
        if not site.multilabel and all((fold == own).sum() >= max(site.audit_min_count, 1) for own in held):
            sums = torch.from_numpy(held_out_likelihoods(models, x, given, fold, held, shift))
        return FoldsFitted(torch.from_numpy(models), sums, len(site.samples))


def _remember(site: Site, probabilities: Array) -> None:
    """Add to the mean over the rounds; the first model knows nothing yet and is left out."""
    seen: tuple[int, Tensor] | None = site.notebook.get(SEEN)
    count, mean = (0, torch.zeros(probabilities.shape)) if seen is None else seen
    fresh = torch.from_numpy(probabilities).float()
    site.notebook[SEEN] = (count + 1, fresh if count <= 1 else mean + (fresh - mean) / count)


# Second exchange --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JudgeGrid(Request[GridJudged]):
    """Every sample's probabilities by the model that was not trained on it, then how well each exponent explains the
    labels."""

    reply_type: ClassVar[type[Reply]] = GridJudged

    questions: tuple[int, int]
    shares: Tensor
    """g, float64 `[Q, C]`."""
    linear: FitFolds | None = None
    """The last models, and how features are standardised."""
    networks: tuple[Weights, ...] = ()
    """The last models, where they are networks."""

    def answer(self, site: Site) -> GridJudged:
        p = self.own_probabilities(site)
        site.notebook[PROBABILITIES] = torch.from_numpy(p).float()
        answers, known = given_answers(site.given), answerable(site)
        starts = [LabelModel.start(shares) for shares in self.shares.numpy()]
        found = [
            second_reply(p[:, q], answers[:, q], start, site.audit_min_count) if known[q] else self._silent(site)
            for q, start in enumerate(starts)
        ]
        nats = torch.from_numpy(np.minimum(np.stack([reply.nats for reply in found]), 0))
        faithful = torch.from_numpy(np.minimum(np.stack([reply.faithful for reply in found]), 0))
        site.notebook[NATS] = torch.stack([nats, faithful])
        return GridJudged(nats, faithful, **stacked_tables([reply.table for reply in found]))

    def _silent(self, site: Site) -> SecondReply:
        """The reply to a question that the site's annotators never answered."""
        none = np.zeros(len(GRID), np.int64)
        return SecondReply(none, none, censored(np.zeros((self.questions[1],) * 2), site.audit_min_count))

    def own_probabilities(self, site: Site) -> Array:
        """Of the training samples, each by a model that never saw it (by the mean over rounds where one saw all)."""
        seen: tuple[int, Tensor] | None = site.notebook.get(SEEN)
        if seen is not None:
            return np.asarray(seen[1].double().numpy())
        if self.linear is None:
            z = out_of_fold_logits(site, self.networks).double().numpy()
        else:
            models, held = self.linear.models.numpy(), np.array(self.linear.held)
            z = out_of_fold(models, standard_rows(site, site.samples), folds_of(site, self.linear.folds).numpy(), held)
        return answers_of(self.with_shares(z, site), multilabel=site.multilabel)

    @cached_property
    def digest(self) -> str:
        """Of the models, as the coordinator knows them; computed once for all sites of a simulation."""
        none = torch.zeros(0)
        return digest_of((none if self.linear is None else self.linear.models, self.networks))

    def other_probabilities(self, site: Site, samples: Samples) -> Array:
        """Of samples that no model saw: the mean over all models."""
        if self.linear is None:
            scores = [logits_of(site.network(weights), samples).double().numpy() for weights in self.networks]
        else:
            x = standard_rows(site, samples).astype(np.float64)
            scores = [x @ self.linear.models[:, k].double().numpy() for k in range(self.linear.models.shape[1])]
        each = [answers_of(self.with_shares(z, site), multilabel=site.multilabel) for z in scores]
        return np.asarray(np.mean(each, 0))

    def with_shares(self, z: Array, site: Site) -> Array:
        """Networks are trained on z + log pi_s and know no shares of the federation: give them g."""
        if self.linear is not None or site.multilabel:
            return z
        return np.asarray(z + np.log(np.maximum(self.shares[0].numpy(), 1e-9)))


def own_models(shared: tuple[SharedModel, ...], nats: Tensor) -> list[LabelModel]:
    """What all sites share, each question with the exponent that this site's own likelihoods choose with everyone's."""
    none = CensoredTable(np.zeros((0, 0), np.int64), np.zeros(0, np.int64), 0)
    return [
        one.model.with_tempering(site_tempering(one, SecondReply(fitted.numpy(), right.numpy(), none)))
        for one, fitted, right in zip(shared, *nats)
    ]


# Third exchange ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JudgeLabels(Request[LabelsJudged]):
    """The posterior of every label under the model that all sites share; it stays here, the consortium gets sums."""

    reply_type: ClassVar[type[Reply]] = LabelsJudged

    shared: tuple[SharedModel, ...]
    grid: JudgeGrid
    """How held-out samples are judged: by the same models."""

    def answer(self, site: Site) -> LabelsJudged:
        note_data(site)
        if PROBABILITIES not in site.notebook or NATS not in site.notebook:
            self.grid.answer(site)  # the reply to the second exchange was set aside, and its notebook with it
        p = site.notebook[PROBABILITIES].double().numpy()
        answers = given_answers(site.given)
        nats = site.notebook[NATS]
        found = judge_labels(
            p, answers, answerable(site), own_models(self.shared, nats), nats[0, 0].numpy(), self._held_out(site)
        )
        tables, released = [], []
        for q, (one, fit, rate) in enumerate(zip(self.shared, found.fits, found.rates)):
            if fit is None or rate is None:
                tables.append(censored(np.zeros_like(one.model.confusion), site.audit_min_count))
                released.append((0, 0, 0))
                continue
            third = third_reply(fit, answers[:, q], site.audit_min_count, rate)
            tables.append(third.agreement)
            released.append((third.rate.wrong, third.rate.low, third.rate.high))
        page = self._page(site, found, len(p))
        site.notebook[JUDGED] = page
        site.notebook[MODELS] = self.grid.digest
        self._keep(site, page)
        count = int(page.flagged[: page.training].sum())
        return LabelsJudged(
            torch.tensor(released, dtype=torch.int64),
            found.evidence,
            count if count >= site.audit_min_count else 0,
            **stacked_tables(tables),
        )

    def _held_out(self, site: Site) -> tuple[Array, Numbers]:
        """Probabilities and answers of the samples that the site keeps for evaluation."""
        questions, answers = len(self.shared), len(self.shared[0].model.shares)
        if site.held_out is None or site.held_out_given is None or len(site.held_out) == 0:
            return np.zeros((0, questions, answers)), np.zeros((0, questions), np.int64)
        return self.grid.other_probabilities(site, site.held_out), given_answers(site.held_out_given)

    def _page(self, site: Site, found: Judgement, training: int) -> JudgedLabels:
        kept: Tensor | None = site.notebook.get(COPIES)
        same = copies(feature_rows(site.samples)) if kept is None else kept.numpy()
        disagrees = np.zeros(len(found.flagged), np.bool_)
        disagrees[:training] = disagreeing_copies(same, site.given.numpy())
        return JudgedLabels(
            torch.from_numpy(found.posterior).float(),
            torch.from_numpy(found.wrong).float(),
            torch.from_numpy(found.predicted),
            torch.from_numpy(found.flagged | disagrees),
            torch.from_numpy(disagrees),
            training,
            tuple(
                (0, 0, 0, False) if rate is None else (rate.wrong, rate.low, rate.high, rate.evidence)
                for rate in found.rates
            ),
            found.swapped,
        )

    def _keep(self, site: Site, page: JudgedLabels) -> None:
        """The audit's word as evidence, like any method's."""
        one = not site.multilabel
        n = page.training
        site.keep_evidence(
            NAME,
            suspicion=page.wrong[:n, 0] if one else page.wrong[:n],
            flagged=page.flagged[:n] if one else (page.wrong[:n] > FLAG) & page.flagged[:n, None],
            proposed=page.posterior.argmax(2)[:n, 0] if one else page.posterior.argmax(2)[:n],
        )
