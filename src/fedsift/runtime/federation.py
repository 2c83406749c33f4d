"""The federation as every transport implements it: asking sites, checking their replies, counting and recording."""

from __future__ import annotations

import dataclasses
import math
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from torch import Tensor

from fedsift.core.codec import size_of
from fedsift.core.errors import ConfigError, QuorumError, RunError
from fedsift.core.randomness import derive, numpy_generator
from fedsift.core.ranges import AtLeastZero, Count, Positive, RangeChecked, Share
from fedsift.core.type_checks import DEEPEST
from fedsift.data.dataset import FederatedDataset
from fedsift.models.factory import buffers_of, build_model, drawing_name, initial_weights
from fedsift.models.weights import started_from
from fedsift.protocol.disclosure import check_declared
from fedsift.protocol.federation import RandomDraws, Replies, Round
from fedsift.protocol.findings import FINDINGS, Findings
from fedsift.protocol.messages import (
    Reply,
    ReplyEnvelope,
    Request,
    RequestEnvelope,
    RequestMoment,
    SiteFacts,
    Weights,
)
from fedsift.protocol.method import Asks
from fedsift.protocol.site import ComputeSettings, Samples
from fedsift.runs.events import Absent, Answered, Asked, Found, Refused, Say, Warned, no_listener
from fedsift.runs.folder import RunFolder
from fedsift.runtime.gate.protection import (
    GateLimits,
    Protection,
    bounded_shares,
    fair_sizes,
    reversal_is_attack,
    shares_within,
    turning_is_attack,
)
from fedsift.runtime.gate.reply_checks import CrossCheck, refusal, verdict

# Where the time of a run goes: seconds under a few plain names, cheap enough to be always on
# ------------------------------------------------------------------------------


class Stopwatch:
    """Adds up seconds by name; names may nest only where one is not counted inside another."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.whole = 0.0

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started

    def table(self) -> list[dict[str, float | str]]:
        """Name, seconds and share of the whole, largest first; what no name covers is the method's own work."""
        rest = max(0.0, self.whole - sum(self.seconds.values()))
        parts = {**self.seconds, "method: choosing, mixtures, aggregation": rest}
        return [
            {
                "part": name,
                "seconds": round(spent, 4),
                "share": round(spent / self.whole, 4) if self.whole else 0.0,
            }
            for name, spent in sorted(parts.items(), key=lambda item: -item[1])
        ]


R = TypeVar("R", bound=Reply)
OWN_LOSS = "loss_on_own_samples"
"""Column of the site table: what a site's latest model loses on the coordinator's own samples."""


@dataclass(frozen=True)
class QuorumPolicy(RangeChecked):
    """The study's `[federation]` table: how many replies are enough, and how long to wait for them."""

    quorum: Share = 0.5
    """Share of the asked sites whose replies must be accepted; fewer stop the run, which can be resumed."""
    deadline: Positive = 600.0
    """Seconds to wait for replies (Flower)."""
    grace: AtLeastZero = 60.0
    """Seconds for which a site that is gone is waited for, counted once, not in every round (Flower)."""
    min_count: Count = 0
    """Simulations: the smallest group of samples that a site's reply may describe; real sites set their own."""
    stages: dict[str, dict[str, float]] = field(default_factory=dict)
    """Other values for a stage by its name, e.g. {"find noisy sites" = {quorum = 1.0}}."""

    def of(self, stage: str) -> tuple[float, float]:
        own = self.stages.get(stage, {})
        return own.get("quorum", self.quorum), own.get("deadline", self.deadline)


@dataclass
class RoundLog:
    """What happened in a round besides the state: this becomes its line in rounds.jsonl."""

    values: dict[str, Any] = field(default_factory=dict)
    asked: int = 0
    refused: dict[str, str] = field(default_factory=dict)
    bytes_down: int = 0
    bytes_up: int = 0
    participants: set[str] = field(default_factory=set)
    replies: dict[str, list[str]] = field(default_factory=dict)
    """Names of the reply classes that left a site, by the request that asked for them."""
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class SimulationSettings:
    """What only a simulation knows: where the samples lie, the truth, and what the sites wrote for themselves."""

    federated: FederatedDataset
    notebooks: Mapping[str, Mapping[str, Any]]
    """Current pages of the sites that have written any."""


class EngineFederation(RandomDraws):
    """Base of the engines' federations. An engine says how envelopes are delivered, which notebooks the run must keep
    for its sites, and what it knows of a simulation; everything else is here."""

    def __init__(
        self,
        *,
        run: str,
        seed: int,
        facts: Mapping[str, SiteFacts],
        classes: tuple[str, ...],
        multilabel: bool,
        model: str,
        shape: tuple[int, ...],
        limits: GateLimits | None = None,
        quorum: QuorumPolicy | None = None,
        compute: ComputeSettings | None = None,
        given: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.run = run
        self.seed = seed
        self.facts: Mapping[str, SiteFacts] = dict(facts)
        self.classes = classes
        self.multilabel = multilabel
        self.model = model
        self.shape = shape
        limits = limits or GateLimits()
        self.protection = Protection(
            limits,
            heuristics=limits.judge(simulated=self.simulated),
            sizes=fair_sizes(
                {site: own.samples for site, own in self.facts.items()},
                limits.share(len(self.facts), simulated=self.simulated),
            ),
            judges_turns=turning_is_attack(len(classes), multilabel),
            opening=reversal_is_attack(len(classes), multilabel, given is not None),
        )
        """What judges updates beside each other."""
        self.quorum = quorum or QuorumPolicy()
        self.given = given
        """Weights that the network starts from; None draws them."""
        self.compute = compute or ComputeSettings()
        """The coordinator's own hardware."""
        self.begun = False
        """Whether a round has begun in this federation."""
        self.watch = Stopwatch()
        self.round = Round("", 0, 0)
        self.log = RoundLog()
        self.accepted: dict[str, str] = {}
        """The last request of each site whose reply was accepted: its notebook continues from there."""
        self.site_records: dict[str, dict[str, Any]] = {}
        """Recorded values by name, then by site."""
        self.declared: Asks = ()
        """Kinds of request that may be sent now: no other one leaves."""
        self.cohorts: dict[str, int] = {}
        """How many sites this run trains together, by kind of training; kept with its checkpoints."""
        self.say: Say = no_listener
        """Where the events of this federation go: a run writes them into its folder."""
        self.check_stop: Callable[[], None] = lambda: None
        """Raise Stopped if the user asked the run to stop; called where nothing is lost by stopping."""
        self.away: set[str] = set()
        """Sites that did not answer the present request themselves, whatever an engine returns in their place."""
        self.set_aside: dict[str, str] = {}
        """Sites that wanted to take part and cannot, with the reason: said when the run begins."""
        self._heard: set[str] = set()
        self._asks = 0
        self._buffers: dict[str, list[str]] = {}
        self._check: CrossCheck | None = None

    @abstractmethod
    def deliver(self, envelopes: Mapping[str, RequestEnvelope], deadline: float) -> Mapping[str, ReplyEnvelope]:
        """Carry the envelopes to their sites and bring back the answers that came in time."""

    def accept_notebook(self, envelope: RequestEnvelope) -> None:
        """Called when a site's answer was accepted, so that the engine can make its notebook the current one."""
        self.accepted[envelope.site] = envelope.moment.id

    @property
    def simulated(self) -> bool:
        """Whether its sites are made up, so that there is nobody to judge (`GateLimits.heuristics`)."""
        return False

    @property
    def simulation(self) -> SimulationSettings | None:
        """None across real sites: the truth is unknown, and notebooks stay at the sites."""
        return None

    def test_set(self) -> tuple[Samples, Tensor] | None:
        """Labelled samples of the coordinator's own, if it has any."""
        return None

    def notebooks_to_keep(self) -> dict[str, dict[str, Any]]:
        """Pages that changed since this was last called, by site; none where sites keep their own."""
        return {}

    def restore(self, notebooks: Mapping[str, dict[str, Any]]) -> None:
        """Take back the notebooks of a checkpoint."""
        if notebooks:
            raise RunError(
                "this run's checkpoint holds its sites' notebooks, and on this engine sites keep their own: "
                "go on with the engine that it began on"
            )

    @property
    def sites(self) -> list[str]:
        return list(self.facts)

    def begin(self, where: Round, declared: Asks) -> None:
        """A new round, in which only requests of the declared kinds may be sent."""
        self.round = where
        self.begun = self.begun or where.number >= 0
        self.declared = declared
        self.log = RoundLog()
        self._asks = 0

    def ask(self, request: Request[R] | Mapping[str, Request[R]], sites: Sequence[str] | None = None) -> Replies[R]:
        self.check_stop()
        envelopes = self._envelopes(request, sites)
        quorum, deadline = self.quorum.of(self.round.stage)
        kinds, number = kinds_of(envelopes), self.round.count
        self.away, self._heard = set(), set()
        self.say(Asked(number, self.round.stage, kinds, tuple(envelopes), deadline))
        with self.watch(f"sites: {kinds}"):
            answers = self.deliver(envelopes, deadline)
        self.on_answered((site for site in answers if site not in self.away), kinds)
        with self.watch("gate and counting"):
            replies, refused = self._gate(envelopes, answers)
        for site, reason in refused.items():
            event = Refused if site in self._heard else Absent
            self.say(event(number, kinds, site, reason))
        needed = max(1, math.ceil(quorum * len(envelopes) - 1e-9))
        if len(replies) < needed:
            raise QuorumError(self._quorum_message(needed, len(envelopes), refused))
        for site in replies:
            self.accept_notebook(envelopes[site])
        if self.protection.limits.cross_check:
            self._measure_models(envelopes, replies)
        return Replies(replies, refused)

    def on_answered(self, sites: Iterable[str], kinds: str) -> None:
        """These sites have answered; an engine may say so before it has heard all of them."""
        new = tuple(site for site in sites if site not in self._heard)
        if new:
            self._heard.update(new)
            self.say(Answered(self.round.count, kinds, new))

    def _gate(
        self, envelopes: Mapping[str, RequestEnvelope], answers: Mapping[str, ReplyEnvelope]
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Part the answers into replies that may be used and reasons why the others may not."""
        replies: dict[str, Any] = {}
        refused: dict[str, str] = {}
        for site, envelope in envelopes.items():
            answer = answers.get(site)
            reason = refusal(answer, envelope, self.facts[site])
            if reason is None and answer is not None:
                replies[site] = answer.reply
            else:
                refused[site] = reason or "no reply"
        found = self.protection.refusals(self.round.stage, replies, envelopes, self._buffers_at)
        for site, reason in found.items():
            refused[site] = reason
            del replies[site]
        self._count(envelopes, replies, refused)
        self._note_replies(envelopes, answers)
        return self._bounded(replies, envelopes), refused

    def _bounded(self, replies: Mapping[str, Any], envelopes: Mapping[str, RequestEnvelope]) -> dict[str, Any]:
        """The replies, those with models no heavier than they may be. Where there is no model, a number of samples is
        no weight: what is counted is counted."""
        weighed = {site: reply for site, reply in replies.items() if reply.moves(envelopes[site].request)}
        n, trial = len(weighed), self.protection.absences.share
        return {**replies, **bounded_shares(weighed, lambda site: min(self.largest_share(site, n), trial(site, n)))}

    def _envelopes(
        self, request: Request[R] | Mapping[str, Request[R]], sites: Sequence[str] | None
    ) -> dict[str, RequestEnvelope]:
        if isinstance(request, Mapping):
            wanted = dict(request)
        else:
            wanted = dict.fromkeys(self.sites if sites is None else sites, request)
        if not wanted:
            raise ConfigError(f"stage '{self.round.stage}' asks no site at all")
        unknown = [site for site in wanted if site not in self.facts]
        if unknown:
            raise ConfigError(f"stage '{self.round.stage}' asks unknown site '{unknown[0]}'")
        check_declared(self.round.stage, wanted.values(), self.declared)
        moment = RequestMoment(self.seed, self.round.stage, self.round.number, self._asks)
        self._asks += 1
        return {
            site: RequestEnvelope(self.run, site, moment, self.accepted.get(site, ""), wanted[site])
            for site in self.facts
            if site in wanted
        }

    def _count(
        self,
        envelopes: Mapping[str, RequestEnvelope],
        replies: Mapping[str, Reply],
        refused: Mapping[str, str],
    ) -> None:
        sizes: dict[int, int] = {}  # sites often share one request object; measure it once
        for envelope in envelopes.values():
            key = id(envelope.request)
            if key not in sizes:
                sizes[key] = size_of(envelope.request)
            self.log.bytes_down += sizes[key]
        self.log.bytes_up += sum(size_of(reply) for reply in replies.values())
        self.log.asked += len(envelopes)
        self.log.participants.update(replies)
        self.log.refused.update(refused)

    def _note_replies(self, envelopes: Mapping[str, RequestEnvelope], answers: Mapping[str, ReplyEnvelope]) -> None:
        """A refused reply has left its site as well, so it counts here."""
        for site, envelope in envelopes.items():
            names = self.log.replies.setdefault(type(envelope.request).__name__, [])
            reply = answers[site].reply if site in answers else None
            names += [name for name in reply_names(reply) if name not in names]

    def _quorum_message(self, needed: int, asked: int, refused: Mapping[str, str]) -> str:
        reasons = "; ".join(f"{site}: {reason}" for site, reason in list(refused.items())[:4])
        return (
            f"round {self.round.count} ({self.round.stage}): {asked - len(refused)} of {asked} replies accepted, "
            f"{needed} needed ({reasons}). Mend the sites and resume, or resume with a lower federation.quorum"
        )

    def initial_weights(self, model: str = "", draw: int = 0) -> Weights:
        name = model or self.model
        another = (draw,) if draw else ()
        seed = derive(self.seed, "initial weights", drawing_name(name), *another)
        fresh = initial_weights(name, self.shape, len(self.classes), seed)
        return fresh if self.given is None else started_from(fresh, self.given, "model.weights")

    def model_buffers(self, model: str = "") -> list[str]:
        name = model or self.model
        if name not in self._buffers:
            built = build_model(name, self.shape, len(self.classes), seed=0)
            self._buffers[name] = sorted(buffers_of(built))
        return list(self._buffers[name])

    def _buffers_at(self, site: str) -> list[str]:
        return self.model_buffers(self.facts[site].model)

    def largest_share(self, site: str, among: int) -> float:
        """The most that a site's size may count for among so many sites."""
        return self.protection.limits.share(among, simulated=self.simulated)

    def sizes(self) -> dict[str, int]:
        declared = {site: own.samples for site, own in self.facts.items()}
        bounds = {site: self.largest_share(site, len(declared)) for site in declared}
        return declared if min(bounds.values(), default=1.0) >= 1 else shares_within(declared, bounds)

    def record(self, **values: Any) -> None:
        self.log.values.update(values)

    def record_sites(self, name: str, values: Mapping[str, Any]) -> None:
        self.site_records.setdefault(name, {}).update(values)

    def find(self, findings: Findings) -> None:
        self.log.values[FINDINGS] = findings.line()
        self.say(Found(self.round.count, findings.line()))
        self.site_records.update(findings.by_site(self.sites))
        found = verdict(self.site_records.get(OWN_LOSS, {}), findings, self.random("cross-check"))
        if found is not None:
            self.record(cross_check=found.line())
            if (words := found.words()) is not None:
                self.warn(words)

    def _measure_models(self, envelopes: Mapping[str, RequestEnvelope], replies: Mapping[str, Reply]) -> None:
        """The loss of each site's model on the coordinator's own samples, where it has any."""
        test = self.test_set() if self._check is None else None
        if test is not None:
            self._check = CrossCheck.of(*test, numpy_generator(self.seed, "server", "cross-check samples"))
        for site, reply in replies.items() if self._check is not None else ():
            for model, _ in reply.moves(envelopes[site].request)[:1]:
                assert self._check is not None
                network = self.facts[site].model or self.model
                loss = self._check.loss(network, model, len(self.classes), self.compute)
                self.record_sites(OWN_LOSS, {site: loss})

    def warn(self, text: str) -> None:
        self.log.warnings.append(text)
        self.say(Warned(self.round.count, text))


def reply_names(value: Any, depth: int = 0) -> list[str]:
    """Class names of a reply and of the replies inside it, each once, in the order in which they appear."""
    if depth > DEEPEST:  # the gate lets nothing so deep pass, but what it refuses is listed too
        return []
    if isinstance(value, Reply):
        inner = [getattr(value, f.name) for f in dataclasses.fields(value)]
        return list(dict.fromkeys([type(value).__name__, *reply_names(inner, depth + 1)]))
    if isinstance(value, Mapping):
        return reply_names(list(value.values()), depth + 1)
    if isinstance(value, list | tuple):
        return list(dict.fromkeys(name for item in value for name in reply_names(item, depth + 1)))
    return []


def kinds_of(envelopes: Mapping[str, RequestEnvelope]) -> str:
    return " and ".join(sorted({type(envelope.request).__name__ for envelope in envelopes.values()}))


# What opens a federation
# ------------------------------------------------------------------------------


@dataclass(frozen=True)
class EngineParts:
    """What a study gives to any engine."""

    seed: int
    model: str
    limits: GateLimits = field(default_factory=GateLimits)
    quorum: QuorumPolicy = field(default_factory=QuorumPolicy)
    given: Mapping[str, Tensor] | None = None
    """Weights that the network starts from; None draws them."""
    others: tuple[str, ...] = ()
    """Further networks that the study names, for single sites."""
    one_network: bool = False
    """Whether the method needs the same network at every site."""
    public: bool = False
    """Whether the method needs the same public samples at every site."""

    @property
    def networks(self) -> tuple[str, ...]:
        """Every network that the study names."""
        return (self.model, *self.others)

    def shared(self, run: str) -> dict[str, Any]:
        """The keywords that every federation takes."""
        return {
            "run": run,
            "seed": self.seed,
            "model": self.model,
            "limits": self.limits,
            "quorum": self.quorum,
            "given": self.given,
        }


class Engine(Protocol):
    """Opens the federation of one run, new or gone on with."""

    def open(self, parts: EngineParts, folder: RunFolder) -> EngineFederation: ...
