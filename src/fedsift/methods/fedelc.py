"""FedELC: Jiang et al., Tackling Noisy Clients in Federated Learning with End-to-end Label Correction, CIKM 2024; with
the switches of its successor MaskedOptim (2025)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from fedsift.contract import Federation, Stage
from fedsift.contract.ranges import AtLeastOne, AtLeastZero, Count, Positive, Rate, Share
from fedsift.local.recipe import Recipe
from fedsift.local.requests import Train
from fedsift.methods.base import ask_to_train, methods
from fedsift.methods.fedelc_site import LearntLabels, TrainLearningLabels, TrainScoring
from fedsift.methods.fednoro_parts import FedNoRoState, FindsNoisySites


@methods.register("fedelc")
@dataclass(frozen=True)
class FedELC(FindsNoisySites):
    """Find the noisy sites as FedNoRo does; there, learn a distribution over the classes for every label.

    The defaults are the released code's where that is safe. `form = "masked-optim"` is MaskedOptim.
    """

    summary: ClassVar[str] = "Finds noisy sites by per-class losses; learns their labels beside the network"
    paper: ClassVar[str] = "Jiang et al. 2024 (CIKM)"
    forms: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "released": {"statistics_on": "train", "label_batch": 0},
        "cifar-100": {"label_rate": 5000.0},
        "masked-optim": {
            "warm_up": 30,
            "beta": 0.1,
            "mask_keep": 0.8,
            "upload_mix": 0.8,
            "distance_aware": False,
            "aggregate": "geometric-median",
        },
    }
    usual_warm_up: ClassVar[int] = 20

    rounds: AtLeastOne = 120
    """T: rounds in all, warm-up included."""
    warm_up: Count | None = None
    """T_w: rounds before the noisy sites are sought; by itself 20, or half of all."""
    fraction: Share = 0.1
    """Share of the sites that train in a round; detection asks all of them."""

    alpha: AtLeastZero = 0.5
    """alpha: how much a learnt label holds on to the given one."""
    beta: AtLeastZero = 0.2
    """beta: weight of the entropy of the predictions."""
    class_scale: Literal["1/C", "1"] = "1/C"
    """Factor of the network's two terms: one over the number of classes (released code), or 1, with which the network
    learns as fast as at clean sites and labels move further."""
    label_rate: Positive = 1000.0
    """lambda: step of the learnt labels."""
    label_batch: Count = 64
    """A label's step is lambda divided by this, whatever the batch; 0: by the batch's own size (released code)."""
    label_scale: Positive = 10.0
    """K_u: a label as it starts, and a merged one, is softmax of so many times itself."""
    merge_weight: Rate = 0.5
    """Share of the learnt label when it is merged with the trained network's prediction."""

    mask_keep: Share = 1.0
    """Share of a batch, by rising cross-entropy, whose given labels have a say (MaskedOptim: 0.8)."""
    upload_mix: Share = 1.0
    """Share of the trained model in what a noisy site sends, the rest is the received one (MaskedOptim: 0.8)."""

    local: Recipe = field(
        default_factory=lambda: Recipe(epochs=5, batch_size=64, lr=0.01, momentum=0.9, weight_decay=5e-4),
        kw_only=True,
    )

    def stages(self) -> list[Stage]:
        robust = (TrainLearningLabels, TrainScoring)
        return [
            Stage("warm up", self.t_1, self.train_alike, asks=(Train,)),
            Stage("find noisy sites", 1, self.find_noisy_sites, asks=self.sought, trains=False),
            Stage("label correction", self.rounds - self.t_1, self.correct_labels, asks=robust),
        ]

    def participants(self, federation: Federation) -> list[str]:
        return federation.choose(self.fraction)

    def correct_labels(self, state: FedNoRoState, federation: Federation) -> FedNoRoState:
        """Labels are learnt at noisy sites, clean ones train as before; then FedNoRo's aggregation."""
        requests = {
            site: self.at_noisy_site(state) if site in state.noisy else self.at_clean_site(state)
            for site in self.participants(federation)
        }
        replies = ask_to_train(federation, requests)
        return replace(state, weights=self.weigh(state, replies, federation))

    def at_clean_site(self, state: FedNoRoState) -> Train:
        """Cross-entropy on z + log pi_k, as in the warm-up."""
        return TrainScoring(state.weights, self.recipe(self.adjusted()))

    def at_noisy_site(self, state: FedNoRoState) -> Train:
        """KL(p || d) / C + alpha (-log d_y) + beta H(p) / C, without logit adjustment; u follows its own gradient."""
        loss = LearntLabels(
            self.alpha,
            self.beta,
            self.class_scale,
            self.label_rate,
            self.label_batch,
            self.label_scale,
            self.mask_keep,
        )
        return TrainLearningLabels(
            state.weights,
            self.recipe(loss),
            merge_weight=self.merge_weight,
            start=self.label_scale,
            upload_mix=self.upload_mix,
        )

    def tiny(self) -> FedELC:
        return replace(self, rounds=3, warm_up=1, fraction=1.0)
