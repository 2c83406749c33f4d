"""Who has no listed key cannot fill the log, silence the operator, or keep others out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedsift.deploy.gateway.access_log import (
    FIRST_FEW,
    FORGOTTEN_AFTER,
    KEPT,
    MAX_CLIENTS_OF_A_KIND,
    SUMMED_UP_EVERY,
    AccessLog,
    ThrottledLog,
)
from fedsift.deploy.gateway.limits import MAX_CLIENTS, PUSH, WRITTEN_EVERY, KeyLimits, UnknownClients, client_of
from tests.deploy.test_gateway import PULL, Key, Setting

FEW = KeyLimits(refusals=5, refusals_a_second=0.001, hold_seconds=0.0)


def test_requests_without_a_key_are_looked_at_a_few_times_only(tmp_path: Path) -> None:
    setting = Setting(tmp_path, limits=FEW)
    statuses = [setting.post("/" + "a" * 300, headers={}).status_code for _ in range(3)]
    statuses += [setting.post(PUSH, headers=Key().headers()).status_code for _ in range(197)]
    assert statuses == [404] * 3 + [403] * 2 + [429] * 195
    lines = setting.lines()
    assert [line["status"] for line in lines] == [404] * 3 + [403] * 2 + [429]
    assert setting.log.stat().st_size < 5000


def test_what_was_not_looked_at_is_written_down_as_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setting, now = Setting(tmp_path, limits=FEW), [0.0]
    setting.gateway.unknown_clients = UnknownClients(FEW, clock=lambda: now[0])
    for _ in range(5 + 1 + 40):
        setting.post(PULL, headers={})
    setting.gateway.tick()
    assert len(setting.lines()) == 6  # not before its time
    now[0] += WRITTEN_EVERY
    setting.gateway.tick()
    setting.gateway.tick()
    *_, last = setting.lines()
    assert (last["from"], last["status"], last["count"]) == ("127.0.0.1", 429, 40)
    setting.post(PULL, headers={})
    assert len(setting.lines()) == 7  # still counted: one line for each time
    now[0] += WRITTEN_EVERY
    setting.gateway.tick()
    assert setting.lines()[-1]["count"] == 1
    now[0] += WRITTEN_EVERY
    setting.gateway.tick()
    assert len(setting.lines()) == 8


def test_a_listed_site_behind_the_same_address_goes_on(tmp_path: Path) -> None:
    setting = Setting(tmp_path, limits=FEW)
    assert setting.post(PULL).status_code == 200
    for _ in range(10):
        setting.post(PULL, headers={})
    assert setting.post(PULL).status_code == 200
    stranger = Key()
    stolen = stranger.headers(claims=setting.key.pem)  # its key's name, from its own address
    assert setting.post(PULL, headers=stolen).status_code == 401
    assert setting.post(PULL, headers=stranger.headers()).status_code == 429


def test_an_address_earns_its_way_back_and_addresses_do_not_fill_the_memory() -> None:
    now = [0.0]
    callers = UnknownClients(KeyLimits(refusals=2, refusals_a_second=1.0), clock=lambda: now[0])
    for _ in range(2):
        callers.count_refusal("a")
    assert callers.is_over_limit("a")
    assert not callers.is_over_limit("b")
    now[0] += 1.0
    assert not callers.is_over_limit("a")
    for number in range(3 * MAX_CLIENTS):
        callers.count_refusal(f"caller {number}")
        callers.count_refusal(f"caller {number}")
        callers.should_log(f"caller {number}")
    assert len(callers._allowances) <= MAX_CLIENTS + 1
    assert len(callers._ignored) <= MAX_CLIENTS + 1
    assert callers.is_over_limit("one more")  # of those that share a place
    now[0] += 3 * MAX_CLIENTS
    assert not callers.is_over_limit("one more still")


@pytest.mark.parametrize(
    ("address", "caller"),
    [
        ("9.9.9.9", "9.9.9.9"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::7%eth0", "2001:db8:1:2::/64"),
        ("::ffff:9.9.9.9", "9.9.9.9"),
        ("", ""),
    ],
)
def test_a_network_of_addresses_is_one_caller(address: str, caller: str) -> None:
    assert client_of(address) == caller


def test_a_flood_of_made_up_keys_does_not_silence_the_gateway(tmp_path: Path) -> None:
    told: list[str] = []
    now = [0.0]
    limits = KeyLimits(refusals=10**6, hold_seconds=0.0)
    setting = Setting(tmp_path, limits=limits)
    setting.gateway.operator_log = ThrottledLog(told.append, clock=lambda: now[0])
    keys = [Key() for _ in range(20)]
    for key in keys:
        setting.post(PULL, headers=key.headers())
    assert len(told) == FIRST_FEW
    assert told[0].startswith(f"an unknown client (127.0.0.1) was refused: the key {keys[0].mark[:23]}...")
    setting.gateway.tick()
    assert len(told) == FIRST_FEW
    now[0] += SUMMED_UP_EVERY
    setting.gateway.tick()
    assert told[FIRST_FEW:] == [
        f"17 more like that from 127.0.0.1 in 10 minutes, the last: an unknown client (127.0.0.1) was refused: the key "
        f"{keys[-1].mark[:23]}... is not on this federation's roster"
    ]
    setting.post(PULL, headers={})  # another kind is told at once
    assert len(told) == FIRST_FEW + 2


def test_many_addresses_share_a_place_and_are_not_forgotten() -> None:
    told: list[str] = []
    now = [0.0]
    log = ThrottledLog(told.append, clock=lambda: now[0])
    for number in range(MAX_CLIENTS_OF_A_KIND + 50):
        log.report("401", f"10.0.0.{number}", f"refused {number}")
    assert len(told) == MAX_CLIENTS_OF_A_KIND + FIRST_FEW
    now[0] += SUMMED_UP_EVERY
    log.summarise()
    assert told[-1] == "47 more like that from other addresses in 10 minutes, the last: refused 113"
    now[0] += FORGOTTEN_AFTER
    log.report("401", "10.9.9.9", "the next day")
    assert told[-1] == "the next day"


def test_the_list_of_who_came_is_bounded(tmp_path: Path) -> None:
    file = tmp_path / "access.jsonl"
    log = AccessLog(file, largest=200)
    for number in range(100):
        log.write(number=number)
    files = sorted(tmp_path.iterdir())
    assert len(files) in (KEPT, KEPT + 1)
    assert all(each.stat().st_size < 300 and each.stat().st_mode & 0o777 == 0o600 for each in files)
    newest = file if file.exists() else tmp_path / "access.jsonl.1"
    assert json.loads(newest.read_text().splitlines()[-1])["number"] == 99
