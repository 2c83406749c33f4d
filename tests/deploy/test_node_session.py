"""A site that lost power signs off for its last node, with its own key, and never beside a life that goes on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr")
from flwr.proto.fleet_pb2 import DeactivateNodeRequest

from fedsift.core.errors import ConfigError
from fedsift.deploy.certificates import server_context
from fedsift.deploy.coordinator.roster import RosterEntry, fingerprint
from fedsift.deploy.gateway.listener import GatewayServer, bind
from fedsift.deploy.site.session import DEACTIVATE, LAST_NODE, announce_end, note_node, only_one
from tests.deploy.keys import Authority, site_key
from tests.deploy.test_gateway import Setting


class Standing:
    """A coordinator's gateway that listens, with the site's key on its roster."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder / "authority")
        self.key, public = site_key(folder, "node")
        self.setting = Setting(folder)
        self.setting.list(RosterEntry("north", fingerprint(public.read_bytes()), 100))
        listener = bind("127.0.0.1", 0)
        self.address = f"127.0.0.1:{listener.getsockname()[1]}"
        self.server = GatewayServer(self.setting.gateway, listener, server_context(self.authority.server()))
        self._thread = threading.Thread(target=self.server.run)
        self._thread.start()

    def close(self) -> None:
        self.server.should_exit = True
        self._thread.join()


@pytest.fixture
def standing(tmp_path: Path) -> Iterator[Standing]:
    made = Standing(tmp_path)
    yield made
    made.close()


def test_the_last_node_is_signed_off_once_and_with_the_sites_key(standing: Standing, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    assert not announce_end(home, standing.address, standing.authority.ca, standing.key)  # there was none
    note_node(home, 17)
    assert (home / LAST_NODE).stat().st_mode & 0o777 == 0o600
    assert announce_end(home, standing.address, standing.authority.ca, standing.key)
    [(path, _, body)] = standing.setting.upstream.calls
    assert (path, DeactivateNodeRequest.FromString(body).node_id) == (DEACTIVATE, 17)
    assert not announce_end(home, standing.address, standing.authority.ca, standing.key)
    assert len(standing.setting.upstream.calls) == 1


def test_a_stranger_cannot_sign_anybody_off(standing: Standing, tmp_path: Path) -> None:
    stranger, _ = site_key(tmp_path, "stranger")
    note_node(tmp_path, 17)
    assert not announce_end(tmp_path, standing.address, standing.authority.ca, stranger)
    assert standing.setting.upstream.calls == []


def test_nothing_depends_on_it(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    note_node(tmp_path, 17)
    assert not announce_end(tmp_path, "127.0.0.1:9", authority.ca, site_key(tmp_path, "key")[0])  # nobody listens
    (tmp_path / LAST_NODE).write_text("no number")
    assert not announce_end(tmp_path, "127.0.0.1:9", authority.ca, tmp_path / "no key")


def test_a_second_program_of_a_site_is_refused_while_the_first_runs(tmp_path: Path) -> None:
    with (
        only_one(tmp_path / "home"),
        pytest.raises(ConfigError, match="runs already"),
        only_one(tmp_path / "home"),
    ):
        pass
    with only_one(tmp_path / "home"):
        pass
