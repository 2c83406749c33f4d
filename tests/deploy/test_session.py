"""A site's node comes back by itself when it had joined, and not when it was never let in."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedsift.core.errors import ConfigError
from fedsift.deploy import flower_commands
from fedsift.deploy.site import session as attending
from fedsift.deploy.site.session import AGAIN_AFTER, NodeSession, attend
from fedsift.deploy.site.site_file import read_site_file
from fedsift.deploy.site.site_file_head import read_head
from tests.deploy.keys import Authority, site_key
from tests.deploy.test_site_data import write_site


def test_a_node_that_had_joined_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    early = NodeSession(5, joined=False, too_early=True)  # it lost power, and Flower does not know yet
    visits = [early, NodeSession(0, joined=True), NodeSession(5, joined=True), NodeSession(5, joined=False)]
    lives: list[NodeSession] = []

    def visit(*parts: Any) -> NodeSession:
        lives.append(visits[len(lives)])
        return lives[-1]

    monkeypatch.setattr(attending, "_visit", visit)
    monkeypatch.setattr(flower_commands.SiteProcess, "start", lambda worker: None)
    told: list[str] = []
    rests: list[float] = []
    key, _ = site_key(tmp_path, "node")
    code = attend(
        write_site(tmp_path / "site"),
        "127.0.0.1:9",
        ca=Authority(tmp_path / "authority").ca,
        key=key,
        home=tmp_path / "home",
        say=told.append,
        rest=rests.append,
    )
    assert (code, lives, rests) == (5, visits, [AGAIN_AFTER] * 3)
    assert "nobody answers" in told[1]
    assert "no app is pinned" in told[2]
    assert "another program uses this site's key" in told[3]
    assert (tmp_path / "home").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(("address", "words"), [("fed.example.org", "host:port"), ("127.0.0.1:9", "private key")])
def test_mistakes_show_before_anything_starts(tmp_path: Path, address: str, words: str) -> None:
    site = write_site(tmp_path / "site")
    ca = Authority(tmp_path / "authority").ca
    with pytest.raises(ConfigError, match=words):
        attend(site, address, ca=ca, key=tmp_path / "none", home=tmp_path / "home", say=print)
    assert not (tmp_path / "home").exists()


class Seen(Exception):
    """Enough was seen."""


def test_a_sites_gateway_takes_answers_of_the_size_that_its_file_says_and_asks_no_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateways: list[dict[str, Any]] = []

    def gateway(upstream: str, client: Any, **options: Any) -> None:
        gateways.append({"client": client, **options})
        raise Seen

    monkeypatch.setattr(attending, "Gateway", gateway)
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    ca = Authority(tmp_path / "authority").ca
    for folder, changes in (("usual", {}), ("own", {"largest_answer": 3})):
        site = write_site(tmp_path / folder, **changes)
        with pytest.raises(Seen):
            attending._visit(site, "127.0.0.1:9", ca, ca, None, tmp_path / "home", print)  # type: ignore[arg-type]
    assert [each["limits"].answer_bytes for each in gateways] == [16 * 2**20, 3 * 2**20]
    assert not any(each["client"].trust_env for each in gateways)
    with pytest.raises(ConfigError, match="'largest_answer' = 0, in MB, must be a whole number above 0"):
        read_head(write_site(tmp_path / "none", largest_answer=0))
    assert read_site_file(tmp_path / "own" / "site.toml").largest_answer == 3


class Node:
    """A SuperNode that runs until it is told to have ended."""

    def __init__(self, code: int | None) -> None:
        self.code = code

    def poll(self) -> int | None:
        return self.code


class Serving:
    """A gateway's server: it looks whether all is well, as often as the real one does, until it is not."""

    def __init__(self, gateway: Any, listener: Any, context: Any, *, alive: Any, notify: Any) -> None:
        self.alive = alive

    def run(self) -> None:
        for _ in range(3):
            if not self.alive():
                return
        raise Seen


@pytest.fixture
def visit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A visit of a node that ends with this code, or goes on, by what its gateway has seen."""
    told: list[str] = []

    def visited(code: int | None, **seen: Any) -> Any:
        state = {"joined": False, "too_early": False, "clock_trouble": "", "heartbeat_stopped": False, **seen}
        monkeypatch.setattr(attending, "Gateway", lambda *parts, **options: SimpleNamespace(**state))
        monkeypatch.setattr(attending, "GatewayServer", Serving)
        monkeypatch.setattr(attending, "node_of", lambda *parts: nullcontext(Node(code)))
        ca = Authority(tmp_path / "authority").ca
        key, _ = site_key(tmp_path, "node")
        worker: Any = SimpleNamespace(place=tmp_path / "socket", start=lambda: None, keep=lambda say: None)
        site = write_site(tmp_path / "site")
        return attending._visit(site, "127.0.0.1:9", ca, key, worker, tmp_path / "home", told.append), told

    return visited


def test_a_clock_that_the_coordinator_refuses_ends_the_site_with_the_reason(visit: Any) -> None:
    with pytest.raises(ConfigError, match=r"refuses this site: the site's clock is 8 s ahead") as error:
        visit(None, clock_trouble="the site's clock is 8 s ahead of this one, 5 s are accepted")
    assert error.value.exit_code == 2


def test_a_node_without_heartbeats_is_started_again_and_that_is_said(visit: Any) -> None:
    session, told = visit(None, joined=True, heartbeat_stopped=True)
    assert session == NodeSession(0, joined=True)
    assert "has stopped its heartbeats" in told[-1]


def test_a_node_that_was_not_let_in_is_no_success_even_if_flower_says_so(visit: Any) -> None:
    assert visit(0)[0] == NodeSession(5, joined=False)
    assert visit(0, joined=True)[0] == NodeSession(0, joined=True)
