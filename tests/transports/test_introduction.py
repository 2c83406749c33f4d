"""Which sites can take part together: no site's word is law, and who differs is set aside aloud."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flwr.supercore.task_identity import TaskIdentity

from fedsift.core import codec
from fedsift.core.errors import ConfigError
from fedsift.core.version import __version__
from fedsift.protocol.messages import SiteFacts
from fedsift.runs.folder import RunFolder
from fedsift.runtime.federation import EngineParts
from fedsift.runtime.in_process import InProcess
from fedsift.study.running import InProcessTransport, new_run
from fedsift.study.study import Study
from fedsift.transports.flower.channel import FlowerChannel
from fedsift.transports.remote.engine import ROSTER_FILE, ExpectedSites, RemoteEngine
from fedsift.transports.remote.introduction import (
    Acknowledged,
    ClassAgreement,
    Introduction,
    IntroductionRequest,
    SiteNotice,
    agree,
)
from fedsift.transports.remote.site_directory import GreetingIntervals
from tests.transports.test_remote_federation import FakeGrid, Node, directory_of, grid_of


@pytest.fixture(autouse=True)
def _inside_a_run() -> Iterator[None]:
    """Flower makes messages only inside a process of a run; it keeps the run's number in this place."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    yield
    TaskIdentity._run_id = TaskIdentity._node_id = TaskIdentity._task_id = None


def told(site: str, model: str = "mlp", public: tuple[int, str] = (0, ""), **changes: Any) -> Introduction:
    facts = SiteFacts(site, 10, model=model, classes=2, public=public[0], public_digest=public[1])
    usual = {"classes": ("a", "b"), "multilabel": False, "shape": (4,), "mean": (0.5,), "std": (0.5,)}
    return Introduction(facts, **{**usual, "version": __version__, **changes})


def roster(*sites: Introduction) -> dict[str, Introduction]:
    return {own.facts.name: own for own in sites}


SWAPPED = ("b", "a")


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"classes": SWAPPED}, "'aachen' has the federation's classes in another order"),
        ({"classes": ("a", "c")}, "'aachen' has classes a, c, the federation has a, b"),
        ({"shape": (5,)}, r"'aachen' has samples of shape \(5,\)"),
        ({"std": (0.25,)}, "'aachen' normalises by"),
        ({"version": "0.0.1"}, r"'aachen' runs fedsift 0\.0\.1"),
    ],
)
def test_the_first_site_by_name_is_not_the_law(changes: dict[str, Any], word: str) -> None:
    sites = roster(told("aachen", **changes), told("bonn"), told("celle"))
    assert list(agree(sites, at_least=2)) == ["bonn", "celle"]
    with pytest.raises(ConfigError, match=word) as raised:
        agree(sites, at_least=3)
    assert "bonn" not in str(raised.value)


def test_a_tie_names_both_sides_and_blames_neither() -> None:
    sites = roster(told("aachen", classes=SWAPPED), told("bonn"), told("celle"), told("düren", classes=SWAPPED))
    with pytest.raises(ConfigError, match=r"aachen, düren: classes b, a; bonn, celle: classes a, b") as raised:
        agree(sites, at_least=2)
    assert "federation.toml (classes)" in str(raised.value)


def test_the_largest_of_many_small_sides_does_not_speak_for_the_others() -> None:
    shapes = [(4,), (4,), (5,), (6,)]
    sites = roster(*(told(f"site-{i}", shape=shape) for i, shape in enumerate(shapes)))
    with pytest.raises(ConfigError, match=r"site-0, site-1: samples of shape \(4,\); site-2: .*; site-3: "):
        agree(sites, at_least=2)


def test_classes_that_the_coordinators_files_name_come_before_the_majority() -> None:
    sites = roster(told("aachen", classes=SWAPPED), told("bonn"), told("celle"))
    assert list(agree(sites, terms=ClassAgreement(classes=SWAPPED), at_least=1)) == ["aachen"]
    with pytest.raises(ConfigError, match=r"'bonn' has the federation's classes in another order \(a, b; .* b, a\)"):
        agree(sites, terms=ClassAgreement(classes=SWAPPED), at_least=2)


def test_where_no_site_has_the_coordinators_classes_its_own_files_are_named() -> None:
    with pytest.raises(ConfigError, match=r"files name the classes x, y, .*'bonn' has a, b.* in federation.toml"):
        agree(roster(told("bonn"), told("celle")), terms=ClassAgreement(classes=("x", "y")), at_least=2)


def test_a_site_with_another_network_is_set_aside_where_the_method_needs_one() -> None:
    sites = roster(told("aachen", "linear"), told("bonn"), told("celle"), told("düren", ""))
    assert list(agree(sites, at_least=2)) == ["aachen", "bonn", "celle", "düren"]
    needed = ClassAgreement(networks=("mlp",))
    assert list(agree(sites, terms=needed, at_least=2)) == ["bonn", "celle"]
    with pytest.raises(ConfigError, match=r"'aachen' trains the network 'linear', the study 'mlp'.*remove `model`"):
        agree(sites, terms=needed, at_least=3)


def test_a_site_with_other_public_samples_is_set_aside_where_the_method_needs_them() -> None:
    same = (7, "ab" * 16)
    sites = roster(told("aachen", public=(7, "cd" * 16)), told("bonn", public=same), told("celle", public=same))
    assert len(agree(sites)) == 3
    assert list(agree(sites, terms=ClassAgreement(public=True), at_least=2)) == ["bonn", "celle"]


def says(own: Introduction) -> Any:
    return lambda encoded: (
        own if isinstance(encoded, IntroductionRequest) else Acknowledged() if isinstance(encoded, SiteNotice) else None
    )


def test_who_differs_is_told_at_its_side_and_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    grid = grid_of("bonn", "celle")
    grid.nodes[300] = Node("aachen", says=says(told("aachen", classes=SWAPPED)))
    post = directory_of(grid)
    while len(post.introductions) < 3:
        post.meet()
        post.rest()
    with caplog.at_level(logging.WARNING, "fedsift.coordinator"):
        agree(dict(sorted(post.introductions.items())), post.set_aside, at_least=2)
    assert "aachen cannot take part" in caplog.text
    [(_, node, notice)] = [sent for sent in grid.sent if isinstance(sent[2], SiteNotice)]
    assert node == 300 and "write them into its site.toml in that order" in notice.text
    assert "aachen" not in post.node_of and "aachen" in post.aside


def test_a_run_begins_without_the_odd_site_and_says_so(tmp_path: Path) -> None:
    grid = FakeGrid({100: Node("bonn", says=says(told("bonn"))), 101: Node("celle", says=says(told("celle")))})
    grid.nodes[102] = Node("aachen", says=says(told("aachen", "linear")))
    names = ("aachen", "bonn", "celle")
    engine = RemoteEngine(
        lambda note: FlowerChannel(grid, note),
        ExpectedSites(names, at_least=2, wait=5.0),
        pace=GreetingIntervals(poll=0.0),
    )  # type: ignore[arg-type]
    federation = engine.open(EngineParts(1, "mlp", one_network=True), RunFolder(tmp_path))
    assert federation.sites == ["bonn", "celle"]
    assert "'aachen' trains the network 'linear'" in federation.set_aside["aachen"]
    assert list(codec.load(tmp_path / ROSTER_FILE).sites) == ["bonn", "celle"]


class OneIsOdd(InProcess):
    def __init__(self, *parts: Any, **keywords: Any) -> None:
        super().__init__(*parts, **keywords)
        self.set_aside = {"aachen": "site 'aachen' has samples of another shape"}


def test_the_first_round_of_a_run_names_who_was_set_aside(tmp_path: Path) -> None:
    study = Study.from_table(
        {
            "data": {"name": "digits"},
            "partition": {"name": "iid", "sites": 2},
            "model": {"name": "linear"},
            "method": {"name": "fedavg", "rounds": 2},
        }
    )
    folder = new_run(study, tmp_path)
    InProcessTransport(OneIsOdd).run(study, folder)
    said = "set aside before the first round: site 'aachen' has samples of another shape"
    assert [said in row["warnings"] for row in folder.rounds()] == [True, False]
