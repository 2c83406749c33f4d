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
from fedsift.local.objective import Term, View
from fedsift.local.predict import features_of, site_logits
from fedsift.local.requests import Train, Trained
from fedsift.local.site import Site
from fedsift.local.trainer import Result
from fedsift.signals.noise_rate import noise_rate

NAME = "rofl"
LOSSES = "rofl losses"
"""The notebook page of each sample's loss when it was last trained on, `[n]`."""
SURENESS = "rofl sureness"
"""The notebook page of each sample's largest probability then, and whether that was the given label's: `[n, 2]`."""
ESTIMATE = "rofl noise rate"
"""The notebook page of the site's own estimate of its noise rate."""
FORGOTTEN, CENTROIDS, PSEUDO = "rofl forgotten share", "rofl centroids", "rofl pseudo labels"
"""What the term below needs: R(t), f_k `[K, F]`, and the received model's labels `[n, K]`."""


@dataclass(frozen=True)
class Robust(Term):
    """CE over small-loss samples + lambda_cen ||phi - f_y||^2 over those in place + lambda_e entropy (RoFL section 3).

    S: the floor((1 - R) B) samples of smallest loss. A sample is in place where the centroid nearest to its feature, by
    cosine, is that of its given label; it then keeps this label, and the others take the global model's.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"features", FORGOTTEN, CENTROIDS, PSEUDO, LOSSES, SURENESS})

    lambda_cen: float = 1.0
    lambda_e: float = 0.8
    pull: bool = True
    total: bool = False

    def memory(self, classes: int) -> Mapping[str, tuple[int, ...]]:
        return {LOSSES: (), SURENESS: (2,)}

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
        view.keep(LOSSES, loss)
        view.keep(SURENESS, losses.sureness(view.logits, given))
        view.keep(
            CENTROIDS, losses.followed(fixed, losses.class_means(seen, label, chosen)).to(centroids.dtype)
        )
        return (fit * chosen).sum(-1) / count + self.lambda_cen * away


@dataclass(frozen=True)
class RobustlyTrained(Trained):
    """A trained model and the site's centroids."""

    centroids: Tensor = disclosed(
        "mean feature of each class over the site's own samples, [K, F]; zeros for a class it never saw",
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
    ramp: float = 1.0
    """R(t) / forget: how much of the noise rate is left out by now."""
    forget: float | None = None
    """The noise rate; None: what the site itself estimated at its last visit, nothing before the first."""

    def extras(self, site: Site) -> dict[str, Extra]:
        rate = site.notebook.get(ESTIMATE, 0.0) if self.forget is None else self.forget
        given = F.one_hot(site.labels, site.n_classes).float()
        pseudo = given
        if self.refine:
            top, label = F.softmax(site_logits(site, self.weights), dim=-1).max(-1)
            told = F.one_hot(label, site.n_classes).float()
            pseudo = torch.where((top > self.sure).unsqueeze(-1), told, given)
        return {
            FORGOTTEN: PerSite(torch.tensor(self.ramp * rate, dtype=torch.float64)),
            CENTROIDS: PerSite(
                first_centroids(site, self.weights) if self.centroids is None else self.centroids
            ),
            PSEUDO: PerSample(pseudo),
        }

    def reply(self, site: Site, result: Result | None) -> RobustlyTrained:
        """The noise rate is estimated anew (signals/noise_rate.py)."""
        trained = super().reply(site, result)
        assert result is not None
        seen = result.rows[LOSSES]
        flagged = torch.zeros(len(seen), dtype=torch.bool)
        rate, noisy = noise_rate(seen, *result.rows[SURENESS].unbind(-1))
        flagged[torch.from_numpy(noisy)] = True
        site.notebook[ESTIMATE] = rate
        site.keep_evidence(NAME, suspicion=seen, flagged=flagged)
        return RobustlyTrained(
            trained.weights, trained.samples, trained.loss, trained.then, result.learnt[CENTROIDS].float()
        )


def first_centroids(site: Site, weights: Weights) -> Tensor:
    """Class means of the given labels under this model, float32 `[K, F]`."""
    features, _ = features_of(site.network(weights), site.samples)
    given = F.one_hot(site.labels, site.n_classes).to(features.dtype)
    return losses.class_means(features, given, torch.ones(len(features))).float()
