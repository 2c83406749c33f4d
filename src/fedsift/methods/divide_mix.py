"""DivideMix: Li et al., Learning with Noisy Labels as Semi-supervised Learning, ICLR 2020; federated as FedCorr's
comparison did it. With one site it is the central method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from fedsift.core.ranges import AtLeastOne, AtLeastZero, Count, Positive, Range, Share
from fedsift.detection.mixtures import clean_probability
from fedsift.formulas import losses
from fedsift.methods._base import methods, plain_loss
from fedsift.methods._two_networks import PairState, TrainedPair, TrainPair, TwoNetworks
from fedsift.protocol.federation import Federation
from fedsift.protocol.messages import Reply, SiteFacts
from fedsift.protocol.method import Stage
from fedsift.protocol.site import Site
from fedsift.training.job import TrainingJob
from fedsift.training.objective import ClassBalance, Entropy, Extra, Objective, PerSample, Term, View, as_objective
from fedsift.training.predict import logits_of_each

# Which of a site's labels a model believes, by its losses
# ------------------------------------------------------------------------------


def clean_votes(
    logits: Tensor, labels: Tensor, guarded: bool = True, balanced: bool = True, iterations: int = 100
) -> NDArray[np.float64]:
    """P(clean) of every sample by a mixture of two over the losses of these logits, `[n, K], [n] -> [n]`
    (DivideMix section 3.1, FedRN).

    guarded: a label that the model itself would give is clean. A mixture parts any losses in two, those of right labels
    too, and a site would never learn from its harder samples.
    balanced: a class is judged beside its share pi_c of the labels at hand, by softmax(z - log pi), the classes that
    are not among them left out. The labels of a rare class have large losses because it is rare: all of them would be
    dropped, and the model would end with the most frequent class for everything.
    """
    z = logits.double()
    if balanced:
        z = losses.over_prior(z, torch.bincount(labels, minlength=z.shape[-1]).double())
    loss = losses.cross_entropy(z, F.one_hot(labels, z.shape[-1]).double()).numpy()
    found = clean_probability(loss, max_iter=iterations)
    return np.where((z.argmax(-1) == labels).numpy(), 1.0, found) if guarded else found


# DivideMix at a site: part the samples by the other network's losses, make labels for both parts,
# train on mixtures
# ------------------------------------------------------------------------------

NAME = "dividemix"
ITERATIONS = 10
"""Of the mixture, as released."""
GUESSES = "dividemix labels"
"""Refined and guessed labels, `[n, K]`."""
LABELLED = "dividemix labelled"
"""1 for samples whose given label counts, `[n]`."""


def made_labels(
    given: Tensor, clean: Tensor, own: Tensor, other: Tensor, threshold: float = 0.5, temperature: float = 0.5
) -> tuple[Tensor, Tensor]:
    """Labels `[n, K]` to train on and who counts as labelled, `[n]` (section 3.2, eqs. 3-8).

    given: one-hot `[n, K]`; clean: w, the other network's belief in each given label, `[n]`; own, other: mean
    predictions of this network and of the other over augmented views, `[n, K]`. A believed label is blended with the
    own prediction, w y + (1 - w) p; for the rest both networks guess together. Both are sharpened.
    """
    labelled = clean > threshold
    w = clean.unsqueeze(-1)
    refined = w * given + (1 - w) * own
    guessed = (own + other) / 2
    labels = losses.sharpened(torch.where(labelled.unsqueeze(-1), refined, guessed), temperature)
    return labels, labelled.to(given.dtype)


@dataclass(frozen=True)
class DividedTerm(Term):
    """Mean loss over one part of a mixed batch: cross-entropy over the labelled (eq. 10), mean squared error of the
    probabilities over the unlabelled (eq. 11). A mixed row belongs to the part of the sample that it has most of."""

    needs: ClassVar[frozenset[str]] = frozenset({GUESSES, LABELLED})

    part: Literal["labelled", "unlabelled"] = "labelled"

    def value(self, view: View) -> Tensor:
        labels, labelled = view.rows(GUESSES), view.rows(LABELLED) > 0.5
        if self.part == "labelled":
            per_sample, counted = losses.cross_entropy(view.logits, labels), labelled
        else:
            per_sample = (F.softmax(view.logits, dim=-1) - labels).square().mean(-1)
            counted = ~labelled
        chosen = counted.to(per_sample.dtype) * view.present
        return (per_sample * chosen).sum(-1) / chosen.sum(-1).clamp(min=1)


@dataclass(frozen=True)
class TrainDivided(TrainPair):
    """Divide the samples twice, once for each network by the other's losses, and train both networks in step."""

    reply_type: ClassVar[type[Reply]] = TrainedPair

    threshold: float = 0.5
    temperature: float = 0.5
    views: int = 2
    guarded: bool = False
    balanced: bool = False
    """See `clean_votes`."""

    def work(self, facts: SiteFacts) -> float:
        """With both networks' guesses for every view."""
        return super().work(facts) + 2 * max(self.views, 0) * facts.samples

    def job(self, site: Site) -> TrainingJob:
        given = F.one_hot(site.labels, site.n_classes).double()
        networks = [site.network(self.weights), site.network(self.twin, slot="twin")]
        logits = [own.double() for own in logits_of_each(networks, site.samples)]
        clean = [
            torch.from_numpy(clean_votes(own, site.labels, self.guarded, self.balanced, ITERATIONS)) for own in logits
        ]
        labels_to_train_on = self.predictions(site, networks, logits)
        site.workbench["divided"] = [
            self.divide(given, clean[1 - side], labels_to_train_on[side], labels_to_train_on[1 - side])
            for side in (0, 1)
        ]
        belief = np.mean([own.numpy() for own in clean], axis=0)
        flagged = torch.from_numpy(belief <= self.threshold)
        proposed = torch.where(flagged, (labels_to_train_on[0] + labels_to_train_on[1]).argmax(-1), site.given)
        site.keep_evidence(NAME, suspicion=torch.from_numpy(1 - belief), flagged=flagged, proposed=proposed)
        return super().job(site)

    def predictions(self, site: Site, networks: Sequence[nn.Module], plain: list[Tensor]) -> list[Tensor]:
        """Both networks' mean probabilities over augmented views, `[n, K]`; without augmentation all views are the
        sample itself."""
        augment = self.recipe.augment
        views = [
            logits_of_each(networks, site.samples, augment=augment, generator=site.random(f"guess {view}"))
            for view in range(self.views if augment.active else 0)
        ]
        seen = list(zip(*views)) if views else [(own,) for own in plain]
        return [torch.stack([torch.softmax(z.double(), -1) for z in own]).mean(0) for own in seen]

    def divide(self, given: Tensor, clean: Tensor, own: Tensor, other: Tensor) -> dict[str, Extra]:
        labels, labelled = made_labels(given, clean, own, other, self.threshold, self.temperature)
        return {GUESSES: PerSample(labels.float()), LABELLED: PerSample(labelled.float())}

    def extras(self, site: Site) -> dict[str, Extra]:
        found: dict[str, Extra] = site.workbench["divided"][0]
        return found

    def second_network_extras(self, site: Site) -> dict[str, Extra]:
        found: dict[str, Extra] = site.workbench["divided"][1]
        return found


@methods.register("dividemix")
@dataclass(frozen=True)
class DivideMix(TwoNetworks):
    """Two networks; each selects for the other which labels to believe, and both guess the labels of the rest."""

    summary: ClassVar[str] = "Parts samples by loss and learns from the doubtful ones as if they had no label"
    paper: ClassVar[str] = "Li et al. 2020; federated as in FedCorr's comparison"

    warmup: Count = 20
    """Rounds of plain training of both networks before samples are parted."""
    warmup_epochs: Count = 0
    """Local epochs of a warm-up round (FedCorr's comparison: 5, then 20); 0: as many as in the other rounds."""
    rounds: AtLeastOne = 80
    """Rounds of semi-supervised training."""
    fraction: Share = 0.1
    """Share of the sites that train in a round."""
    lambda_u: AtLeastZero = 25.0
    """lambda_u: weight of the unlabelled part. 0 for low or asymmetric noise (FedCorr's comparison: 0 and 25 for
    CIFAR-10, 25 and 150 for CIFAR-100)."""
    ramp: Count = 16
    """Rounds over which lambda_u grows from 0."""
    alpha: Positive = 4.0
    """alpha of mixup's Beta(alpha, alpha)."""
    temperature: Positive = 0.5
    """T: sharpens refined and guessed labels."""
    threshold: Annotated[float, Range(0, 1, below=True)] = 0.5
    """tau: a given label counts where the other network believes it with more than this."""
    views: AtLeastOne = 2
    """M: augmented views whose predictions are averaged when labels are made."""
    balanced: bool = False
    """Judge a label beside its class's share of the site's labels: a mixture over plain losses takes the labels of a
    rare class for wrong. Off is as published."""
    guarded: bool = False
    """Never doubt a label that the judging network itself would give. Off is as published."""
    prior: Literal["uniform", "given"] = "uniform"
    """Whether the mean prediction should hold all classes alike (the paper), or as the site's labels do."""
    confidence_penalty: bool = False
    """Subtract the entropy in the warm-up, for asymmetric noise (eq. 2)."""

    def stages(self) -> list[Stage]:
        return [
            Stage("warm-up", self.warmup, self.warm, asks=(TrainPair,)),
            Stage("divide", self.rounds, self.divide, asks=(TrainDivided,)),
        ]

    def warm(self, state: PairState, federation: Federation) -> PairState:
        """Both networks train on the given labels."""
        loss = as_objective(plain_loss(federation))
        if self.confidence_penalty:
            loss = loss + -1.0 * Entropy()
        recipe = self.recipe(loss, epochs=self.warmup_epochs or self.local.epochs)
        visit = TrainPair(state.weights, recipe, twin=state.twin)
        return self.pair_round(federation, visit, federation.choose(self.fraction))

    def divide(self, state: PairState, federation: Federation) -> PairState:
        """One visit of Alg. 1 at some sites."""
        strength = self.strength(federation.round.index)
        federation.record(lambda_u=strength)
        visit = TrainDivided(
            state.weights,
            self.recipe(self.loss(strength), mixup=self.alpha),
            twin=state.twin,
            threshold=self.threshold,
            temperature=self.temperature,
            views=self.views,
            guarded=self.guarded,
            balanced=self.balanced,
        )
        return self.pair_round(federation, visit, federation.choose(self.fraction))

    def loss(self, strength: float) -> Objective:
        """L_x + lambda_u L_u + L_reg (eq. 12 with lambda_r = 1)."""
        return DividedTerm("labelled") + strength * DividedTerm("unlabelled") + ClassBalance(self.prior)

    def strength(self, index: int) -> float:
        """lambda_u in the round of this index, from 0 to its full size over the ramp."""
        return self.lambda_u * min(index / self.ramp, 1.0) if self.ramp else self.lambda_u

    def tiny(self) -> DivideMix:
        return replace(self, warmup=1, rounds=2, fraction=0.6, ramp=1)
