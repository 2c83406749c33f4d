"""Who has no listed key cannot fill the log, silence the operator, or keep others out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedsift.deploy.gateway.access_log import (
    CALLERS_TOLD_APART,
    FIRST_FEW,
    FORGOTTEN_AFTER,
    KEPT,
    SUMMED_UP_EVERY,
    AccessLog,
    ThrottledLog,
)
from fedsift.deploy.gateway.limits import MOST_CALLERS, PUSH, WRITTEN_EVERY, KeyLimits, UnknownClients, client_of
from tests.deploy.test_door import PULL, Key, Setting

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
    setting.door.callers = UnknownClients(FEW, clock=lambda: now[0])
    for _ in range(5 + 1 + 40):
        setting.post(PULL, headers={})
    setting.door.tick()
    assert len(setting.lines()) == 6  # not before its time
    now[0] += WRITTEN_EVERY
    setting.door.tick()
    setting.door.tick()
    *_, last = setting.lines()
    assert (last["from"], last["status"], last["count"]) == ("127.0.0.1", 429, 40)
    setting.post(PULL, headers={})
    assert len(setting.lines()) == 7  # still counted: one line for each time
    now[0] += WRITTEN_EVERY
    setting.door.tick()
    assert setting.lines()[-1]["count"] == 1
    now[0] += WRITTEN_EVERY
    setting.door.tick()
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
        callers.refused("a")
    assert callers.spent("a")
    assert not callers.spent("b")
    now[0] += 1.0
    assert not callers.spent("a")
    for number in range(3 * MOST_CALLERS):
        callers.refused(f"caller {number}")
        callers.refused(f"caller {number}")
        callers.first_of_many(f"caller {number}")
    assert len(callers._allowances) <= MOST_CALLERS + 1
    assert len(callers._turned_away) <= MOST_CALLERS + 1
    assert callers.spent("one more")  # of those that share a place
    now[0] += 3 * MOST_CALLERS
    assert not callers.spent("one more still")


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


def test_a_flood_of_made_up_keys_does_not_silence_the_door(tmp_path: Path) -> None:
    told: list[str] = []
    now = [0.0]
    limits = KeyLimits(refusals=10**6, hold_seconds=0.0)
    setting = Setting(tmp_path, limits=limits)
    setting.door.telling = ThrottledLog(told.append, clock=lambda: now[0])
    keys = [Key() for _ in range(20)]
    for key in keys:
        setting.post(PULL, headers=key.headers())
    assert len(told) == FIRST_FEW
    assert told[0].startswith(f"somebody (127.0.0.1) was refused: the key {keys[0].mark[:23]}...")
    setting.door.tick()
    assert len(told) == FIRST_FEW
    now[0] += SUMMED_UP_EVERY
    setting.door.tick()
    assert told[FIRST_FEW:] == [
        f"17 more like that from 127.0.0.1 in 10 minutes, the last: somebody (127.0.0.1) was refused: the key "
        f"{keys[-1].mark[:23]}... is not on this federation's roster"
    ]
    setting.post(PULL, headers={})  # another kind is told at once
    assert len(told) == FIRST_FEW + 2


def test_many_addresses_share_a_place_and_are_not_forgotten() -> None:
    told: list[str] = []
    now = [0.0]
    telling = ThrottledLog(told.append, clock=lambda: now[0])
    for number in range(CALLERS_TOLD_APART + 50):
        telling.tell("401", f"10.0.0.{number}", f"refused {number}")
    assert len(told) == CALLERS_TOLD_APART + FIRST_FEW
    now[0] += SUMMED_UP_EVERY
    telling.sum_up()
    assert told[-1] == "47 more like that from other addresses in 10 minutes, the last: refused 113"
    now[0] += FORGOTTEN_AFTER
    telling.tell("401", "10.9.9.9", "the next day")
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
