"""Roster, fingerprints and pins from the command line; which node is which site."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedsift.cli.main import app
from fedsift.core.errors import ConfigError, RunError
from fedsift.deploy.app import requested_fields, write_app
from fedsift.deploy.coordinator import starting
from fedsift.deploy.coordinator.roster import (
    NodeKeys,
    RosterEntry,
    add_entry,
    change_entry,
    fingerprint,
    read_entries,
    revoke_entry,
)
from fedsift.deploy.coordinator.server_app import RosterAuthorizer, holders_of
from fedsift.deploy.site.consent import app_fingerprint, pin
from fedsift.deploy.site.data import open_site
from fedsift.deploy.site.session import flower_home
from fedsift.deploy.site.site_file import egress_of, read_site_file
from fedsift.deploy.site.site_file_head import read_head
from fedsift.study.study import Study
from tests.deploy.keys import Authority, site_key
from tests.deploy.test_site_data import write_site

runner = CliRunner()
KEYS = ["sha256:" + encoded * 64 for encoded in "abc"]
PINS = ["sha256:" + encoded * 64 for encoded in "0123"]


def call(*arguments: object) -> str:
    result = runner.invoke(app, ["flower", *map(str, arguments)])
    if result.exception is not None:
        raise result.exception
    return result.output


def test_a_coordinators_roster_by_commands(tmp_path: Path) -> None:
    file = tmp_path / "federation.toml"
    file.write_text('# ours\nsites = ["north"]  # in this order\n\n[test]\nname = "digits"\n', "utf-8")
    _, north = site_key(tmp_path, "north")
    _, south = site_key(tmp_path, "south")
    mark = call("fingerprint", north).strip()
    assert mark == fingerprint(north.read_bytes())
    call("roster", "add", "north", north, "--samples", 100, "--roster", file)
    call("roster", "add", "south", south, "--samples", 200, "--roster", file)
    call("roster", "revoke", "north", "--roster", file)
    listed = json.loads(call("roster", "list", "--roster", file, "--json"))
    assert [(row["name"], row["samples"], row["revoked"]) for row in listed] == [
        ("north", 100, True),
        ("south", 200, False),
    ]
    assert listed[0]["key"] == mark
    text = file.read_text("utf-8")
    assert text.startswith('# ours\nsites = ["north"]  # in this order\n')
    assert tomllib.loads(text)["test"] == {"name": "digits"}
    assert "revoked" in call("roster", "list", "--roster", file)
    call("roster", "revoke", "north", "--roster", file)  # twice is once
    assert text == file.read_text("utf-8")


def test_a_site_comes_back_and_gets_a_new_key_by_commands(tmp_path: Path) -> None:
    file, key = tmp_path / "federation.toml", "--roster"
    file.write_text("# ours\n", "utf-8")
    _, north = site_key(tmp_path, "north")
    _, south = site_key(tmp_path, "south")
    _, fresh = site_key(tmp_path, "fresh")
    call("roster", "add", "north", north, "--samples", 100, "--share", 0.5, key, file)
    call("roster", "add", "south", south, "--samples", 200, key, file)
    before = read_entries(file)
    call("roster", "revoke", "north", key, file)
    assert "it is revoked still" in call("roster", "key", "north", fresh, key, file)
    assert "may speak again" in call("roster", "reinstate", "north", key, file)
    mark = fingerprint(fresh.read_bytes())
    assert read_entries(file) == (RosterEntry("north", mark, 100, False, 0.5), before[1])
    assert file.read_text("utf-8").startswith("# ours\n")
    text = file.read_text("utf-8")
    with pytest.raises(ConfigError, match=f"key '{before[1].key}' stands there twice"):
        call("roster", "key", "north", south, key, file)
    with pytest.raises(ConfigError, match="lists no site 'west'; it lists north, south"):
        call("roster", "reinstate", "west", key, file)
    call("roster", "reinstate", "north", key, file)  # twice is once
    assert file.read_text("utf-8") == text


def test_the_old_key_of_a_site_speaks_for_nobody(holders: RosterAuthorizer, tmp_path: Path) -> None:
    change_entry(tmp_path / "federation.toml", "north", key=KEYS[2])
    assert [holders.admits(node) for node in (11, 22, 33)] == [False, True, True]
    assert holders.objection(33, introduced(tmp_path, name="north", samples=100)) is None


def test_commands_of_operators_answer_as_json(tmp_path: Path) -> None:
    file = tmp_path / "federation.toml"
    _, north = site_key(tmp_path, "north")
    mark = json.loads(call("fingerprint", north, "--json"))["fingerprint"]
    listed = {"name": "north", "key": mark, "samples": 9, "revoked": False, "share": 1.0}
    assert json.loads(call("roster", "add", "north", north, "--samples", 9, "--roster", file, "--json")) == listed
    for command, revoked in (("revoke", True), ("reinstate", False)):
        said = json.loads(call("roster", command, "north", "--roster", file, "--json"))
        assert said == {**listed, "revoked": revoked}
    study = Study.from_table({"method": {"name": "fedavg"}})
    write_app(study, tmp_path / "app")
    requests, fields = requested_fields(study)
    policy = json.loads(call("policy", tmp_path / "app", "--json"))["policy"]
    assert (policy["requests"], policy["fields"]) == (list(requests), list(fields))
    site = write_site(tmp_path / "site", policy={"requests": [], "fields": list(fields)})
    pinned = json.loads(call("pin", tmp_path / "app", site, "--json"))
    assert pinned["app"] == app_fingerprint(tmp_path / "app")
    assert set(pinned["not_allowed_by_policy"]) == set(requests)
    call("allow", "first", site, "--app", tmp_path / "app")
    assert json.loads(call("allow", "run-7", site, "--app", tmp_path / "app", "--json"))["allowed_runs"] == [
        "first",
        "run-7",
    ]
    assert json.loads(call("withdraw", site, "--json")) == {"site": "north", "runs": [], "erased": False}


def test_a_key_and_a_name_are_listed_once(tmp_path: Path) -> None:
    file = tmp_path / "federation.toml"
    _, north = site_key(tmp_path, "north")
    call("roster", "add", "north", north, "--samples", 1, "--roster", file)
    for name, words in (("north", "'north' stands there twice"), ("other", "stands there twice")):
        with pytest.raises(ConfigError, match=words):
            call("roster", "add", name, north, "--samples", 1, "--roster", file)
    with pytest.raises(ConfigError, match="whole number above 0"):
        add_entry(file, RosterEntry("x", KEYS[0], 0))
    with pytest.raises(ConfigError, match="lists no site 'west'; it lists north"):
        call("roster", "revoke", "west", "--roster", file)
    with pytest.raises(ConfigError, match="does not exist"):
        call("fingerprint", tmp_path / "none.pub")
    assert [entry.name for entry in read_entries(file)] == ["north"]


def test_a_roster_in_another_spelling_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "federation.toml"
    text = f'site = [{{name = "a", key = "{KEYS[0]}", samples = 1}}]\n'
    file.write_text(text, "utf-8")
    with pytest.raises(ConfigError, match=r"as a \[\[site\]\] table"):
        revoke_entry(file, "a")
    assert file.read_text("utf-8") == text


# Which node is which site --------------------------------------------------------------------------------------------


@pytest.fixture
def holders(tmp_path: Path) -> RosterAuthorizer:
    for number, name in enumerate(("north", "south")):
        add_entry(tmp_path / "federation.toml", RosterEntry(name, KEYS[number], 100))
    book = NodeKeys(tmp_path / "nodes.json")
    book.note(11, KEYS[0])
    book.note(22, KEYS[1])
    book.note(33, KEYS[2])  # let in once, and taken off the list
    return RosterAuthorizer(tmp_path / "federation.toml", tmp_path / "nodes.json")


def introduced(tmp_path: Path, **facts: Any) -> Any:
    own = open_site(write_site(tmp_path / "site")).introduction("mlp")
    return dataclasses.replace(own, facts=dataclasses.replace(own.facts, **facts))


def test_a_key_speaks_for_one_name(holders: RosterAuthorizer, tmp_path: Path) -> None:
    north = introduced(tmp_path, name="north", samples=100)
    assert holders.objection(11, north) is None
    assert "its key is that of 'south'" in (holders.objection(22, north) or "")
    assert "not on the roster" in (holders.objection(33, north) or "")
    assert "not on the roster" in (holders.objection(44, north) or "")
    assert [holders.admits(node) for node in (11, 22, 33, 44)] == [True, True, False, False]


def test_more_samples_than_the_roster_allows_are_refused(holders: RosterAuthorizer, tmp_path: Path) -> None:
    greedy = introduced(tmp_path, name="north", samples=101)
    assert "declares 101 samples, the roster allows 100" in (holders.objection(11, greedy) or "")


def test_a_revoked_site_receives_nothing_from_then_on(holders: RosterAuthorizer, tmp_path: Path) -> None:
    revoke_entry(tmp_path / "federation.toml", "north")
    assert [holders.admits(node) for node in (11, 22)] == [False, True]


def test_a_node_that_comes_again_is_counted_on_and_another_number_begins_anew(
    holders: RosterAuthorizer, tmp_path: Path
) -> None:
    gateway = NodeKeys(tmp_path / "nodes.json")  # another process than the one that looks
    assert [holders.arrivals(node) for node in (11, 22, 44)] == [1, 1, 0]
    gateway.note(11, KEYS[0])
    assert [holders.arrivals(node) for node in (11, 22)] == [2, 1]
    gateway.note(12, KEYS[0])
    assert [holders.arrivals(node) for node in (11, 12)] == [0, 1]


def test_a_key_has_one_node_and_others_cannot_read_the_book(holders: RosterAuthorizer, tmp_path: Path) -> None:
    NodeKeys(tmp_path / "nodes.json").note(12, KEYS[0])  # a SuperLink that forgot gives another number
    assert [holders.admits(node) for node in (11, 12)] == [False, True]
    assert (tmp_path / "nodes.json").stat().st_mode & 0o777 == 0o600
    with pytest.raises(ConfigError, match="put the file back"):
        holders_of(str(tmp_path / "gone.toml"), str(tmp_path / "nodes.json"))


# Pins ----------------------------------------------------------------------------------------------------------------


def test_an_app_is_known_by_the_bytes_that_flower_sends(tmp_path: Path) -> None:
    study = tmp_path / "study.toml"
    study.write_text('[model]\nname = "mlp"\n[method]\nname = "fedavg"\n')
    said = runner.invoke(app, ["deploy", str(study), "--out", str(tmp_path / "app")]).output
    mark = app_fingerprint(tmp_path / "app")
    assert mark in said
    with (tmp_path / "app" / "federation.toml").open("a") as file:
        file.write("# the coordinator's own, and no part of the app\n")
    assert app_fingerprint(tmp_path / "app") == mark
    shutil.copytree(tmp_path / "app", tmp_path / "evil")
    with (tmp_path / "evil" / "fedsift_app" / "client.py").open("a") as file:
        file.write("\nimport os\n")
    assert app_fingerprint(tmp_path / "evil") != mark
    packed = tmp_path / "some.fab"
    packed.write_bytes(b"bytes")
    assert app_fingerprint(packed) == f"sha256:{hashlib.sha256(b'bytes').hexdigest()}"
    with pytest.raises(ConfigError, match="is no app"):
        app_fingerprint(tmp_path / "nowhere")


def test_pins_are_added_to_the_sites_own_file_and_nothing_else_changes(tmp_path: Path) -> None:
    path = write_site(tmp_path)
    before = tomllib.loads(path.read_text("utf-8"))
    for number, mark in enumerate(PINS, 1):
        call("pin", mark, path)
        call("pin", mark, path)
        assert read_head(path).apps == {each.removeprefix("sha256:") for each in PINS[:number]}
    after = tomllib.loads(path.read_text("utf-8"))
    assert after.pop("apps") == PINS
    assert after == before


@pytest.mark.parametrize(
    "text",
    [
        'name = "a"\napps = [\n  "{pin}",  # the first\n]\n[data]\nname = "digits"\n',
        'name = "a"\n# apps = []\n[data]\nname = "digits"\n[public]\nname = "digits"\n',
        'apps = ["{pin}"]\nname = "a"\nclasses = [\n  "x",\n]\n[data]\nname = "digits"',
    ],
)
def test_pins_in_every_spelling(tmp_path: Path, text: str) -> None:
    path = tmp_path / "site.toml"
    if "classes" not in text:
        text = 'classes = ["x", "y"]\n' + text
    path.write_text(text.format(pin=PINS[0]), "utf-8")
    pin(PINS[1], path)
    assert tomllib.loads(path.read_text("utf-8"))["apps"][-1] == PINS[1]


@pytest.fixture
def open_mask() -> Iterator[None]:
    """The usual mask, under which new files can be read by everyone."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_mask")
@pytest.mark.parametrize("rights", [0o600, 0o640, 0o644])
def test_a_file_that_a_command_changes_keeps_its_rights(tmp_path: Path, rights: int) -> None:
    site = write_site(tmp_path)
    site.chmod(rights)
    pin(PINS[0], site)
    assert site.stat().st_mode & 0o777 == rights
    roster = tmp_path / "federation.toml"
    add_entry(roster, RosterEntry("north", KEYS[0], 10))
    assert roster.stat().st_mode & 0o777 == 0o600  # a new one is for its account alone
    roster.chmod(rights)
    add_entry(roster, RosterEntry("south", KEYS[1], 10))
    assert roster.stat().st_mode & 0o777 == rights
    revoke_entry(roster, "south")
    assert roster.stat().st_mode & 0o777 == rights


def test_a_pin_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="64 hexadecimal digits"):
        read_head(write_site(tmp_path, apps=["sha256:abc"]))


def test_two_site_files_in_one_folder_share_nothing(tmp_path: Path) -> None:
    first = write_site(tmp_path)
    second = first.with_name("other.toml")
    second.write_text(first.read_text("utf-8").replace('"north"', '"south"', 1), "utf-8")
    runtimes = [open_site(path) for path in (first, second)]
    assert runtimes[0].name != runtimes[1].name
    assert runtimes[0].secret != runtimes[1].secret
    assert runtimes[0].notebook != runtimes[1].notebook
    assert flower_home(first) != flower_home(second)
    assert len({egress_of(path, read_site_file(path)) for path in (first, second)}) == 2


def test_the_roster_bounds_what_a_site_counts_for_as_it_stands_now(holders: RosterAuthorizer, tmp_path: Path) -> None:
    file = tmp_path / "federation.toml"
    assert [holders.share(site) for site in ("north", "unlisted")] == [1.0, 1.0]
    add_entry(file, RosterEntry("west", KEYS[2], 100, share=0.25))
    assert [holders.share(site) for site in ("north", "west")] == [1.0, 0.25]
    revoke_entry(file, "west")
    assert read_entries(file)[2] == RosterEntry("west", KEYS[2], 100, True, 0.25)
    _, east = site_key(tmp_path, "east")
    call("roster", "add", "east", east, "--samples", 5, "--share", 0.5, "--roster", file)
    assert json.loads(call("roster", "list", "--json", "--roster", file))[3]["share"] == 0.5
    assert "25%" in call("roster", "list", "--roster", file)


def test_those_who_may_come_are_known_by_name_but_not_the_revoked(tmp_path: Path) -> None:
    roster = tmp_path / "federation.toml"
    for name, key in zip(("north", "south", "east"), KEYS, strict=True):
        add_entry(roster, RosterEntry(name, key, 10))
    holders = RosterAuthorizer(roster, tmp_path / "nodes.jsonl")
    assert holders.names() == ("north", "south", "east")
    revoke_entry(roster, "south")
    assert holders.names() == ("north", "east")


def test_a_pin_says_what_the_sites_policy_withholds_of_the_app(tmp_path: Path) -> None:
    study = Study.from_table({"method": {"name": "label-audit"}})
    write_app(study, tmp_path / "app")
    requests, fields = requested_fields(study)
    narrow = {"requests": requests, "fields": fields, "audit": True}
    whole = write_site(tmp_path / "whole", policy=narrow)
    assert "cannot run here" not in call("pin", tmp_path / "app", whole)
    unset = write_site(tmp_path / "unset", policy={"audit": True})
    assert "cannot run here" not in call("pin", tmp_path / "app", unset)
    cut = write_site(tmp_path / "cut", policy={"requests": requests[1:], "fields": fields[:-1]})
    words = call("pin", tmp_path / "app", cut)
    assert f"cannot run here, for it needs {requests[0]}, {fields[-1]}, audit = true" in words
    assert "cannot run here" not in call("pin", app_fingerprint(tmp_path / "app"), cut)


def test_a_link_that_a_killed_meeting_point_left_is_gone_before_the_next_one_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roster = tmp_path / "federation.toml"
    add_entry(roster, RosterEntry("north", KEYS[0], 10))
    home = tmp_path / "home"
    home.mkdir()
    (home / starting.LINK_FILE).write_text("{}", "utf-8")

    def no_further(*_: object) -> None:
        raise RunError("no further")

    monkeypatch.setattr(starting, "temporary_certificate", no_further)
    pair = Authority(tmp_path / "keys").server()
    with pytest.raises(RunError, match="no further"):
        starting.host("127.0.0.1", 0, pair, roster, home=home, say=lambda words: None)
    assert not (home / starting.LINK_FILE).exists()
