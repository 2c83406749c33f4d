"""RoFL: Yang et al., Robust Federated Learning with Noisy Labels, IEEE Intelligent Systems 2022."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from fedsift.core.ranges import AtLeastZero, Count, Range, Rate
from fedsift.formulas import losses
from fedsift.methods._base import OneStage, ask_to_train, methods, oracle_note
from fedsift.methods._forgetting import FORGOTTEN, MEMORY, NEEDS, forget_rate, forgetting, judge, note
from fedsift.protocol.federation import Federation, Replies
from fedsift.protocol.messages import Reply, SiteFacts, Weights, disclosed
from fedsift.protocol.method import Asks, State
from fedsift.protocol.site import Site
from fedsift.training.job import TrainingResult
from fedsift.training.objective import Extra, PerSample, PerSite, Term, View
from fedsift.training.predict import features_of, site_logits
from fedsift.training.recipe import Recipe
from fedsift.training.requests import Train, Trained

# RoFL's class centroids: features are `[..., B, F]`, centroids `[..., K, F]`, over the last axes
# ------------------------------------------------------------------------------


def class_means(features: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Mean feature of each class, `[..., B, F], [..., B, K], [..., B] -> [..., K, F]`; zeros for one without.

    labels: one-hot rows; weights: 1 for samples that count, 0 for others.
    """
    members = labels * weights.unsqueeze(-1)
    return members.transpose(-1, -2) @ features / members.sum(-2).clamp(min=1).unsqueeze(-1)


def cosines(features: Tensor, centroids: Tensor) -> Tensor:
    """Cosine of every sample with every centroid, `[..., B, F], [..., K, F] -> [..., B, K]`; 0 with a zero vector."""
    return F.normalize(features, dim=-1) @ F.normalize(centroids, dim=-1).transpose(-1, -2)


def followed(centroids: Tensor, seen: Tensor) -> Tensor:
    """(1 - s^2) f + s^2 g of each class's centroid f and the batch's mean g, s their cosine (RoFL eq. 4).

    A class that the batch lacks has g = 0, hence s = 0, and stays: `[..., K, F] -> [..., K, F]`.
    """
    s = F.cosine_similarity(centroids, seen, dim=-1).square().unsqueeze(-1)
    return (1 - s) * centroids + s * seen


def distances(features: Tensor, centroids: Tensor, labels: Tensor) -> Tensor:
    """||phi(x) - f_y||^2 of each sample and its centroid, `[..., B, F], [..., K, F], [..., B, K] -> [..., B]`."""
    return (features - labels.to(centroids.dtype) @ centroids).square().sum(-1)


def common_centroids(previous: Tensor | None, own: Tensor) -> Tensor:
    """f_G = sum_k s_k f_k / sum_k s_k with s_k = max(0, cos(f_G, f_k)), for each class (RoFL eq. 5).

    own: the sites' centroids, `[S, K, F]`, zeros for a class that a site never saw. previous: f_G of the round before,
    `[K, F]`; before the first round, and where no site points the same way, the mean over those that have the class.
    """
    held = (own.abs().sum(-1) > 0).to(own.dtype)
    plain = held / held.sum(0).clamp(min=1)
    if previous is None:
        shares = plain
    else:
        similar = F.cosine_similarity(own, previous.unsqueeze(0), dim=-1).clamp(min=0) * held
        total = similar.sum(0)
        shares = torch.where(total > 1e-6, similar / total.clamp(min=1e-6), plain)
    merged = (shares.unsqueeze(-1) * own).sum(0)
    if previous is None:
        return merged
    return torch.where(held.sum(0).unsqueeze(-1) > 0, merged, previous)


# RoFL at a site: samples of small loss whose features lie with their label's class; for the others
# the global model's label; and class centroids that follow
# ------------------------------------------------------------------------------

NAME = "rofl"
CENTROIDS, PSEUDO = "rofl centroids", "rofl pseudo labels"
"""What the term below needs: f_k `[K, F]`, and the received model's labels `[n, K]`."""


@dataclass(frozen=True)
class RobustTerm(Term):
    """CE over small-loss samples + lambda_cen ||phi - f_y||^2 over those in place + lambda_e entropy (RoFL section 3).

    S: the floor((1 - R) B) samples of smallest loss. A sample is in place where the centroid nearest to its feature, by
    cosine, is that of its given label; it then keeps this label, and the others take the global model's.
    """

    needs: ClassVar[frozenset[str]] = NEEDS | {"features", CENTROIDS, PSEUDO}

    lambda_cen: float = 1.0
    lambda_e: float = 0.8
    pull: bool = True
    total: bool = False

    def memory(self, classes: int) -> Mapping[str, tuple[int, ...]]:
        return MEMORY

    def value(self, view: View) -> Tensor:
        assert view.features is not None
        phi, given, centroids = view.features, view.target, view.site(CENTROIDS)
        seen, fixed = phi.detach(), centroids.to(phi.dtype)
        loss = losses.cross_entropy(view.logits, given)
        chosen = losses.small_loss(loss, view.site(FORGOTTEN), view.present)
        nearest = F.one_hot(cosines(seen, fixed).argmax(-1), given.shape[-1]).to(given.dtype)
        in_place = (nearest * given).sum(-1)
        label = torch.where(in_place.unsqueeze(-1) > 0, given, view.rows(PSEUDO))
        apart = distances(phi if self.pull else seen, fixed, given) * in_place
        fit = losses.cross_entropy(view.logits, label) + self.lambda_e * losses.entropy(view.logits)
        count = chosen.sum(-1).clamp(min=1)
        away = (apart * chosen).sum(-1) / (1 if self.total else count * phi.shape[-1])
        note(view, loss)
        view.keep(CENTROIDS, followed(fixed, class_means(seen, label, chosen)).to(centroids.dtype))
        return (fit * chosen).sum(-1) / count + self.lambda_cen * away


@dataclass(frozen=True)
class RobustlyTrained(Trained):
    """A trained model and the site's centroids."""

    centroids: Tensor = disclosed(
        "mean feature of each class over the site's own samples, [K, F]; zeros for a class "
        "that it never saw, or less often than its minimum count",
        "features",
        default_factory=lambda: torch.zeros(0, 0),
    )

    def refusal(self, request: TrainRobustly, facts: SiteFacts) -> str | None:  # type: ignore[override]
        oracle_note, sent = self.centroids, request.centroids
        wanted = sent.shape if sent is not None else (request.classes, request.weights["head.weight"].shape[1])
        if oracle_note.shape != tuple(wanted) or oracle_note.dtype != torch.float32:
            return f"the centroids have shape {tuple(oracle_note.shape)}, asked were {tuple(wanted)}"
        return super().refusal(request, facts)


@dataclass(frozen=True)
class TrainRobustly(Train):
    """Train on small-loss samples beside the class centroids; then judge anew how many labels are wrong."""

    reply_type: ClassVar[type[Reply]] = RobustlyTrained

    classes: int = 0
    centroids: Tensor | None = None
    """f_G, `[K, F]`; None: begin with the class means of the given labels under the received model."""
    refine: bool = False
    """Give samples out of place the received model's label; before, they keep their own."""
    sure: float = 0.0
    """But only where the model holds that label for likelier than this."""
    guarded: bool = True
    """And the given one for implausible."""
    ramp: float = 1.0
    """R(t) / forget: how much of the noise rate is left out by now."""
    forget: float | None = None
    """The noise rate; None: what the site itself estimated at its last visit, nothing before the first."""

    def extras(self, site: Site) -> dict[str, Extra]:
        given = F.one_hot(site.labels, site.n_classes).float()
        pseudo = given
        if self.refine:
            p = F.softmax(site_logits(site, self.weights), dim=-1)
            top, label = p.max(-1)
            oracle_note = F.one_hot(label, site.n_classes).float()
            replaced = (top > self.sure) & ~(self.guarded & plausible(p, site.labels))
            pseudo = torch.where(replaced.unsqueeze(-1), oracle_note, given)
        return {
            **forgetting(site, self.ramp, self.forget),
            CENTROIDS: PerSite(first_centroids(site, self.weights) if self.centroids is None else self.centroids),
            PSEUDO: PerSample(pseudo),
        }

    def reply(self, site: Site, result: TrainingResult | None) -> RobustlyTrained:
        """The noise rate is estimated anew (`methods/_forgetting.py`)."""
        trained = super().reply(site, result)
        assert result is not None
        judge(site, NAME, result)
        few = site.label_counts() < site.min_count
        centroids = result.learnt[CENTROIDS].float().masked_fill(few.unsqueeze(-1), 0.0)
        return RobustlyTrained(trained.weights, trained.samples, trained.loss, trained.then, centroids)


def plausible(probabilities: Tensor, labels: Tensor) -> Tensor:
    """Whether a label is in the upper half of the classes by probability, `[n, K], [n] -> [n]`; of two, the likelier.

    The right class of a sample ranks high with any model that has learnt something, if not first: of what such a model
    holds for second or third it cannot say that it is wrong.
    """
    classes = probabilities.shape[-1]
    own = probabilities.gather(-1, labels.unsqueeze(-1))
    return (probabilities > own).sum(-1) < classes - classes // 2


def first_centroids(site: Site, weights: Weights) -> Tensor:
    """Class means of the given labels under this model, float32 `[K, F]`."""
    features, _ = features_of(site.network(weights), site.samples)
    given = F.one_hot(site.labels, site.n_classes).to(features.dtype)
    return class_means(features, given, torch.ones(len(features))).float()


@dataclass(frozen=True)
class RoFLState(State):
    """The global model and the common class centroids f_G."""

    centroids: Tensor | None = None
    """`[K, F]`; None before the first round."""


@methods.register("rofl")
@dataclass(frozen=True)
class RoFL(OneStage):
    """Sites share class centroids beside the model: labels that do not lie with their class's centroid are replaced.

    The defaults are the method as described; `form = "released"` is the code that comparisons ran.
    """

    summary: ClassVar[str] = "Small-loss samples, class centroids shared by all sites, labels from the global model"
    paper: ClassVar[str] = "Yang et al. 2022; FedCorr Tables 2-5"
    forms: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "released": {
            "pull": False,
            "total": True,
            "by_size": False,
            "forget": 0.2,
            "sure": 0.0,
            "guarded": False,
        },
    }

    forget: Annotated[float, Range(0, 1, below=True)] | None = None
    """Share of a batch that is left out in the end, the noise rate. None: each site estimates its own from its losses.
    A number is one for all (0.2 as released); one that comes from the truth is an oracle, and the run says so."""
    forget_rounds: Count = 10
    """Rounds over which that share grows from 0, linearly."""
    pseudo_from: Count | None = None
    """T_pl: round from which the global model labels samples out of place; by itself after a tenth of all, but
    no fewer than 10, or half."""
    sure: Rate = 0.5
    """Probability above which the global model's label replaces one out of place. 0 always does, as published: a weak
    model then teaches itself, and may end with one answer for all."""
    guarded: bool = True
    """Replace a label only where the global model ranks it in the lower half of the classes. Off is as published: all
    labels out of place are replaced, which for a model that is right half of the time are mostly right ones."""
    lambda_cen: AtLeastZero = 1.0
    """lambda_cen: weight of the distance to the own class's centroid; grows linearly until T_pl."""
    lambda_e: AtLeastZero = 0.8
    """lambda_e: weight of the entropy of the predictions."""
    pull: bool = True
    """Let the distance to the centroid move the features. In the released code it cannot: they are cut off."""
    total: bool = False
    """Sum the distance over samples and features, as released; otherwise it is their mean."""
    by_size: bool = True
    """Weigh sites by their size in the average; off counts all alike, as released."""

    local: Recipe = field(
        default_factory=lambda: Recipe(epochs=5, batch_size=50, lr=0.25, momentum=0.5, weight_decay=1e-4),
        kw_only=True,
    )

    @property
    def oracle(self) -> str | None:
        return oracle_note(None if self.forget is None else f"noise rate {self.forget:g} given", super().oracle)

    @property
    def t_pl(self) -> int:
        """Rounds before T_pl."""
        return max(self.rounds // 10, min(10, self.rounds // 2)) if self.pseudo_from is None else self.pseudo_from

    @property
    def asks(self) -> Asks:
        return (TrainRobustly,)

    def begin(self, federation: Federation, weights: Weights) -> RoFLState:
        return RoFLState(weights)

    def train(self, state: RoFLState, federation: Federation) -> RoFLState:
        """Sites train beside the common centroids and send theirs; both are averaged."""
        t = federation.round.index
        grown = min(1.0, t / self.t_pl) if self.t_pl else 1.0
        recipe = self.recipe(RobustTerm(self.lambda_cen * grown, self.lambda_e, self.pull, self.total))
        request = TrainRobustly(
            state.weights,
            recipe,
            classes=len(federation.classes),
            centroids=state.centroids,
            refine=t >= self.t_pl,
            sure=self.sure,
            guarded=self.guarded,
            ramp=forget_rate(t, 1.0, self.forget_rounds),
            forget=self.forget,
        )
        chosen = self.choose(state, federation)
        replies = ask_to_train(federation, request, chosen)
        own = torch.stack([reply.centroids for reply in cast("Replies[RobustlyTrained]", replies).values()])
        return replace(
            state,
            weights=self.merged(replies, state.weights) if self.by_size else self.alike(replies, state.weights),
            centroids=common_centroids(state.centroids, own),
        )

    def alike(self, replies: Replies[Any], start: Weights) -> Weights:
        return self.merge([reply.weights for reply in replies.values()], [1.0] * len(replies), start)

    def tiny(self) -> RoFL:
        return replace(self, rounds=3, pseudo_from=2, forget_rounds=1)
