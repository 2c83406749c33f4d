"""FedNoRo: Wu et al., Towards Noise-Robust Federated Learning by Addressing Class Imbalance and Label Noise
Heterogeneity, IJCAI 2023."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from fedsift.contract import Federation, Stage
from fedsift.contract.ranges import Positive, Rate
from fedsift.local.objective import Distillation, Objective, as_objective
from fedsift.local.recipe import Recipe
from fedsift.local.requests import Train
from fedsift.methods.base import methods, train_round
from fedsift.methods.fednoro_parts import FedNoRoState, FindsNoisySites
from fedsift.signals.rampup import rampup


@methods.register("fednoro")
@dataclass(frozen=True)
class FedNoRo(FindsNoisySites):
    """Warm up, find the noisy sites by their per-class losses, then train them by distillation and trust them less.

    The defaults are what produced the published tables (the released code) where that is safe; `form = "printed"` is
    the method as printed, `form = "released"` the code to the letter.
    """

    summary: ClassVar[str] = "Finds noisy sites by per-class losses; distils at them, weighs them by distance"
    paper: ClassVar[str] = "Wu et al. 2023 (IJCAI)"
    instead: ClassVar[Mapping[str, str]] = {"multilabel": "fednoro-ml"}
    forms: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "printed": {"distance": "l2", "include_buffers": False, "votes": 1, "noisy_by": "norm"},
        "released": {"statistics_on": "train", "absent": "zero"},
    }

    temperature: Positive = 0.8
    """T: of the teacher alone, eq. 4."""
    lambda_max: Rate = 0.8
    """lambda_max: final weight of the distillation term, eq. 5."""
    ramp_begin: int | None = None
    """Round at which lambda starts to grow; T_1 by default."""
    ramp_end: int | None = None
    """Round at which lambda is lambda_max; by default after half of all rounds, 49 for the published 100."""
    adjust_teacher: bool = False
    """Adjust the teacher's logits by the site's prior too. As published only the student's are, which pushes rare
    classes up at every distilling site; where most sites distil and classes are very uneven, that runs away."""
    absent: Literal["masked", "zero", "renormalise"] = "masked"
    """Classes that a site lacks, in the distillation term: left out; as released (same gradient); or left out with the
    teacher rescaled."""

    distillation: bool = True
    """L_KL at noisy sites (Table 4)."""
    use_noisy_sites: bool = True
    """False trains on the clean sites alone in stage 2 (Table 4)."""

    local: Recipe = field(
        default_factory=lambda: Recipe(batch_size=16, optimiser="adam", lr=3e-4, weight_decay=5e-4),
        kw_only=True,
    )

    def stages(self) -> list[Stage]:
        return [
            Stage("warm up", self.t_1, self.train_alike, asks=(Train,)),
            Stage("find noisy sites", 1, self.find_noisy_sites, asks=self.sought, trains=False),
            Stage("robust training", self.rounds - self.t_1, self.train_robustly, asks=(Train,)),
        ]

    # Stage 2, section 4.2 ------------------------------------------------------------------------------------------

    def train_robustly(self, state: FedNoRoState, federation: Federation) -> FedNoRoState:
        """Cross-entropy at clean sites, eq. 5 at noisy ones, then distance-aware aggregation."""
        t = self.t_1 + federation.round.index
        share = self.distillation_share(t)
        recipes = {
            site: self.recipe(self.at_noisy_site(share) if site in state.noisy else self.adjusted())
            for site in self._participants(state, federation)
        }
        replies = train_round(federation, state.weights, recipes)
        federation.record(distillation_share=share)
        return replace(state, weights=self.weigh(state, replies, federation))

    def _participants(self, state: FedNoRoState, federation: Federation) -> list[str]:
        if self.use_noisy_sites:
            return federation.sites
        clean = [site for site in federation.sites if site not in state.noisy]
        if not clean:
            federation.warn("every site was found noisy: all of them train")
        return clean or federation.sites

    def distillation_share(self, t: int) -> float:
        """lambda at round t: a Gaussian ramp-up to lambda_max."""
        begin = self.t_1 if self.ramp_begin is None else self.ramp_begin
        end = max(begin, self.rounds // 2 - 1) if self.ramp_end is None else self.ramp_end
        return rampup(t, begin, end, self.lambda_max) if self.distillation else 0.0

    def at_noisy_site(self, share: float) -> Objective:
        """L = lambda L_KL(y_p, y_G) + (1 - lambda) L_CE(y_p, y), eq. 5; the teacher is the received global model."""
        if not self.distillation:
            return as_objective(self.adjusted())
        teacher = Distillation(self.temperature, self.tau, self.adjust_teacher, self.absent)
        return share * teacher + (1 - share) * self.adjusted()

    def tiny(self) -> FedNoRo:
        return replace(self, rounds=3, warm_up=1, ramp_begin=None, ramp_end=None)
