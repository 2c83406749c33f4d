"""A method: one paper's algorithm as a frozen dataclass of hyper-parameters and a list of stages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from fedsift.core.codec import WireFormat
from fedsift.core.ranges import RangeChecked
from fedsift.protocol.federation import Federation, FederationFacts, Incompatibility
from fedsift.protocol.messages import Request, Weights

M = TypeVar("M", bound="Method")


@dataclass(frozen=True)
class State(WireFormat):
    """Everything that lasts on the server between rounds: arrays and plain values only.

    A method that needs more extends this class; the checkpoint stores whatever fields there are.
    """

    weights: Weights = field(default_factory=dict)


Step = Callable[[Any, Federation], Any]
Asks = tuple[type[Request[Any]], ...]
"""Kinds of request, exactly: a subclass may ask for more and is declared by itself."""


@dataclass(frozen=True)
class Stage:
    """A named part of a method: how many rounds, what one round does to the state, what it may ask of sites."""

    name: str
    rounds: int
    step: Step
    asks: Asks = ()
    """Every kind of request that the step may send with the method's present switches, those inside other requests
    included. The engine sends nothing else, and all tables of what leaves a site are made from this."""
    trains: bool = True
    """False for a stage that only measures: the model does not change, so its round is not evaluated."""


@dataclass(frozen=True)
class Method(RangeChecked):
    """Base of all methods. Subclasses add the paper's symbols as fields and list their stages."""

    summary: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    tasks: ClassVar[tuple[str, ...]] = ("multiclass",)
    """Kinds of label that it handles: "multiclass", "multilabel"."""

    instead: ClassVar[Mapping[str, str]] = {}
    """Methods that are this one for other kinds of label, by the kind."""

    holds_out: ClassVar[bool] = True
    """Whether sites keep samples for evaluation where the data have no test set; an audit wants all of them."""

    needs: ClassVar[tuple[str, ...]] = ()
    """What a federation must have besides labelled samples: "public" for a public unlabelled set."""

    mixed_networks: ClassVar[bool] = False
    """Whether sites may train different networks; a method that averages models needs them alike."""

    evaluates: ClassVar[Asks | None] = ()
    """Kinds of request that `evaluation` may send; none where there is a global model alone to evaluate; None for a
    method that has nothing to evaluate at all."""

    forms: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Settings by the name of a form, such as "printed" or "released": `form = "printed"` in a study's `[method]`
    stands for them, and keys beside it come before them."""

    lasting: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Fields that hold another method, with those of its settings that this method decides itself."""

    renamed: ClassVar[Mapping[str, str]] = {}
    """Keys of earlier versions, with what to write instead."""

    def start(self, federation: Federation) -> State:
        """The state before the first round."""
        return self.begin(federation, federation.initial_weights())

    def begin(self, federation: Federation, weights: Weights) -> State:
        """The state before the first round, from these weights: also the start of a last stage of another method."""
        return State(weights=weights)

    def stages(self) -> list[Stage]:
        raise TypeError(f"{type(self).__name__} has no stages")

    def model(self, state: Any) -> Weights | None:
        """The global model to evaluate and keep, or None when every site has its own (see `evaluation`)."""
        return dict(state.weights)

    def evaluation(self, state: Any) -> Request[Any] | Mapping[str, Request[Any]] | None:
        """What to ask the sites (all, or each its own) for an evaluation without a global model."""
        return None

    @property
    def judges_both(self) -> bool:
        """Whether the sites' own models (`evaluation`) are judged beside the global one (`model`)."""
        return False

    def completed(self: M, facts: FederationFacts) -> M:
        """This method with everything filled in that follows from the federation and that the study leaves open.

        Such a field is None until then. What is filled in is written into the run's study.
        """
        return self

    def deployed(self: M) -> M:
        """This method as it runs across real sites unless the study decides otherwise: there, protection of the model
        against one site is worth an additional message. What is filled in is written into the app's study."""
        return self

    def fits(self, facts: FederationFacts) -> Incompatibility | None:
        """Why this method does not fit such a federation, or only with care; None where nothing speaks against it."""
        found = list(self.incompatibilities(facts))
        decisive = [one for one in found if one.refuses] or found
        if not decisive:
            return None
        return Incompatibility("; ".join(one.reason for one in decisive), decisive[0].refuses)

    def incompatibilities(self, facts: FederationFacts) -> Iterator[Incompatibility]:
        """All that speaks against this method here; a method with more to say extends this."""
        if facts.kind is not None and facts.kind not in self.tasks:
            words = f"it is for {' and '.join(self.tasks)} labels; these are {facts.kind}"
            other = self.instead.get(facts.kind)
            yield Incompatibility(f"{words}: use '{other}'" if other else words, refuses=True)
        if len(facts.networks) > 1 and not self.mixed_networks:
            names = ", ".join(facts.networks)
            yield Incompatibility(f"it needs the same network at every site, the study names {names}", refuses=True)
        if "public" in self.needs and facts.public is None:
            yield Incompatibility("it sets aside a public set unless [public] names one of the same shape")
        if facts.sites == 1:
            yield Incompatibility("one site alone gains nothing from federation")

    @property
    def oracle(self) -> str | None:
        """What this method is given of the truth that only a simulation knows, in words such as "noise rate 0.4 given";
        None: nothing. A table of results marks such a run."""
        return None

    def tiny(self) -> Method:
        """The same method with a few short rounds in every stage, for the promise tests and for `plan`'s trial."""
        raise TypeError(f"{type(self).__name__} does not say its tiny form")

    @property
    def total_rounds(self) -> int:
        return sum(stage.rounds for stage in self.stages())
