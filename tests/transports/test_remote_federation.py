"""How requests reach their sites through a grid that loses, delays, corrupts and renames."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Error, Message
from flwr.supercore.task_identity import TaskIdentity

from fedsift.core import codec
from fedsift.core.errors import ConfigError, QuorumError, RunError
from fedsift.core.version import __version__
from fedsift.protocol.federation import Round
from fedsift.protocol.messages import ReplyEnvelope, RequestEnvelope, SiteFacts
from fedsift.runs.folder import RunFolder
from fedsift.runtime.federation import QuorumPolicy
from fedsift.runtime.gate.protection import GateLimits, Protection
from fedsift.training.recipe import Recipe
from fedsift.training.requests import Evaluate, Evaluated, Train, Trained
from fedsift.transports.flower.channel import FlowerChannel, Unreadable
from fedsift.transports.flower.records import from_records, to_records
from fedsift.transports.remote.encoding import decode, encode
from fedsift.transports.remote.engine import ROSTER_FILE, ExpectedSites, StartRoster, joined_sites
from fedsift.transports.remote.federation import RemoteFederation, gather
from fedsift.transports.remote.introduction import (
    Acknowledged,
    Introduction,
    IntroductionRequest,
    NoSite,
    SiteNotice,
    agree,
    unsound,
)
from fedsift.transports.remote.site_directory import GreetingIntervals, NodeAuthorizer, SiteDirectory, WaitingReport

SITES = ("north", "south", "west")


@pytest.fixture(autouse=True)
def _inside_a_run() -> Iterator[None]:
    """Flower makes messages only inside a process of a run; it keeps the run's number in this place."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    yield
    TaskIdentity._run_id = TaskIdentity._node_id = TaskIdentity._task_id = None


def introduction(site: str, **changes: Any) -> Introduction:
    facts = changes.pop("facts", SiteFacts(site, 10, held_out=4, model="mlp", classes=2))
    told = {"classes": ("a", "b"), "multilabel": False, "shape": (4,), "mean": (0.5,), "std": (0.5,)}
    told["version"] = __version__
    return Introduction(facts, **{**told, **changes})


def counts(site: str) -> Evaluated:
    """A reply that tells which site gave it."""
    one, none = torch.ones(2, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)
    return Evaluated(one, one, none, float(SITES.index(site)), 2, 0)


@dataclass
class Node:
    """A Flower node as the grid sees it: what it answers, and after how long."""

    site: str
    delay: float = 0.0
    says: Callable[[Any], Any] | None = None
    """Another answer than the usual one; None is silence, an `Error` is Flower's."""

    def answer(self, encoded: Any) -> Any:
        if self.says is not None:
            return self.says(encoded)
        if isinstance(encoded, IntroductionRequest):
            return introduction(self.site)
        if isinstance(encoded, SiteNotice):
            return Acknowledged()
        return ReplyEnvelope(encoded.run, self.site, encoded.moment.id, counts(self.site))


@dataclass
class FakeGrid:
    """A grid with a clock of its own: sleeping moves it, and things happen when their time comes."""

    nodes: dict[int, Node]
    now: float = 0.0
    sent: list[tuple[float, int, Any]] = field(default_factory=list)
    waiting: dict[str, tuple[float, Message]] = field(default_factory=dict)
    plans: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    pulled: list[list[str]] = field(default_factory=list)

    def at(self, when: float, action: Callable[[], None]) -> None:
        self.plans.append((when, action))

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for plan in [plan for plan in self.plans if plan[0] <= self.now]:
            self.plans.remove(plan)
            plan[1]()

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            id = f"message-{len(self.sent)}"
            node = message.metadata.dst_node_id
            encoded = decode(from_records(message.content))
            self.sent.append((self.now, node, encoded))
            message.metadata.__dict__["_message_id"] = id
            if node in self.nodes:
                self._plan_answer(id, node, encoded, message)
            ids.append(id)
        return ids

    def _plan_answer(self, id: str, node: int, encoded: Any, message: Message) -> None:
        answer = self.nodes[node].answer(encoded)
        if answer is None:
            return
        content = answer if isinstance(answer, Error) else to_records(encode(answer))
        self.waiting[id] = (self.now + self.nodes[node].delay, Message(content, reply_to=message))

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        ids = list(message_ids)
        self.pulled.append(ids)
        ready = [id for id in reversed(ids) if id in self.waiting and self.waiting[id][0] <= self.now]
        return [self.waiting.pop(id)[1] for id in ready]

    def requests_to(self, node: int) -> list[tuple[float, RequestEnvelope]]:
        return [
            (when, encoded) for when, to, encoded in self.sent if to == node and isinstance(encoded, RequestEnvelope)
        ]


def grid_of(*sites: str) -> FakeGrid:
    return FakeGrid({100 + number: Node(site) for number, site in enumerate(sites or SITES)})


def directory_of(grid: FakeGrid, **pace: float) -> SiteDirectory:
    speeds = {"poll": 1.0, "look_for_nodes": 3.0, "ask_again": 60.0, "absent": 30.0, **pace}
    channel = FlowerChannel(grid, {"model": "mlp"}, clock=lambda: grid.now)  # type: ignore[arg-type]
    return SiteDirectory(channel, GreetingIntervals(**speeds), clock=lambda: grid.now, sleep=grid.sleep)


def federation_of(grid: FakeGrid, deadline: float = 100.0, quorum: float = 0.5, **pace: float) -> RemoteFederation:
    directory = directory_of(grid, **pace)
    gather(directory, SITES, at_least=3, wait=50.0)
    roster = {site: directory.introductions[site] for site in SITES}
    federation = RemoteFederation(
        directory,
        roster,
        run="run",
        seed=1,
        model="mlp",
        quorum=QuorumPolicy(quorum=quorum, deadline=deadline),
    )
    federation.begin(Round("train", 0, 0), (Evaluate,))
    return federation


def ask(federation: RemoteFederation) -> Any:
    return federation.ask(Evaluate({"w": torch.zeros(3)}))


def test_every_site_is_asked_once_and_answers_come_in_the_federations_order() -> None:
    grid = grid_of("west", "north", "south")
    replies = ask(federation_of(grid))
    assert replies.sites == list(SITES)
    assert [reply.loss for reply in replies.values()] == [0.0, 1.0, 2.0]
    assert [len(grid.requests_to(node)) for node in grid.nodes] == [1, 1, 1]


def test_a_slow_site_is_waited_for_and_a_late_one_is_not() -> None:
    grid = grid_of()
    federation = federation_of(grid, deadline=50.0)
    grid.nodes[101].delay, grid.nodes[102].delay = 40.0, 70.0
    replies = ask(federation)
    assert replies.sites == ["north", "south"]
    assert replies.refused == {"west": "no reply within 50 s"}


def test_the_late_reply_is_no_answer_to_the_next_question() -> None:
    grid = grid_of()
    federation = federation_of(grid, deadline=50.0)
    grid.nodes[102].delay = 70.0
    ask(federation)
    grid.nodes[102].delay = 0.0
    grid.pulled.clear()
    late = set(grid.waiting)
    assert ask(federation).sites == list(SITES)
    assert not any(late & set(ids) for ids in grid.pulled)


def test_an_error_of_the_site_is_final_and_names_flowers_code() -> None:
    grid = grid_of()
    federation = federation_of(grid)
    grid.nodes[100].says = lambda encoded: Error(code=2, reason="it raised")
    replies = ask(federation)
    assert replies.refused == {"north": "Flower reports error 2: it raised"}
    assert grid.now < 20.0


def test_a_failure_that_the_site_reports_is_its_answer() -> None:
    grid = grid_of()
    federation = federation_of(grid)
    grid.nodes[100].says = lambda encoded: ReplyEnvelope(
        "run", "north", encoded.moment.id, None, "NotebookGone: it is gone"
    )
    assert ask(federation).refused == {"north": "NotebookGone: it is gone"}


def test_a_reply_that_cannot_be_read_is_set_aside() -> None:
    grid = grid_of()
    federation = federation_of(grid)
    grid.nodes[100].says = lambda encoded: IntroductionRequest()
    assert "IntroductionRequest" in ask(federation).refused["north"]


def test_a_reply_far_longer_than_what_was_asked_is_not_even_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedsift.transports.remote import channel as module

    grid = grid_of()
    federation = federation_of(grid)
    grid.nodes[100].says = lambda encoded: ReplyEnvelope("run", "north", encoded.moment.id, None, "x" * 200_000)
    monkeypatch.setattr(module, "LARGEST_REPLY", 1000)
    refused = ask(federation).refused
    assert (
        list(refused) == ["north"] and "bytes" in refused["north"] and "the most for what was asked" in refused["north"]
    )


def test_a_site_that_comes_back_as_another_node_is_asked_the_same_again() -> None:
    grid = grid_of()
    federation = federation_of(grid)
    grid.nodes[101].says = lambda encoded: None  # it takes the request and dies

    def restart() -> None:
        grid.nodes[777] = Node("south")  # the dead node is still listed for a while

    grid.at(grid.now + 20.0, restart)
    replies = ask(federation)
    assert replies.sites == list(SITES)
    assert replies.refused == {}
    [(_, first)], [(_, second)] = grid.requests_to(101), grid.requests_to(777)
    assert first.moment == second.moment
    assert first.expects == second.expects
    assert federation.directory.node_of["south"] == 777
    assert grid.now < 40.0


def test_a_site_that_comes_back_under_its_old_id_is_asked_again() -> None:
    grid = grid_of()
    federation = federation_of(grid, ask_again=1000.0)
    grid.nodes[101].says = lambda encoded: None
    grid.at(grid.now + 10.0, lambda: grid.nodes.pop(101) and None)
    grid.at(grid.now + 20.0, lambda: grid.nodes.update({101: Node("south")}))
    assert ask(federation).sites == list(SITES)
    assert len(grid.requests_to(101)) == 2


def test_a_silent_site_is_asked_again_more_and_more_patiently() -> None:
    grid = grid_of()
    federation = federation_of(grid, deadline=500.0)
    began = grid.now
    grid.nodes[101].says = lambda encoded: None
    ask(federation)
    asked = [round(when - began) for when, _ in grid.requests_to(101)]
    assert asked == [0, 60, 180, 420]


def test_a_lost_message_is_sent_again_soon() -> None:
    grid = grid_of()
    federation = federation_of(grid)
    answers: list[Any] = [Error(code=5, reason="node unavailable")]
    usual = Node("south")
    grid.nodes[101].says = lambda encoded: answers.pop() if answers else usual.answer(encoded)
    assert ask(federation).sites == list(SITES)
    assert grid.now < 30.0


def test_a_site_that_is_gone_is_waited_for_once_and_a_silent_one_until_the_deadline() -> None:
    grid = grid_of()
    federation = federation_of(grid, deadline=400.0)
    del grid.nodes[102]
    grid.sleep(10.0)
    began = grid.now
    replies = ask(federation)
    assert replies.refused == {"west": "the site has no node: it is not connected"}
    assert 30.0 <= grid.now - began < 40.0
    began = grid.now
    assert ask(federation).sites == ["north", "south"]
    assert grid.now - began < 5.0  # everybody knows by now that it is gone
    grid.nodes[102] = Node("west")
    grid.sleep(10.0)
    ask(federation)  # it is heard while the others answer
    assert ask(federation).sites == list(SITES)
    grid.nodes[101].says = lambda encoded: None
    began = grid.now
    with pytest.raises(QuorumError):
        ask(federation_with_quorum(federation, 0.9))
    assert grid.now - began >= 400.0


def test_a_site_that_is_lost_in_a_round_is_given_up_after_the_grace() -> None:
    grid = grid_of()
    federation = federation_of(grid, deadline=600.0, absent=1e9)
    grid.nodes[102].says = lambda encoded: None
    grid.at(grid.now + 40.0, lambda: grid.nodes.pop(102) and None)  # so long Flower takes to notice
    began = grid.now
    assert ask(federation).sites == ["north", "south"]
    assert 100.0 <= grid.now - began < 110.0  # 40, and the 60 of federation.grace


def test_a_message_that_flower_calls_lost_starts_the_grace_too() -> None:
    grid = grid_of()
    federation = federation_of(grid, deadline=600.0, absent=20.0)
    grid.nodes[102].says = lambda encoded: Error(code=5, reason="node unavailable")
    began = grid.now
    assert ask(federation).refused == {"west": "Flower reports error 5: node unavailable"}
    assert 20.0 <= grid.now - began < 30.0


def test_who_is_waited_for_is_told_and_since_when() -> None:
    grid, told = grid_of(), []
    federation = federation_of(grid, deadline=60.0, quorum=0.3)
    federation.directory.waiting.report, federation.directory.waiting.clock = told.append, lambda: grid.now
    grid.nodes[101].says = lambda encoded: None
    del grid.nodes[102]
    began = grid.now
    ask(federation)
    assert all(later["at"] - earlier["at"] <= 5.0 for earlier, later in pairwise(told))
    first = next(line for line in told if line["waiting"])
    assert first["what"] == "round 1 (train): answers to Evaluate"
    assert first["waiting"]["south"] == "asked"
    assert began <= first["since"] < began + 5.0
    assert any("gone for" in line["waiting"].get("west", "") for line in told)
    assert told[-1]["waiting"] == {}


def test_a_site_is_told_why_it_cannot_take_part() -> None:
    grid = grid_of()
    directory = directory_of(grid)
    grid.nodes[100].says = lambda encoded: introduction("north", version="0.0.1")
    gather(directory, SITES, at_least=3, wait=50.0)
    with pytest.raises(ConfigError, match=r"'north' runs fedsift 0\.0\.1"):
        agree({site: directory.introductions[site] for site in SITES}, directory.set_aside)
    [(_, node, notice)] = [sent for sent in grid.sent if isinstance(sent[2], SiteNotice)]
    assert node == 100
    assert "install the same version" in notice.text


def federation_with_quorum(federation: RemoteFederation, quorum: float) -> RemoteFederation:
    federation.quorum = QuorumPolicy(quorum=quorum, deadline=federation.quorum.deadline)
    return federation


def test_a_node_that_changes_its_facts_or_its_classes_is_not_taken_back() -> None:
    grid = grid_of()
    federation = federation_of(grid, deadline=60.0)
    del grid.nodes[101]
    other = introduction("south", facts=SiteFacts("south", 11, held_out=4, model="mlp", classes=2))
    grid.nodes[300] = Node("south", says=lambda encoded: other if isinstance(encoded, IntroductionRequest) else None)
    grid.sleep(10.0)
    assert "samples=11" in ask(federation).refused["south"]
    assert not grid.requests_to(300)


def test_strangers_and_vacant_nodes_are_not_asked() -> None:
    grid = grid_of()
    federation = federation_of(grid)
    grid.nodes[300] = Node("east")
    grid.nodes[301] = Node("", says=lambda encoded: NoSite())
    grid.sleep(10.0)
    assert ask(federation).sites == list(SITES)
    assert not grid.requests_to(300)
    assert not grid.requests_to(301)


def test_what_the_coordinator_tells_besides_is_the_studys_network() -> None:
    grid = grid_of()
    seen: list[dict[str, str]] = []
    push = grid.push_messages

    def watch(messages: Iterable[Message]) -> Iterable[str]:
        seen.extend(from_records(message.content).note for message in messages)
        return push(messages)

    grid.push_messages = watch  # type: ignore[method-assign]
    ask(federation_of(grid))
    assert seen == [{"model": "mlp"}] * 6


def test_gathering_waits_for_named_sites_and_says_who_is_missing() -> None:
    grid = grid_of("north", "south")
    grid.nodes[400] = Node("west", says=lambda encoded: ReplyEnvelope("", "", "", None, "DataError: no file"))
    with pytest.raises(QuorumError, match=r"2 of at least 3.*missing: west.*no file"):
        gather(directory_of(grid), SITES, at_least=3, wait=20.0)
    assert grid.now >= 20.0
    assert gather(directory_of(grid_of("north", "south")), SITES, at_least=2, wait=20.0) == ["north", "south"]


def test_a_site_that_only_lacks_a_pin_is_not_told_to_start_its_node() -> None:
    grid = grid_of("north", "south")
    grid.nodes[400] = Node("west", says=lambda encoded: None)  # its gateway lets no app in that is not pinned
    directory = directory_of(grid)
    directory.authorizer.site_of = {400: "west"}.get  # type: ignore[assignment]
    heard: list[Any] = []
    directory.waiting = WaitingReport(heard.append, lambda: grid.now)
    with pytest.raises(QuorumError) as error:
        gather(directory, SITES, at_least=3, wait=30.0)
    assert "west: connected, but without an answer; let them pin this app (`fedsift flower pin`)" in str(error.value)
    assert "Start" not in str(error.value)
    assert heard[-2]["waiting"] == {"west": "its node is here and does not answer: has it pinned this app?"}
    with pytest.raises(QuorumError, match=r"missing: west\. Start their nodes, then resume"):
        gather(directory_of(grid_of("north", "south")), SITES, at_least=3, wait=30.0)


def test_a_run_that_goes_on_waits_for_a_lost_site_only_as_long_as_the_grace() -> None:
    grid = grid_of("north", "south")
    grid.at(40.0, lambda: grid.nodes.update({300: Node("west")}))
    assert gather(directory_of(grid), SITES, at_least=2, wait=600.0, grace=20.0) == [
        "north",
        "south",
    ]
    assert grid.now < 30.0
    assert gather(directory_of(grid), SITES, at_least=3, wait=600.0, grace=20.0) == list(SITES)


def test_without_names_whoever_comes_takes_part_by_name() -> None:
    assert gather(directory_of(grid_of("west", "north")), (), at_least=2, wait=20.0) == ["north", "west"]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"facts": {"name": "north"}}, "facts is a dict"),
        ({"facts": None}, "facts is a NoneType"),
        ({"facts": SiteFacts("north", "many", classes=2)}, "facts.samples is a str"),  # type: ignore[arg-type]
        ({"facts": SiteFacts("north", 10**400, classes=2)}, "facts.samples is beyond"),
        ({"facts": SiteFacts(torch.zeros(2), 10, classes=2)}, "facts.name is a Tensor"),  # type: ignore[arg-type]
        ({"facts": SiteFacts("no\x1b[2Jrth", 10, classes=2)}, "do not show"),
        ({"facts": SiteFacts("n" * 300, 10, classes=2)}, "too long"),
        ({"facts": SiteFacts("north", 10, held_out=-1, classes=2)}, "fewer than no samples"),
        ({"facts": SiteFacts("north", 10, classes=3)}, "declares 3 classes and names 2"),
        ({"facts": SiteFacts("north", 10, classes=2, annotated=(0, 7))}, "annotates a class"),
        ({"classes": ("a", "a")}, "one twice"),
        ({"classes": "ab"}, "classes is a str"),
        ({"shape": (10**6, 10**6)}, "samples of shape"),
        ({"shape": (0,)}, "samples of shape"),
        ({"std": (0.0,)}, "divides by std"),
        ({"mean": (float("nan"),)}, "mean[0] is not finite"),
        ({"mean": (1e8,)}, "subtracts the mean"),
        ({"std": (1e-9,)}, "divides by std"),
        ({"std": ()}, "1 means and 0 deviations"),
        ({"shape": (3, 8, 8), "mean": (0.5, 0.5)}, "2 means and 1 deviations"),
        ({"shape": (1,) * 5}, "a shape with 5 sides"),
        ({"version": "v" * 65}, "a fedsift of version"),
        ({"version": "0.2\x1b[2J"}, "a fedsift of version '0.2?[2J'"),
        ({"classes": ("a", "b" * 201)}, "too long"),
        ({"facts": SiteFacts("north", 10, classes=2, annotated=(0, 0))}, "or one twice"),
        ({"facts": SiteFacts("north", 10**9 + 1, classes=2)}, "counts 1000000001 samples"),
        (
            {"facts": SiteFacts("north", 10, public=2**53, public_digest="ab", classes=2)},
            "counts 9007199254740992",
        ),
        ({"facts": SiteFacts("north", 10, test=2**53, classes=2)}, "counts 9007199254740992"),
        ({"facts": SiteFacts("north", 10, public=5, classes=2)}, "5 public samples with the fingerprint ''"),
        ({"facts": SiteFacts("north", 10, public=5, public_digest="any", classes=2)}, "fingerprint 'any'"),
        ({"facts": SiteFacts("north", 10, model="no-such-network", classes=2)}, "is not registered here"),
        (
            {"facts": SiteFacts("north", 10, model="not_asked_for:net", classes=2)},
            "name it in the study's [model]",
        ),
        (
            {"facts": SiteFacts("north", 10, model="features:not_asked_for:look", classes=2)},
            "is not registered here",
        ),
        ({"facts": SiteFacts("north", 10, model="cnn", classes=2)}, "takes no samples of shape (4,)"),
        ({"facts": SiteFacts("north", 10, model="mlp", classes=2), "shape": (10**8,)}, "numbers, too many"),
    ],
)
def test_an_introduction_that_is_none_costs_that_site_its_place_and_no_more(
    changes: dict[str, Any], word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.import_module", lambda name: pytest.fail(f"imported {name}"))
    grid = grid_of()
    grid.nodes[100].says = lambda encoded: introduction("north", **changes)
    directory = directory_of(grid)
    assert gather(directory, [], at_least=2, wait=20.0) == ["south", "west"]
    assert word in directory.refused["node 100"]
    assert directory.refused["node 100"].isprintable()


def test_a_site_may_train_another_registered_network_or_one_that_the_study_names() -> None:
    named = "our_nets.small:Small"
    told = [
        introduction(site, facts=SiteFacts(site, 10, model=model, classes=2))
        for site, model in (("north", "linear"), ("south", named), ("west", ""))
    ]
    assert [unsound(own, ("mlp", named)) for own in told] == [None, None, None]
    assert unsound(told[1], ("mlp",)) is not None


def test_a_run_that_began_with_facts_of_no_sense_is_not_gone_on_with(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    odd = introduction("south", facts=SiteFacts("south", 10, model="not_asked_for:net", classes=2))
    codec.save(tmp_path / ROSTER_FILE, StartRoster({"north": introduction("north"), "south": odd}))
    folder.checkpoint_file.touch()
    grid = grid_of("north", "south")
    with pytest.raises(RunError, match=r"site 'south': the network 'not_asked_for:net' is an address.*a new one"):
        joined_sites(directory_of(grid), folder, ExpectedSites(), QuorumPolicy())
    assert not grid.sent


@pytest.mark.parametrize("encoded", [SiteFacts("north", 10), torch.zeros(3), ["north"] * 1000, None, 7])
def test_a_node_that_does_not_introduce_itself_is_left_out(encoded: Any) -> None:
    grid = grid_of()
    grid.nodes[100].says = lambda asked: {"said": encoded} if encoded is None else encoded
    directory = directory_of(grid)
    assert gather(directory, [], at_least=2, wait=20.0) == ["south", "west"]
    assert "introduced itself by a" in directory.refused["node 100"]


@pytest.mark.parametrize("field", ["run", "failure", "reply"])
def test_an_answer_that_holds_tensors_for_words_costs_that_site_the_round(field: str) -> None:
    grid = grid_of()
    federation = federation_of(grid)
    honest = grid.nodes[100].answer

    def says(encoded: Any) -> Any:
        parts = {"run": encoded.run, "site": "north", "moment_id": encoded.moment.id, "reply": counts("north")}
        return (
            honest(encoded)
            if isinstance(encoded, IntroductionRequest)
            else ReplyEnvelope(**{**parts, field: torch.zeros(2)})
        )

    grid.nodes[100].says = says
    replies = ask(federation)
    assert replies.sites == ["south", "west"]
    assert replies.refused["north"].startswith(f"{field} is a Tensor")


def test_a_greeting_that_came_to_nothing_is_sent_again_until_it_is_answered() -> None:
    grid = grid_of()
    grid.nodes[101].says = lambda encoded: None  # e.g. a site that has not pinned the app yet
    grid.at(70.0, lambda: setattr(grid.nodes[101], "says", None))
    directory = directory_of(grid)
    assert gather(directory, SITES, at_least=3, wait=300.0) == list(SITES)
    assert 120.0 <= grid.now < 130.0
    greetings = [when for when, node, encoded in grid.sent if node == 101 and isinstance(encoded, IntroductionRequest)]
    assert greetings == pytest.approx([0.0, 60.0, 120.0], abs=4.0)
    for _ in range(200):
        directory.meet()
        directory.rest()
    assert len([node for _, node, encoded in grid.sent if isinstance(encoded, IntroductionRequest)]) == 5


class Keeper(NodeAuthorizer):
    """Node 102 is on no list, and node 101 has the key of another site."""

    def admits(self, node: int) -> bool:
        return node != 102

    def objection(self, node: int, own: Introduction) -> str | None:
        return "its key is that of 'east'" if node == 101 else None


def test_a_node_that_is_not_admitted_receives_nothing_and_another_key_speaks_for_nobody() -> None:
    grid = grid_of("north", "north", "west")
    directory = directory_of(grid)
    directory.authorizer = Keeper()
    with pytest.raises(QuorumError, match="node 101: its key is that of 'east'"):
        gather(directory, ("north", "west"), at_least=2, wait=20.0)
    assert {node for _, node, _ in grid.sent} == {100, 101}
    assert directory.node_of == {"north": 100}  # whoever came first or last: the key decides


@dataclass
class Counting(NodeAuthorizer):
    """Knows how often each node was activated."""

    times: dict[int, int] = field(default_factory=dict)

    def arrivals(self, node: int) -> int:
        return self.times.get(node, 1)


def test_a_node_that_was_started_again_under_its_number_is_asked_again_at_once() -> None:
    grid = grid_of()
    federation = federation_of(grid, deadline=300.0)
    keeper = federation.directory.authorizer = Counting()
    federation.directory.meet()
    grid.nodes[101].says = lambda encoded: None  # it dies over the request, which Flower does not notice

    def restarted() -> None:
        grid.nodes[101].says, keeper.times[101] = None, 2

    began = grid.now
    grid.at(began + 10.0, restarted)
    assert ask(federation).sites == list(SITES)
    assert grid.now - began < 20.0  # not the minute after which a silent site is asked again
    assert len(grid.requests_to(101)) == 2
    assert len(grid.requests_to(100)) == 1


class Sharing(NodeAuthorizer):
    def share(self, site: str) -> float:
        return {"west": 0.2}.get(site, 1.0)


def training(site: str) -> Callable[[Any], Any]:
    """A node that trains: the same step of every site."""

    def says(encoded: Any) -> Any:
        if isinstance(encoded, RequestEnvelope):
            model = {"w": torch.ones(3) + torch.tensor([0.1, 0.0, 0.0])}
            return ReplyEnvelope(encoded.run, site, encoded.moment.id, Trained(model, 2, 0.5))
        return introduction(site)

    return says


@pytest.mark.parametrize(("everyone", "wanted"), [(1.0, [2, 2, 1]), (0.1, [2, 2, 2])])
def test_a_site_counts_for_no_more_than_the_roster_says(everyone: float, wanted: list[int]) -> None:
    """1 of 2 + 2 + 1 is 0.2 of the whole; where every site may have but a tenth, all count alike. What is counted,
    and not averaged, is as the sites say."""
    grid = grid_of()
    federation = federation_of(grid)
    federation.protection = Protection(GateLimits(largest_share=everyone))
    federation.directory.authorizer = Sharing()
    assert [reply.samples for reply in ask(federation).values()] == [2, 2, 2]
    for node in grid.nodes.values():
        node.says = training(node.site)
    federation.begin(Round("train", 1, 1), (Train,))
    replies = federation.ask(Train({"w": torch.ones(3)}, Recipe()))
    assert [reply.samples for reply in replies.values()] == wanted
    assert federation.largest_share("west", 3) == min(everyone, 0.2)


def test_only_real_sites_are_judged_by_heuristics_unless_the_study_says_so() -> None:
    """A simulation over the same wire judges form alone; so does one in process."""

    def judges(limits: GateLimits | None, simulated: bool) -> tuple[bool, float]:
        grid = grid_of()
        directory = directory_of(grid)
        gather(directory, SITES, at_least=3, wait=50.0)
        roster = {site: directory.introductions[site] for site in SITES}
        seen = (lambda accepted: None) if simulated else None
        made = RemoteFederation(directory, roster, seen=seen, run="run", seed=1, model="mlp", limits=limits)  # type: ignore[arg-type]
        return made.protection.heuristics, made.largest_share("west", 10)

    assert judges(None, False) == (True, 0.3)
    assert judges(None, True) == (False, 1.0)
    assert judges(GateLimits(heuristics="always"), True) == (True, 0.3)
    assert judges(GateLimits(heuristics="never"), False) == (False, 1.0)
    assert judges(GateLimits(largest_share=0.2), True) == (False, 0.2)


def corrupt(federation: RemoteFederation, grid: FakeGrid, node: int, corrupted: Unreadable) -> None:
    """From now on whatever this node answers cannot be used."""
    look = federation.directory.channel.mailbox.look

    def corrupts(ids: set[str]) -> list[tuple[str, Message | Unreadable]]:
        return [(id, corrupted if grid.sent[int(id.split("-")[1])][1] == node else said) for id, said in look(ids)]

    federation.directory.channel.mailbox.look = corrupts  # type: ignore[method-assign]


def test_an_answer_that_cannot_be_put_together_costs_that_site_the_round_and_no_other() -> None:
    grid = grid_of()
    federation = federation_of(grid)
    corrupt(federation, grid, 102, Unreadable("the answer cannot be put together: KeyError"))
    began = grid.now
    replies = ask(federation)
    assert replies.sites == ["north", "south"]
    assert replies.refused == {"west": "the answer cannot be put together: KeyError"}
    assert grid.now - began < 10.0


def test_an_answer_under_way_is_not_asked_for_twice_and_ends_with_the_round() -> None:
    grid = grid_of()
    federation = federation_of(grid, deadline=200.0)
    grid.nodes[102].says = lambda encoded: None
    federation.directory.channel.mailbox.under_way = lambda ids: {  # type: ignore[method-assign]
        id for id in ids if grid.sent[int(id.split("-")[1])][1] == 102
    }
    began = grid.now
    replies = ask(federation)
    assert replies.refused == {"west": "its answer did not arrive in full within 200 s"}
    assert len(grid.requests_to(102)) == 1
    assert 200.0 <= grid.now - began < 210.0
