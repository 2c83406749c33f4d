"""A site's node comes back by itself when it had joined, and not when it was never let in."""

from __future__ import annotations

from pathlib import Path
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
