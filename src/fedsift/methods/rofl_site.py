"""RoFL at a site: samples of small loss whose features lie with their label's class; for the others the global model's
label; and class centroids that follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedsift.contract.messages import Reply, SiteFacts, Weights, disclosed
from fedsift.local import losses
from fedsift.local.extras import Extra, PerSample, PerSite
from fedsift.local.forgetting import FORGOTTEN, MEMORY, NEEDS, forgetting, judge, note
from fedsift.local.objective import Term, View
from fedsift.local.predict import features_of, site_logits
from fedsift.local.requests import Train, Trained
from fedsift.local.site import Site
from fedsift.local.trainer import Result

NAME = "rofl"
CENTROIDS, PSEUDO = "rofl centroids", "rofl pseudo labels"
"""What the term below needs: f_k `[K, F]`, and the received model's labels `[n, K]`."""


@dataclass(frozen=True)
class Robust(Term):
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
        nearest = F.one_hot(losses.cosines(seen, fixed).argmax(-1), given.shape[-1]).to(given.dtype)
        in_place = (nearest * given).sum(-1)
        label = torch.where(in_place.unsqueeze(-1) > 0, given, view.rows(PSEUDO))
        apart = losses.distances(phi if self.pull else seen, fixed, given) * in_place
        fit = losses.cross_entropy(view.logits, label) + self.lambda_e * losses.entropy(view.logits)
        count = chosen.sum(-1).clamp(min=1)
        away = (apart * chosen).sum(-1) / (1 if self.total else count * phi.shape[-1])
        note(view, loss)
        view.keep(
            CENTROIDS, losses.followed(fixed, losses.class_means(seen, label, chosen)).to(centroids.dtype)
        )
        return (fit * chosen).sum(-1) / count + self.lambda_cen * away


@dataclass(frozen=True)
class RobustlyTrained(Trained):
    """A trained model and the site's centroids."""

    centroids: Tensor = disclosed(
        "mean feature of each class over the site's own samples, [K, F]; zeros for a class "
        "that it never saw, or less often than its floor",
        default_factory=lambda: torch.zeros(0, 0),
    )

    def refusal(self, request: TrainRobustly, facts: SiteFacts) -> str | None:  # type: ignore[override]
        told, sent = self.centroids, request.centroids
        wanted = (
            sent.shape if sent is not None else (request.classes, request.weights["head.weight"].shape[1])
        )
        if told.shape != tuple(wanted) or told.dtype != torch.float32:
            return f"the centroids have shape {tuple(told.shape)}, asked were {tuple(wanted)}"
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
            told = F.one_hot(label, site.n_classes).float()
            replaced = (top > self.sure) & ~(self.guarded & plausible(p, site.labels))
            pseudo = torch.where(replaced.unsqueeze(-1), told, given)
        return {
            **forgetting(site, self.ramp, self.forget),
            CENTROIDS: PerSite(
                first_centroids(site, self.weights) if self.centroids is None else self.centroids
            ),
            PSEUDO: PerSample(pseudo),
        }

    def reply(self, site: Site, result: Result | None) -> RobustlyTrained:
        """The noise rate is estimated anew (signals/noise_rate.py)."""
        trained = super().reply(site, result)
        assert result is not None
        judge(site, NAME, result)
        few = site.label_counts() < site.smallest
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
    return losses.class_means(features, given, torch.ones(len(features))).float()
