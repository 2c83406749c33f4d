"""FedCorr's settings: the paper's symbols, its printed and released forms, and what follows from the federation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self

from fedsift.contract import FederationFacts, Misfit
from fedsift.contract.ranges import AtLeastOne, AtLeastZero, Count, Rate, Share
from fedsift.local.recipe import Recipe
from fedsift.methods.base import OneStage, mixture_misfits, tested_for_own_labels, told
from fedsift.methods.fedavg import FedAvg
from fedsift.methods.fedcorr_site import Belief, SampleLoss
from fedsift.methods.fedla import FedLA
from fedsift.methods.in_turn import VisitsInTurn
from fedsift.signals.late_joiners import Score
from fedsift.signals.lid import Form as LidForm
from fedsift.signals.relabel import Form

SITES_A_ROUND = 10
"""gamma N of the paper's CIFAR-10 federation: a smaller one trains with all of its sites."""
FINE_TUNINGS, USUAL_TRAININGS = 50, 45
"""How often a site trains in stages 2 and 3 of the paper: T_2 gamma = 500 x 0.1 and T_3 gamma = 450 x 0.1."""


@dataclass(frozen=True)
class FedCorrSettings(VisitsInTurn):
    """Everything that can be set; `FedCorr` is the algorithm."""

    summary: ClassVar[str] = "Finds noisy sites by LID, corrects their labels there, then trains as usual"
    paper: ClassVar[str] = "Xu et al. 2022 (CVPR)"
    forms: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "printed": {
            "sample_loss": "ce",
            "prox_power": 2,
            "prox_first_batch": True,
            "mixup_stages": "first",
            "relabel_form": "paper",
            "rank_by": "global",
            "relabel_after": "above kappa",
        },
        "released": {
            "stage1_replace": True,
            "statistics_on": "train",
            "lid_form": "official",
            "score": "cumulative",
        },
        "la": {"adjust": 1.0},
    }
    lasting: ClassVar[Mapping[str, tuple[str, ...]]] = {"usual": ("rounds", "fraction")}
    renamed: ClassVar[Mapping[str, str]] = {
        "usual_lr": "usual = {name = ..., train = {lr = ...}}",
        "feddyn_alpha": 'usual = {name = "feddyn", alpha = ...}',
        "feddyn_decay": 'usual = {name = "feddyn", decay = ...}',
        "poc_pool": 'usual = {name = "poc", pool = ...}',
        "usual": 'a table such as usual = {name = "fedmedian"}',
    }

    stage1_replace: bool = False
    """Draw a visit's sites with replacement, as released: with several sites a visit, some are missed."""
    fine_tuning_rounds: Count | None = None
    """T_2: rounds on the clean sites; by itself 50 / gamma (500 in the paper)."""
    usual_rounds: Count | None = None
    """T_3: rounds on all sites; by itself 45 / gamma (450 in the paper)."""
    fraction: Share | None = None
    """gamma: share of all sites that train in a round of the last two stages; by itself 10 sites, or all."""

    beta: AtLeastZero = 5.0
    """beta: weight of the proximal term beta mu_hat_k ||w - w_g||, eq. 5; 0 leaves it out (Table 6)."""
    prox_power: Literal[1, 2] = 1
    """The norm (released code) or its square (paper, eq. 5)."""
    prox_first_batch: bool = False
    """Keep the proximal term on the first batch of every local epoch; the released code leaves it out."""
    mixup: AtLeastZero = 1.0
    """alpha of mixup's Beta(alpha, alpha)."""
    mixup_stages: Literal["all", "first", "none"] = "all"
    """Where mixup is on: everywhere (released code), in the first stage (paper), nowhere (Table 6)."""
    adjust: AtLeastZero = 0.0
    """tau: strength of logit adjustment in local training; 1 is FedCorr+LA of FedNoRo's tables (`form = "la"`)."""

    lid_k: AtLeastOne = 20
    """k: neighbours of the LID estimate, eq. 2."""
    lid_form: LidForm = "guarded"
    """"guarded" counts the neighbours there are and caps estimates; "official" and "paper" as they are."""
    lid_floor: AtLeastZero = 0.0
    """Smaller distances count as this one. 0, as released: a prediction that has a duplicate scores 0."""
    score: Score = "completed"
    """What the mixture over sites sees: the cumulative LID with missed iterations filled in; as published
    ("cumulative"), which lets a newcomer pass as clean; "mean"; or the "latest" LID (Fig. 3 left)."""
    joins: dict[str, int] = field(default_factory=dict)
    """Iteration (from 1) from which a site takes part in the first stage; the others do from the start."""
    detection: Literal["paper", "tested"] | None = None
    """Two components always ("paper"), or only where one group is refuted ("tested", by itself for own labels)."""
    false_alarm: Rate = 0.05
    """Of "tested": chance of naming any site in a clean federation, over all iterations together."""
    statistics_on: Literal["eval", "train"] = "eval"
    """Measure on the images as they are, or augmented as in training (the released code)."""

    sample_loss: SampleLoss = "ce_on_softmax"
    """Loss that splits and ranks a site's samples: of the softmax's softmax (released code) or plain."""
    correction: bool = True
    """Relabel at all (Table 6)."""
    ratio: Rate = 0.5
    """pi: share of the noisy samples, by falling loss, that may be relabelled in an iteration."""
    theta: Rate = 0.5
    """theta: confidence of the global model above which it relabels, eq. 7."""
    relabel_form: Form = "official"
    """"official" ranks the whole site and needs p > theta; "paper" ranks D_n and needs p >= theta."""
    rank_by: Literal["local", "global"] = "local"
    """Rank by the local model's losses (released code) or the global model's (paper, eq. 6)."""

    relabel_by: Belief = "argmax"
    """What eq. 7 reads a new label from: the global model's prediction, or (ours) the audit's posterior of the true
    label, which also weighs the given label and how often the site errs."""

    fine_tuning: bool = True
    """Stage 2 at all (Table 6)."""
    kappa: Rate = 0.1
    """kappa: largest estimated noise level of a site to fine-tune on."""
    relabel_after: Literal["mixture", "above kappa"] = "mixture"
    """Sites relabelled after fine-tuning: the last mixture's noisy ones (released code), or those with
    mu_hat > kappa (paper)."""

    usual_training: bool = True
    """Stage 3 at all (Table 6)."""
    usual: OneStage | None = None
    """Method of stage 3, a table with its `name` (Fig. 4); its rounds and fraction are those above, its recipe is
    the study's with `train = {...}` over it. By itself FedAvg, with `adjust` and `aggregate` of the other stages."""

    local: Recipe = field(
        default_factory=lambda: Recipe(epochs=5, batch_size=10, lr=0.03, momentum=0.5), kw_only=True
    )

    def completed(self, facts: FederationFacts) -> Self:
        """One site a visit; ten sites a round of the later stages, or all where there are fewer, and as many
        rounds as let each site train as often as in the paper."""
        done = replace(super().completed(facts), detection=tested_for_own_labels(self.detection, facts))
        if facts.sites is None:
            return done
        gamma = min(1.0, SITES_A_ROUND / facts.sites) if self.fraction is None else self.fraction
        return replace(
            done,
            fraction=gamma,
            fine_tuning_rounds=replace(self, fraction=gamma).tuning_rounds,
            usual_rounds=replace(self, fraction=gamma).last_rounds,
        )

    def misfits(self, facts: FederationFacts) -> Iterator[Misfit]:
        yield from super().misfits(facts)
        yield from mixture_misfits(facts)
        if facts.classes == 2:
            yield Misfit(
                "two classes leave its measure blind: predictions lie on a line, their dimensionality is "
                "about 1 at every site, clean or noisy"
            )
        if any(samples <= self.lid_k for samples in facts.samples):
            yield Misfit(f"sites with {self.lid_k} samples or fewer give a coarse LID")

    @property
    def oracle(self) -> str | None:
        return told(super().oracle, self.usual.oracle if self.usual is not None else None)

    @property
    def gamma(self) -> float:
        return 0.1 if self.fraction is None else self.fraction

    @property
    def tuning_rounds(self) -> int:
        """T_2."""
        wanted = self.fine_tuning_rounds
        return round(FINE_TUNINGS / self.gamma) if wanted is None else wanted

    @property
    def last_rounds(self) -> int:
        """T_3."""
        return round(USUAL_TRAININGS / self.gamma) if self.usual_rounds is None else self.usual_rounds

    def last_method(self) -> OneStage:
        """The method of stage 3, with this one's rounds, fraction and mixup, and its recipe unless it has its own."""
        rule: dict[str, Any] = {"aggregate": self.aggregate, "hostile": self.hostile}
        usual = self.usual or (FedLA(tau=self.adjust, **rule) if self.adjust else FedAvg(**rule))
        local = usual.local if usual.local != type(usual)().local else self.local
        local = replace(local, mixup=self.mixup if self.mixup_stages == "all" else 0.0)
        # a stage of no rounds is left out by `stages`; a method of no rounds is refused
        return replace(usual, rounds=max(self.last_rounds, 1), fraction=self.gamma, local=local)
