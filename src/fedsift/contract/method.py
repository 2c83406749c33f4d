"""A method: one paper's algorithm as a frozen dataclass of hyper-parameters and a list of stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from fedsift.contract.codec import Wire
from fedsift.contract.federation import Federation
from fedsift.contract.messages import Request, Weights
from fedsift.contract.ranges import Ranged


@dataclass(frozen=True)
class State(Wire):
    """Everything that lasts on the server between rounds: arrays and plain values only.

    A method that needs more extends this class; the checkpoint stores whatever fields there are.
    """

    weights: Weights = field(default_factory=dict)


Step = Callable[[Any, Federation], Any]


@dataclass(frozen=True)
class Stage:
    """A named part of a method: how many rounds, and what one round does to the state."""

    name: str
    rounds: int
    step: Step
    trains: bool = True
    """False for a stage that only measures: the model does not change, so its round is not evaluated."""


@dataclass(frozen=True)
class Method(Ranged):
    """Base of all methods. Subclasses add the paper's symbols as fields and say their stages."""

    summary: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    tasks: ClassVar[tuple[str, ...]] = ("multiclass",)
    """Kinds of label that it handles: "multiclass", "multilabel"."""

    needs: ClassVar[tuple[str, ...]] = ()
    """What a federation must have besides labelled samples: "public" for a public unlabelled set."""

    mixed_networks: ClassVar[bool] = False
    """Whether sites may train different networks; a method that averages models needs them alike."""

    def start(self, federation: Federation) -> State:
        """The state before the first round."""
        return State(weights=federation.initial_weights())

    def stages(self) -> list[Stage]:
        raise TypeError(f"{type(self).__name__} has no stages")

    def model(self, state: Any) -> Weights | None:
        """The global model to evaluate and keep, or None when every site has its own (see `evaluation`)."""
        return dict(state.weights)

    def evaluation(self, state: Any) -> Request[Any] | Mapping[str, Request[Any]] | None:
        """What to ask the sites (all, or each its own) for an evaluation without a global model."""
        return None

    def tiny(self) -> Method:
        """The same method with a few short rounds in every stage, for the contract tests and for `plan`'s trial."""
        raise TypeError(f"{type(self).__name__} does not say its tiny form")

    @property
    def total_rounds(self) -> int:
        return sum(stage.rounds for stage in self.stages())
