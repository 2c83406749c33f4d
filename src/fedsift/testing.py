"""Test tools for authors of methods: a federation whose sites answer from a script, and a check of every promise.

`Scripted` is small enough to compute by hand:

    def answer(site, request):
        return Trained({"w": torch.ones(2)}, 10, 0.5) if isinstance(request, Train) else None

    federation = Scripted({"north": 10, "south": 30}, answer, weights={"w": torch.zeros(2)})
    state = method.train(method.start(federation), federation)
    assert federation.asked_of(Train) == ["north", "south"]
    assert federation.recorded["train_loss"] == 0.5

A site that answers None is set aside with "no reply", as one that is silent is. Nothing is gated or encoded: what a
method makes of the answers is all that is shown.

`check_method(MyMethod())` runs the method on small real data, in process and over a network transport, and raises an
`AssertionError` that names the first promise which does not hold.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedsift.core.codec import pack
from fedsift.core.errors import ConfigError, QuorumError, Stopped
from fedsift.data.dataset import FederatedDataset
from fedsift.data.sources.arrays import Arrays
from fedsift.protocol.federation import RandomDraws, Replies, Round
from fedsift.protocol.findings import Findings
from fedsift.protocol.messages import Reply, ReplyEnvelope, Request, RequestEnvelope, SiteFacts, Weights
from fedsift.protocol.method import Method
from fedsift.runs.folder import RunFolder
from fedsift.runtime.federation import Engine
from fedsift.runtime.in_process import InProcess, InProcessFederation
from fedsift.study.running import EngineTransport, execute_run, new_run
from fedsift.study.study import Study
from fedsift.transports.remote.answering import answer_message
from fedsift.transports.remote.channel import Channel, ReceivedAnswer
from fedsift.transports.remote.encoding import decode, encode
from fedsift.transports.remote.simulated_sites import RemoteSimulation, open_simulated

R = TypeVar("R", bound=Reply)
Script = Callable[[str, Request[Any]], Reply | None]
"""A site's name and what it is asked, to its reply; None for a site that does not answer."""


class Scripted(RandomDraws):
    """A `Federation` that passes every request to a function, and keeps what was asked, recorded and warned of."""

    def __init__(
        self,
        sites: Mapping[str, int] | Sequence[SiteFacts],
        answer: Script,
        weights: Weights | None = None,
        *,
        classes: int | Sequence[str] = 2,
        multilabel: bool = False,
        seed: int = 1,
        buffers: Sequence[str] = (),
    ) -> None:
        """`sites`: numbers of samples by name, or whole facts. `weights`: what `initial_weights` gives, and of these
        `buffers` are running statistics."""
        declared = [SiteFacts(*pair) for pair in sites.items()] if isinstance(sites, Mapping) else sites
        self.facts: Mapping[str, SiteFacts] = {facts.name: facts for facts in declared}
        self.classes = tuple(f"c{k}" for k in range(classes)) if isinstance(classes, int) else tuple(classes)
        self.multilabel = multilabel
        self.round = Round("stage", 0, 0)
        self.answer = answer
        self.weights = weights
        self.seed = seed
        self.buffers = list(buffers)
        self.asked: list[dict[str, Request[Any]]] = []
        """What each ask wanted of each site, in the order of asking."""
        self.requests: list[Request[Any] | Mapping[str, Request[Any]]] = []
        """Each ask as the method wrote it: one request for all, or one for each site."""
        self.log: list[tuple[int, str, Request[Any]]] = []
        """(index of the round in its stage, site, request) of everything asked."""
        self.recorded: dict[str, Any] = {}
        self.recorded_sites: dict[str, dict[str, Any]] = {}
        self.warnings: list[str] = []
        self.found = Findings(())
        """What the method found last."""

    def at(self, index: int, stage: str = "stage", number: int | None = None) -> Scripted:
        """The same federation at another round; `number` within the run is the index unless given."""
        self.round = Round(stage, index, index if number is None else number)
        return self

    @property
    def sites(self) -> list[str]:
        return list(self.facts)

    def sizes(self) -> dict[str, int]:
        return {site: own.samples for site, own in self.facts.items()}

    def ask(self, request: Request[R] | Mapping[str, Request[R]], sites: Sequence[str] | None = None) -> Replies[R]:
        """As an engine does: an ask of nobody is a mistake, and one that nobody answers breaks the quorum."""
        self.requests.append(request)
        if not isinstance(request, Mapping):
            request = dict.fromkeys(self.sites if sites is None else sites, request)
        if not request:
            raise ConfigError(f"stage '{self.round.stage}' asks no site at all")
        unknown = [site for site in request if site not in self.facts]
        if unknown:
            raise ConfigError(f"stage '{self.round.stage}' asks unknown site '{unknown[0]}'")
        wanted = {site: request[site] for site in self.sites if site in request}
        self.asked.append(dict(wanted))
        self.log += [(self.round.index, site, own) for site, own in wanted.items()]
        answers: dict[str, Any] = {site: self.answer(site, own) for site, own in wanted.items()}
        good = {site: reply for site, reply in answers.items() if reply is not None}
        if not good:
            raise QuorumError("nobody answered")
        return Replies(good, {site: "no reply" for site in answers if site not in good})

    def asked_of(self, kind: type, index: int | None = None) -> list[str]:
        """Sites that were asked this kind of request, in all rounds or in one."""
        return [site for at, site, own in self.log if type(own) is kind and index in (None, at)]

    def initial_weights(self, model: str = "", draw: int = 0) -> Weights:
        if self.weights is None:
            raise ConfigError("this scripted federation has no weights: give it some, e.g. weights={'w': ...}")
        return self.weights

    def model_buffers(self, model: str = "") -> list[str]:
        return list(self.buffers)

    def record(self, **values: Any) -> None:
        self.recorded.update(values)

    def record_sites(self, name: str, values: Mapping[str, Any]) -> None:
        self.recorded_sites.setdefault(name, {}).update(values)

    def find(self, findings: Findings) -> None:
        self.found = findings

    def warn(self, text: str) -> None:
        self.warnings.append(text)


# A network transport without a network
# -------------------------------------


class InMemoryChannel(Channel):
    """Nodes that answer at once in this process. Messages are encoded and notebooks lie on disk, as over a network."""

    def __init__(self, note: Mapping[str, str], places: Sequence[Path]) -> None:
        """`note`: texts that every message carries. `places`: each site's folder; a node's number is its place."""
        self.note, self.places = dict(note), places
        self._answers: dict[str, ReceivedAnswer] = {}
        self._sent = 0

    def nodes(self) -> Iterable[int]:
        return range(len(self.places))

    def send(self, messages: Sequence[tuple[int, Any]], lifetime: float = 0.0) -> list[str | None]:
        return [self._answer(self.places[node], value) for node, value in messages]

    def _answer(self, place: Path, value: Any) -> str:
        reply = answer_message(
            encode(value, **self.note), lambda model: open_simulated(place), "in memory", expose_errors=True
        )
        self._sent += 1
        self._answers[str(self._sent)] = ReceivedAnswer(decode(reply))
        return str(self._sent)

    def collect(self, ids: set[str]) -> list[tuple[str, ReceivedAnswer]]:
        return [(id, self._answers.pop(id)) for id in sorted(ids & self._answers.keys())]


@dataclass(frozen=True)
class InMemory(EngineTransport):
    """The network transport of tests: everything but the network."""

    summary: ClassVar[str] = "encoded messages and sites in folders, without a network"

    def engine(self, study: Study, federated: FederatedDataset) -> Engine:
        return RemoteSimulation(federated, InMemoryChannel, study.model.of_sites(federated.sites))


# What every method promises
# --------------------------


def check_method(method: Method) -> None:
    """Hold a method against the promises that fedsift's own methods keep; raises AssertionError for the first broken.

    The method runs in its tiny form (`method.tiny()`) on five sites of handwritten digits: in process, with the sites
    served in another order, stopped after each round and resumed, and over a network transport. This takes seconds.
    """
    torch_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory(prefix="fedsift-check-") as folder:
            checked = _Checked(method, Path(folder))
            for promise in PROMISES:
                promise(checked)
    finally:
        torch.set_num_threads(torch_threads)


@dataclass(frozen=True)
class _RunOutcome:
    weights: dict[str, Tensor]
    rows: list[dict[str, Any]]
    """The rounds' lines without their clock times and sizes."""
    sites: str

    @classmethod
    def of(cls, folder: RunFolder) -> _RunOutcome:
        from safetensors.torch import load_file

        file = folder.path / "model.safetensors"
        rows = [{k: v for k, v in row.items() if k not in CLOCK_AND_SIZE} for row in folder.rounds()]
        return cls(load_file(file) if file.is_file() else {}, rows, (folder.path / "sites.csv").read_text("utf-8"))

    def difference(self, other: _RunOutcome) -> str:
        """What differs, in a few words; empty where all is equal to the bit."""
        for name, value in self.weights.items():
            if name not in other.weights or not torch.equal(value, other.weights[name]):
                return f"the model's tensor '{name}'"
        for one, two in zip(self.rows, other.rows):
            for key in one.keys() | two.keys():
                if json.dumps(one.get(key)) != json.dumps(two.get(key)):
                    return f"'{key}' of round {one['round']} ({one.get(key)!s:.60} and {two.get(key)!s:.60})"
        if len(self.rows) != len(other.rows):
            return f"the number of rounds ({len(self.rows)} and {len(other.rows)})"
        return "" if self.sites == other.sites else "sites.csv"


CLOCK_AND_SIZE = ("seconds", "bytes_down", "bytes_up")


@dataclass
class _Checked:
    """A method under check: its small study, and the honest run that the promises compare with."""

    method: Method
    folder: Path
    sent: list[tuple[Reply, int]] = field(default_factory=list)
    """Every reply of the honest run, with the number of its site's samples."""
    honest: _RunOutcome | None = None

    def study(self) -> Study:
        return Study.from_table(check_table(self.method))

    def run(self, transport: EngineTransport, until: int | None = None, folder: RunFolder | None = None) -> RunFolder:
        """Run the study over a transport, in a folder of its own; until: the round after which it is stopped."""

        def listen(row: dict[str, Any]) -> None:
            if row["round"] == until:
                raise Stopped("stopped by the check")

        study = self.study()
        made = new_run(study, self.folder) if folder is None else folder
        if folder is not None:
            study = Study.from_file(folder.study_file) if _importable(self.method) else study
        data = self.study().load_data()
        execute_run(study, made, lambda: transport.engine(study, data), listen)
        return made


def check_table(method: Method) -> dict[str, Any]:
    """The study on which `check_method` runs a method: small real data with labels of a kind that it handles."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images, labels = (digits.images * (255 / 16)).astype(np.uint8)[:500, None], digits.target[:500]
    noise: dict[str, Any] = {"name": "fedcorr", "rho": 0.4, "tau": 0.5, "sites": "exact"}
    if "multiclass" not in method.tasks:
        labels = np.stack([labels % 2 == 0, labels >= 5, np.isin(labels, [0, 6, 8, 9])], axis=1).astype(np.int64)
        noise = {"name": "class-missing", "missing": 1}
    table: dict[str, Any] = {
        "name": "check",
        "seed": 11,
        "data": Arrays(
            images[:400], labels[:400], test_images=images[400:], test_labels=labels[400:], true=labels[:400]
        ),
        "partition": {"name": "iid", "sites": 5},
        "noise": noise,
        "model": {"name": "mlp"},
        "train": {"epochs": 1, "batch_size": 32, "lr": 0.05},
        "method": method.tiny(),
        "engine": {"threads": 1, "trainer": "one"},
    }
    if "public" in method.needs:
        table["public"] = {"from_train": 0.1}
    return table


def _importable(method: Method) -> bool:
    return "<locals>" not in type(method).__qualname__


class _WatchedSites(InProcess):
    sent: ClassVar[list[tuple[Reply, int]]] = []

    def deliver(self, envelopes: Mapping[str, RequestEnvelope], deadline: float) -> Mapping[str, ReplyEnvelope]:
        answers = super().deliver(envelopes, deadline)
        self.sent.extend((a.reply, self.facts[site].samples) for site, a in answers.items() if a.reply is not None)
        return answers


class _ReversedSites(InProcess):
    """Serves the sites from the last to the first, each alone."""

    def deliver(self, envelopes: Mapping[str, RequestEnvelope], deadline: float) -> Mapping[str, ReplyEnvelope]:
        answers: dict[str, ReplyEnvelope] = {}
        opened = {}
        for site in reversed(list(envelopes)):
            answers.update(super().deliver({site: envelopes[site]}, deadline))
            opened.update(self._open)
        self._open = opened
        return answers


@dataclass(frozen=True)
class _InProcessOf(EngineTransport):
    kind: type[InProcess]

    def engine(self, study: Study, federated: FederatedDataset) -> Engine:
        return InProcessFederation(federated, study.model.of_sites(federated.sites), study.engine.compute(), self.kind)


def _promise(held: bool, promise: str, found: str) -> None:
    if not held:
        raise AssertionError(f"{promise}: {found}")


def has_a_usable_form(checked: _Checked) -> None:
    """Frozen fields, stages with unique names, a short tiny form, and a study that can be written down."""
    method, rule = checked.method, "a method is a frozen dataclass of plain settings with a short tiny form"
    parameters = getattr(type(method), "__dataclass_params__", None)
    _promise(bool(parameters and parameters.frozen), rule, f"{type(method).__name__} is no frozen dataclass")
    names = [stage.name for stage in method.stages()]
    _promise(len(set(names)) == len(names) > 0, rule, f"its stages are named {names}")
    rounds = method.tiny().total_rounds
    _promise(1 <= rounds <= 40, rule, f"tiny() has {rounds} rounds, 1 to 40 are wanted")


def runs_every_stage(checked: _Checked) -> None:
    """The run goes through all stages, and no honest reply is refused. It is the run that the others compare with."""

    class Watched(_WatchedSites):
        sent = checked.sent

    folder = checked.run(_InProcessOf(Watched))
    checked.honest = _RunOutcome.of(folder)
    stages = {stage.name for stage in checked.method.tiny().stages() if stage.rounds}
    ran = {row["stage"] for row in checked.honest.rows}
    _promise(ran == stages, "every stage runs", f"{sorted(stages - ran)} did not")
    refused = {site: why for row in checked.honest.rows for site, why in row["refused"].items()}
    _promise(not refused, "an honest reply passes the gate", str(refused))


def replies_hold_what_they_declare(checked: _Checked) -> None:
    """Every field of a reply says what it discloses, and no tensor has a row for each sample of its site."""
    _promise(bool(checked.sent), "sites are asked", "no reply was seen")
    for reply, samples in checked.sent:
        _check_reply(reply, samples)


def _check_reply(reply: Reply, samples: int) -> None:
    rule, name = "a reply holds only declared fields, of sums and models", type(reply).__name__
    fields = {one.name: one for one in dataclasses.fields(reply)}
    _promise(vars(reply).keys() == fields.keys(), rule, f"{name} carries {vars(reply).keys() - fields.keys()}")
    for one in fields.values():
        _promise(bool(one.metadata.get("what")), rule, f"{name}.{one.name} does not say what it discloses")
    for inner in getattr(reply, "then", ()):
        _check_reply(inner, samples)
    for tensor in pack(reply)[1].values():
        _promise(
            tensor.dim() == 0 or tensor.shape[0] != samples,
            rule,
            f"{name} has a tensor with a row for each of its site's {samples} samples",
        )


def order_does_not_matter(checked: _Checked) -> None:
    """The sites served in another order, each alone: the same bits."""
    _same(checked, checked.run(_InProcessOf(_ReversedSites)), "any order of the sites gives one result")


def resumed_equals_never_stopped(checked: _Checked) -> None:
    """Stopped after every round and gone on with from the checkpoint: the same bits."""
    assert checked.honest is not None
    folder: RunFolder | None = None
    for number in range(1, len(checked.honest.rows)):
        try:
            folder = checked.run(_InProcessOf(InProcess), until=number, folder=folder)
        except Stopped:
            folder = folder or RunFolder.open(max(checked.folder.iterdir(), key=lambda path: path.stat().st_mtime_ns))
    folder = checked.run(_InProcessOf(InProcess), folder=folder)
    _same(checked, folder, "a stopped and resumed run equals one that never stopped")


def transports_agree(checked: _Checked) -> None:
    """Over a network transport, with every message encoded and every notebook on disk: the same bits."""
    _same(checked, checked.run(InMemory()), "every transport gives one result")


def _same(checked: _Checked, folder: RunFolder, promise: str) -> None:
    assert checked.honest is not None
    different = checked.honest.difference(_RunOutcome.of(folder))
    _promise(not different, promise, f"{different} differs")


PROMISES: tuple[Callable[[_Checked], None], ...] = (
    has_a_usable_form,
    runs_every_stage,
    replies_hold_what_they_declare,
    order_does_not_matter,
    resumed_equals_never_stopped,
    transports_agree,
)
"""What `check_method` checks, in this order."""

__all__ = ["InMemory", "InMemoryChannel", "Script", "Scripted", "check_method", "check_table"]
