"""Messages: a `Request` to sites, a `Reply` from one. A reply's fields are *all* that leaves a site."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedsift.core.codec import WireFormat
from fedsift.core.randomness import numpy_generator, torch_generator

if TYPE_CHECKING:
    from fedsift.protocol.site import Site

Weights: TypeAlias = dict[str, Tensor]
"""A model's state: names to tensors, parameters and buffers, on the CPU."""

R_co = TypeVar("R_co", bound="Reply", covariant=True)


@dataclass(frozen=True)
class SiteFacts(WireFormat):
    """What a site declares of itself on joining; the server sees this and what `ask` returns, nothing else."""

    name: str
    samples: int
    """Training samples."""
    held_out: int = 0
    """Samples kept for evaluation at the site."""
    model: str = ""
    """The network that the site trains; sites may differ."""
    annotated: tuple[int, ...] | None = None
    """Classes that the site annotates at all (None: every class)."""
    public: int = 0
    """Public unlabelled samples that the site has."""
    public_digest: str = ""
    """Fingerprint of those samples and their order: it must be the same at every site."""
    test: int = 0
    """Samples of a common test set that a simulation gave the site, so that its own model can be judged."""
    classes: int = 0
    """How many classes its labels speak of."""
    multilabel: bool = False
    """Whether a sample may have several of them."""

    @property
    def judged(self) -> tuple[int, ...]:
        """Shape of counts of judged samples: `[K]`, multi-label `[K, 2]` (without and with the class)."""
        return (self.classes, 2) if self.multilabel else (self.classes,)

    @property
    def seen(self) -> int:
        """Samples that a model looks at when it looks at all that the site alone has."""
        return self.samples + self.held_out + self.test

    @property
    def everything(self) -> int:
        """All samples at the site, public ones too: what its limit on work is measured in."""
        return self.seen + self.public


@dataclass(frozen=True)
class Reply(WireFormat):
    """Base of all replies. Every field is declared by `disclosed`: its line in the disclosure table, and its kind."""

    def __init_subclass__(cls, **options: Any) -> None:
        """A field without a kind fails where its class is written, for no policy would know what to do with it."""
        super().__init_subclass__(**options)
        for name, hint in inspect.get_annotations(cls).items():
            declared = cls.__dict__.get(name)
            known = isinstance(declared, dataclasses.Field) and "statistic" in declared.metadata
            if not known and "ClassVar" not in str(hint):
                raise TypeError(f"{cls.__name__}.{name} does not say what it discloses: declare it by disclosed()")

    def refusal(self, request: Any, facts: SiteFacts) -> str | None:
        """Why this reply cannot be what `request` asked of that site, or None if it can.

        The gate checks what is common to all replies (finite numbers, right run, stage, round); a reply class checks
        its own keys, shapes, types and counts here.
        """
        return None

    def moves(self, request: Any) -> tuple[tuple[Weights, Weights], ...]:
        """The models in this reply, each with the one that was sent and that it began from.

        The gate compares the length and direction of each with the same update of the other sites.
        """
        return ()


Statistic: TypeAlias = Literal[
    "setting", "count", "flag", "share", "loss", "score", "likelihood", "features", "model", "labels", "replies"
]
"""What a field is computed from, and so what a site's policy does to it as its last step (`training.private_updates`).

setting: nothing of a single sample. count: samples, never fewer than the minimum count. flag: yes or no. share, loss,
score: means over samples; likelihood: a sum over them; each is bounded and rounded. features, model: real numbers that
training or samples moved; they are clipped. Where there is noise all real numbers get it, and are paid for. labels:
drawn by randomised response and paid for by epsilon. replies: each of its own kind.
"""
SPANS: dict[str, float] = {"share": 1.0, "loss": 10.0, "score": 100.0, "likelihood": 10.0}
"""How far one sample moves a sum, or all samples together a mean, at most; likelihoods are sums."""


def disclosed(
    what: str,
    statistic: Statistic,
    *,
    least: float | None = None,
    most: float | None = None,
    update: str = "",
    label_loss: bool = False,
    spare: bool = False,
    **options: Any,
) -> Any:
    """A reply's field, with what it discloses, in words for the site, its kind, and the range of its numbers.

    `update`: for a model, the field of the request with what the site started from ("" for what starts from nothing):
    a site's policy clips the difference. `label_loss`: whether it is the epsilon that the reply spends on each label
    (None: no bound): a site adds these up. `spare`: the methods live without it, so a policy that does not list it
    puts None in its place; one that withholds any other field withholds the reply.
    """
    about = {"what": what, "statistic": statistic, "least": least, "most": most, "update": update}
    about |= {"label_loss": label_loss, "spare": spare}
    return dataclasses.field(metadata=about, **options)


# Cost of a request
# ------------------------------------------------------------------------------


STEP = 8
"""A step, or a batch that is looked at, counts as so many samples at least: most of its time is the same for one."""


class HasCost:
    """Base of what a request holds and a site has to work for: the request itself, a recipe, a lesson."""

    def work(self, facts: SiteFacts) -> float:
        """Samples through a network at a site of these sizes."""
        raise TypeError(f"{type(self).__name__} does not say how much it asks")


def asked_by(value: Any, facts: SiteFacts) -> float:
    """What a field's value asks: as it says itself; a model looks at everything once; others as their parts do."""
    if isinstance(value, HasCost):
        return max(value.work(facts), 0.0)  # or one part could pay for another
    if isinstance(value, dict):
        return float(facts.seen) if any(isinstance(item, Tensor) for item in value.values()) else 0.0
    if isinstance(value, tuple | list):
        return sum(asked_by(item, facts) for item in value)
    return asked_by_fields(value, facts) if dataclasses.is_dataclass(value) else 0.0


def asked_by_fields(value: Any, facts: SiteFacts) -> float:
    return sum(asked_by(getattr(value, field.name), facts) for field in dataclasses.fields(value))


def _models_in(value: Any) -> int:
    if isinstance(value, Request):
        return value.models_judged
    if isinstance(value, dict):
        return int(any(isinstance(item, Tensor) for item in value.values()))
    if isinstance(value, tuple | list):
        return sum(map(_models_in, value))
    if dataclasses.is_dataclass(value):
        return sum(_models_in(getattr(value, field.name)) for field in dataclasses.fields(value))
    return 0


def passed(samples: int, batch_size: int) -> float:
    """One pass over so many samples in batches of this size, with what small batches cost."""
    return float(max(samples, STEP * -(-samples // max(batch_size, 1)), 0))


# Requests and replies
# ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Request(WireFormat, HasCost, Generic[R_co]):
    """Base of all requests: what is asked, and how a site answers it."""

    reply_type: ClassVar[type[Reply]] = Reply
    norm_tolerance: ClassVar[float] = 1.0
    """How many times more than usual honest answers differ in how far they move a model; the gate allows for it."""
    late: ClassVar[bool] = False
    """Whether a site that comes late has as far to go as the others had when they began, however little these still
    move."""

    def reach(self, samples: int) -> float:
        """How far training on so many samples can carry a model, in steps of one common length.

        The gate compares sites of different sizes by it; the same for all where size does not matter.
        """
        return 1.0

    def work(self, facts: SiteFacts) -> float:
        """Samples that the site sends through a network to answer this, at most; a policy compares it with a limit.

        One look at everything, one with each model that came along, and what recipes, lessons and other requests in
        its fields ask. A request that does more than that says so here.
        """
        return facts.seen + asked_by_fields(self, facts)

    @property
    def models_judged(self) -> int:
        """Models of the coordinator's choice of which the reply may say how they fit the site's samples: all that are
        in the request's fields. A request that holds them in another form says so here."""
        return sum(_models_in(getattr(self, field.name)) for field in dataclasses.fields(self))

    @property
    def besides(self) -> tuple[Request[Any], ...]:
        """Requests that travel inside this one and are answered in the same visit."""
        return ()

    def answer(self, site: Site) -> R_co:
        """Answer on one site; may read and write `site.notebook`, returns only what may leave."""
        raise TypeError(f"{type(self).__name__} does not say how a site answers it")

    @classmethod
    def answer_many(cls, work: Sequence[tuple[Any, Site]]) -> list[Any]:
        """Answer for several sites of one process at once, in the given order.

        An exception is returned in the place of that site's reply, so that one site's failure never affects another's.
        """
        answers: list[Any] = []
        for request, site in work:
            try:
                answers.append(request.answer(site))
            except Exception as error:  # the boundary: a site's failure is a value, not the run's end
                answers.append(error)
        return answers


@dataclass(frozen=True)
class RequestMoment(WireFormat):
    """When something is asked: it identifies a request and seeds all its randomness."""

    seed: int
    stage: str
    round: int
    """Counted from 0 over the whole run, across stages; users are shown `round + 1`."""
    ask: int
    """Counted from 0 within the round."""

    @property
    def id(self) -> str:
        """For programs, counted from 0; `moment_words` is for people."""
        return f"{self.round}.{self.ask}:{self.stage}"

    def numpy(self, who: str, purpose: str) -> np.random.Generator:
        return numpy_generator(self.seed, who, self.stage, self.round, self.ask, purpose)

    def torch(self, who: str, purpose: str) -> torch.Generator:
        return torch_generator(self.seed, who, self.stage, self.round, self.ask, purpose)


def moment_words(moment_id: str) -> str:
    """A moment's id as people count: "2.0:warm up" is question 1 of round 3 (warm up)."""
    where, _, stage = moment_id.partition(":")
    number, _, ask = where.partition(".")
    if not (number.isdecimal() and ask.isdecimal()):
        return f"'{moment_id}'"
    return f"question {int(ask) + 1} of round {int(number) + 1} ({stage})"


@dataclass(frozen=True)
class RequestEnvelope(WireFormat):
    """A request on its way to one site.

    `expects` is the id of the last request that the coordinator knows this site answered ("" at first): the site
    continues from the notebook of that moment, or says that it is gone.
    """

    run: str
    site: str
    moment: RequestMoment
    expects: str
    request: Request[Any]


@dataclass(frozen=True)
class ReplyEnvelope(WireFormat):
    """A reply on its way back, with what the gate needs to see that it belongs to its request."""

    run: str
    site: str
    moment_id: str
    reply: Reply | None
    failure: str = ""
    """Why there is no reply; empty when there is one."""
