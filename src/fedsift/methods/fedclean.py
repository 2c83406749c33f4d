"""FedClean: Jiang and Zhang, FedClean: A General Robust Label Noise Correction for Federated Learning, ICML 2025."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

from fedsift.contract import Federation, Findings, Replies, Request, Stage, State, Weights
from fedsift.contract.ranges import AtLeastOne, AtLeastZero, Count, Range, Rate, Share
from fedsift.local.objective import CrossEntropy
from fedsift.local.recipe import Recipe
from fedsift.local.requests import Train
from fedsift.methods.base import Averaging, ask_to_train, methods
from fedsift.methods.co_teaching import CoTeaching
from fedsift.methods.fedclean_site import (
    Counted,
    Part,
    SettleByAgreement,
    SettleByModel,
    SortByOwnLearner,
    TrainOnParts,
)
from fedsift.methods.joint_opt import JointOpt

NOBODY = 0.01
"""Where no site disputes more than this share of its labels, the local learners may have learnt them by heart."""


@dataclass(frozen=True)
class FedCleanState(State):
    """The global model, and who takes part."""

    sorted: tuple[str, ...] = ()
    """Sites that have parted their labels; one that missed it has no right labels to train on."""


@methods.register("fedclean")
@dataclass(frozen=True)
class FedClean(Averaging):
    """Each site first learns alone, robustly, and disputes labels; twice the global model then settles disputes.

    No site is taken for clean: it is made for federations in which all are noisy.
    """

    summary: ClassVar[str] = (
        "Sites dispute labels by learners of their own; the global model settles them in two steps"
    )
    paper: ClassVar[str] = "Jiang and Zhang 2025 (ICML)"
    forms: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "fedclean-1": {"cnll": "co-teaching"},
        "clothing1m": {
            "rounds_1": 50,
            "rounds_2": 100,
            "rounds_3": 100,
            "fraction": 0.02,
            "sigma_1": 0.8,
            "sigma_2": 0.8,
            "epsilon": 0.9,
        },
    }

    cnll: Literal["joint-opt", "co-teaching", "none"] = "joint-opt"
    """The central method by which a site learns alone: FedClean^2, FedClean^1, or plain training (Table 5)."""
    cnll_epochs: AtLeastOne = 50
    """Epochs of it. Longer training learns wrong labels by heart, and nothing is disputed."""
    cnll_warm: Count = 10
    """Epochs of plain training before JointOpt moves labels, or over which Co-teaching's forgotten share grows."""
    noise_rate: Annotated[float, Range(0, 1, below=True)] | None = None
    """Co-teaching's tau. None: each site estimates its own. A true one given here is an oracle, and the run says so."""

    rounds_1: Count = 100
    """T1: rounds on the labels that nobody disputes."""
    rounds_2: Count = 150
    """T2: rounds after sub-stage I."""
    rounds_3: AtLeastOne = 150
    """T3: rounds after sub-stage II."""
    fraction: Share = 0.1
    """Share of the sites that train in a round."""

    sigma_1: Rate = 0.5
    """sigma_1: share of the upper part of L_co that sub-stage I corrects."""
    sigma_2: Rate = 0.5
    """sigma_2: share of the upper part of L_an that sub-stage II looks at."""
    epsilon: Rate = 0.5
    """epsilon: confidence from which the global model corrects in sub-stage II."""
    correct_1: bool = True
    """Sub-stage I at all (Table 5)."""
    correct_2: bool = True
    """Sub-stage II at all (Table 5)."""
    assa: bool = True
    """Weigh sites by the samples that count as right so far, else by all that they have (Table 5)."""
    mixup: AtLeastZero = 1.0
    """alpha of mixup's Beta(alpha, alpha) in federated training; 0 is off (Table 5)."""
    stage_data: Literal["union", "new_only"] = "union"
    """What sites train on after a correction: all that counts as right so far, or what it brought (Alg. 1)."""

    local: Recipe = field(
        default_factory=lambda: Recipe(epochs=5, batch_size=10, lr=0.01, momentum=0.5), kw_only=True
    )

    @property
    def oracle(self) -> str | None:
        return self.learner().oracle if self.cnll == "co-teaching" else None

    def begin(self, federation: Federation, weights: Weights) -> FedCleanState:
        return FedCleanState(weights)

    def stages(self) -> list[Stage]:
        train = (TrainOnParts,)
        first, second = int(self.correct_1), int(self.correct_2)
        return [
            Stage("local learners", 1, self.sort_labels, asks=(SortByOwnLearner,), trains=False),
            Stage("undisputed labels", self.rounds_1, self.train_on_agreed, train),
            Stage("sub-stage I", first, self.settle_by_agreement, (SettleByAgreement,), trains=False),
            Stage("after sub-stage I", self.rounds_2, self.train_after_first, train),
            Stage("sub-stage II", second, self.settle_by_model, (SettleByModel,), trains=False),
            Stage("after sub-stage II", self.rounds_3, self.train_after_second, train),
        ]

    # Preprocessing -------------------------------------------------------------------------------------------------

    def sort_labels(self, state: FedCleanState, federation: Federation) -> FedCleanState:
        """theta_k at each site alone; A_k = {y_bar = y}, the rest is disputed."""
        twin = federation.initial_weights(draw=1) if self.cnll == "co-teaching" else {}
        visit = SortByOwnLearner(state.weights, twin, self.learner_parts())
        replies = federation.ask(visit)
        level = {site: 1 - reply.used / federation.facts[site].samples for site, reply in replies.items()}
        unmeasured = tuple(site for site in federation.sites if site not in level)
        federation.find(Findings((), unmeasured=unmeasured, level=level))
        if unmeasured:
            federation.warn(f"labels of {', '.join(unmeasured)} were not sorted: they take no part")
        if max(level.values()) < NOBODY:
            federation.warn(
                "no site disputes its labels: they are clean, or the local learners know them by heart; "
                f"try fewer than method.cnll_epochs = {self.cnll_epochs}"
            )
        self.say(federation, replies)
        return replace(state, sorted=tuple(replies))

    def learner_parts(self) -> tuple[Train, ...]:
        """A site's own learner as the requests that it goes through."""
        if self.cnll == "none":
            return (Train({}, self.recipe(CrossEntropy(), epochs=self.cnll_epochs, mixup=0.0)),)
        return self.learner().alone()

    def learner(self) -> CoTeaching | JointOpt:
        one = replace(self.local, epochs=1, mixup=0.0)
        warm = min(self.cnll_warm, self.cnll_epochs - 1)
        if self.cnll == "co-teaching":
            return CoTeaching(
                rounds=self.cnll_epochs, warm=self.cnll_warm, noise_rate=self.noise_rate, local=one
            )
        return JointOpt(warmup=warm, rounds=self.cnll_epochs - warm, local=one)

    # Corrections ---------------------------------------------------------------------------------------------------

    def settle_by_agreement(self, state: FedCleanState, federation: Federation) -> FedCleanState:
        """B_k: disputed labels that theta_G rejects as well, by the largest L_co."""
        return self.settle(state, federation, SettleByAgreement(state.weights, self.sigma_1))

    def settle_by_model(self, state: FedCleanState, federation: Federation) -> FedCleanState:
        """C_k and H2: theta_G alone judges what is left, by L_an."""
        return self.settle(state, federation, SettleByModel(state.weights, self.sigma_2, self.epsilon))

    def settle(
        self, state: FedCleanState, federation: Federation, request: Request[Counted]
    ) -> FedCleanState:
        self.say(federation, federation.ask(request, state.sorted))
        return state

    def say(self, federation: Federation, replies: Replies[Counted]) -> None:
        federation.record(samples_used=sum(reply.used for reply in replies.values()))
        federation.record_sites("samples_used", {site: reply.used for site, reply in replies.items()})

    # Training ------------------------------------------------------------------------------------------------------

    def train_on_agreed(self, state: FedCleanState, federation: Federation) -> FedCleanState:
        """T1 rounds on A_k."""
        return self.train(state, federation, (Part.AGREED,))

    def train_after_first(self, state: FedCleanState, federation: Federation) -> FedCleanState:
        """T2 rounds on A_k and B_k; Alg. 1 prints B_k alone."""
        return self.train(state, federation, (Part.AGREED,) * self.union + (Part.FIRST,))

    def train_after_second(self, state: FedCleanState, federation: Federation) -> FedCleanState:
        """T3 rounds on A_k, B_k, C_k and H2; Alg. 1 prints C_k alone, the text C_k and H2."""
        earlier = (Part.AGREED, Part.FIRST) * self.union
        return self.train(state, federation, (*earlier, Part.SECOND, Part.CLEARED))

    @property
    def union(self) -> int:
        return int(self.stage_data == "union")

    def train(self, state: FedCleanState, federation: Federation, parts: tuple[Part, ...]) -> FedCleanState:
        """FedAvg with mixup on these parts, weighed by the samples that count as right so far (ASSA)."""
        recipe = self.recipe(CrossEntropy(), mixup=self.mixup)
        request = TrainOnParts(state.weights, recipe, use=tuple(int(part) for part in parts))
        replies = ask_to_train(federation, request, federation.choose(self.fraction, among=state.sorted))
        counts = [reply.samples for reply in replies.values()]
        if not self.assa or not any(counts):
            counts = [federation.facts[site].samples for site in replies]
        models = [reply.weights for reply in replies.values()]
        return replace(state, weights=self.merge(models, counts, state.weights))

    def tiny(self) -> FedClean:
        return replace(self, cnll_epochs=2, cnll_warm=1, rounds_1=1, rounds_2=1, rounds_3=1, fraction=0.6)
