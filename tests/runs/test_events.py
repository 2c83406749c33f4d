"""Events: a run's history, line by line, whole lines only, the same for whoever reads late and whoever reads along."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedsift.core.errors import QuorumError, Stopped
from fedsift.core.files import line_with_check, read_checked_line
from fedsift.protocol.messages import ReplyEnvelope
from fedsift.runs.events import (
    EVENTS,
    KINDS,
    Absent,
    Answered,
    Asked,
    Changed,
    Checkpointed,
    Ended,
    Event,
    EventLog,
    EventTail,
    Found,
    Refused,
    RoundDone,
    Started,
    Warned,
    read_events,
    stamped,
)
from fedsift.runs.folder import RunFolder
from fedsift.runtime.in_process import InProcess
from fedsift.study.running import InProcessTransport, new_run, run
from fedsift.study.study import Study
from tests.runs.recorded_events import recorded_events

TABLE: dict[str, Any] = {
    "partition": {"name": "iid", "sites": 3},
    "model": {"name": "linear"},
    "train": {"epochs": 1, "batch_size": 64},
    "method": {"name": "fedavg", "rounds": 2},
}
EXAMPLES: list[Event] = [
    Started("run", "FedAvg", "inprocess", ("a", "b"), 2, ({"name": "train", "rounds": 2, "trains": True},), 1),
    Asked(1, "train", "Train", ("a", "b"), 600.0),
    Answered(1, "Train", ("a",)),
    Refused(1, "Train", "a", "not finite"),
    Absent(1, "Train", "b\n", "no reply within 3 s"),
    RoundDone(1, 2, "train", 1, 10, 20, 0.5, {"accuracy": 0.25}),
    Found(1, {"noisy": ["a"], "probability": {"a": 0.99}}),
    Warned(0, "a site is small"),
    Checkpointed(1),
    Ended("failed", "why", 4),
    Changed(1, {"gate.against": 4.5, "gate.largest_share": None}, {"gate.against": 9.0, "gate.largest_share": 0.3}),
]


def study_of(**changes: Any) -> Study:
    return Study.from_table({**TABLE, **changes})


def events_of(folder: RunFolder) -> list[Event]:
    return [one.event for one in read_events(folder.path)]


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    log = EventLog(tmp_path, clock=lambda: 12.34567)
    for event in EXAMPLES:
        log(event)
    read = read_events(tmp_path)
    assert [one.event for one in read] == EXAMPLES
    assert {one.at for one in read} == {12.346}
    assert {type(event) for event in EXAMPLES} == set(KINDS.values())


def test_a_line_is_read_when_it_is_whole_and_nothing_is_read_twice(tmp_path: Path) -> None:
    log, tail = EventLog(tmp_path), EventTail(tmp_path)
    assert tail.new() == []
    log(EXAMPLES[7])
    line = (tmp_path / EVENTS).read_bytes()
    with (tmp_path / EVENTS).open("ab") as file:
        file.write(line[:10])
    assert [one.event for one in tail.new()] == [EXAMPLES[7]]
    assert tail.new() == []
    with (tmp_path / EVENTS).open("ab") as file:
        file.write(line[10:])
    assert [one.event for one in tail.new()] == [EXAMPLES[7]]
    assert tail.strange == 0


def test_a_resumed_run_does_not_continue_a_line_that_a_kill_cut_short(tmp_path: Path) -> None:
    (tmp_path / EVENTS).write_bytes(b'{"at":1,"kind":"warn')
    EventLog(tmp_path)(EXAMPLES[8])
    tail = EventTail(tmp_path)
    assert [one.event for one in tail.new()] == [EXAMPLES[8]]
    assert tail.strange == 1


def test_reading_in_parts_gives_the_same_events(tmp_path: Path) -> None:
    log = EventLog(tmp_path)
    for event in EXAMPLES * 3:
        log(event)
    tail, parts = EventTail(tmp_path), []
    while part := tail.new(most=64):
        parts.append([one.event for one in part])
    assert [event for part in parts for event in part] == EXAMPLES * 3
    assert len(parts) > 5


def test_a_file_that_became_shorter_is_read_from_its_start(tmp_path: Path) -> None:
    tail = EventTail(tmp_path)
    for event in EXAMPLES:
        EventLog(tmp_path)(event)
    tail.new()
    (tmp_path / EVENTS).unlink()
    EventLog(tmp_path)(EXAMPLES[8])
    assert [one.event for one in tail.new()] == [EXAMPLES[8]]


@pytest.mark.parametrize(
    "line",
    [
        b"null", b"[]", b"\xff", b'{"kind":"ended"}', b'{"at":1,"kind":"later"}', b'{"at":1,"kind":"warning"}',
        b'{"at":1,"kind":"warning","round":"1","text":"x"}', b'{"at":1,"kind":"warning","round":true,"text":"x"}',
        b'{"at":1,"kind":"answered","round":1,"request":"Train","sites":[1]}',
        b'{"at":1,"kind":"started","run":"r","method":"m","engine":"e","sites":"ab","rounds":1}',
        b'{"at":[],"kind":"checkpoint","round":1}', b'{"at":1,"kind":{},"round":1}', b"[" * 100_000,
    ],
)  # fmt: skip
def test_a_line_of_somebody_else_is_no_event(line: bytes) -> None:
    assert stamped(line) is None
    if line.startswith(b"{"):
        assert stamped(line_with_check(json.loads(line)).encode()) is None


def test_a_line_in_which_one_bit_has_changed_is_no_event(tmp_path: Path) -> None:
    EventLog(tmp_path)(EXAMPLES[5])
    line = (tmp_path / EVENTS).read_bytes().rstrip()
    assert stamped(line) is not None
    for place in range(len(line)):
        assert stamped(line[:place] + bytes([line[place] ^ 1]) + line[place + 1 :]) is None


def test_numbers_that_are_none_and_keys_of_a_later_version_do_no_harm(tmp_path: Path) -> None:
    EventLog(tmp_path)(replace(EXAMPLES[5], values={"loss": math.nan, "accuracy": 0.5}))  # type: ignore[call-arg]
    line = read_checked_line((tmp_path / EVENTS).read_bytes())
    found = stamped(line_with_check({**line, "new": 1}).encode())
    assert found is not None
    assert isinstance(found.event, RoundDone)
    assert found.event.values == {"accuracy": 0.5}


def test_a_run_tells_what_it_does(tmp_path: Path) -> None:
    folder = new_run(study_of(), tmp_path)
    run(study_of(), folder)
    events = events_of(folder)
    round_of_kinds = ["asked", "answered", "round", "checkpoint"]
    assert [event.kind for event in events] == ["started", *round_of_kinds, *round_of_kinds, "ended"]
    started, asked, _, done = events[:4]
    assert isinstance(started, Started)
    assert isinstance(asked, Asked)
    assert isinstance(done, RoundDone)
    assert (started.rounds, started.done, len(started.sites)) == (2, 0, 3)
    assert (asked.round, asked.request, asked.sites) == (1, "Train", started.sites)
    row = folder.rounds()[0]
    assert done.values["accuracy"] == row["accuracy"]
    assert (done.seconds, done.bytes_up) == (row["seconds"], row["bytes_up"])
    assert events[-1] == Ended("finished")


class FirstAskFails(InProcess):
    """In the first ask one site does not answer, and one answers what cannot be used; then all is well."""

    asks = 0

    def deliver(self, envelopes: Any, deadline: float) -> dict[str, ReplyEnvelope]:
        answers = dict(super().deliver(envelopes, deadline))
        self.asks += 1
        if self.asks == 1:
            first, second = self.sites[:2]
            del answers[first]
            answers[second] = replace(answers[second], reply=None, failure="the disk is full")
        return answers


def test_who_was_refused_and_who_was_absent_are_told_apart(tmp_path: Path) -> None:
    study = study_of(federation={"quorum": 0.3})
    folder = new_run(study, tmp_path)
    InProcessTransport(FirstAskFails).run(study, folder)
    events = events_of(folder)
    a, b, c = events[0].sites  # type: ignore[attr-defined]
    answered = next(event for event in events if isinstance(event, Answered))
    assert answered.sites == (b, c)
    assert [event for event in events if isinstance(event, Refused | Absent)] == [
        Absent(1, "Train", a, "no reply before the deadline"),
        Refused(1, "Train", b, "the disk is full"),
    ]


def test_a_failure_is_told_and_so_is_going_on(tmp_path: Path) -> None:
    folder = new_run(study_of(), tmp_path)
    with pytest.raises(QuorumError):
        InProcessTransport(FirstAskFails).run(study_of(), folder)
    ended = events_of(folder)[-1]
    assert isinstance(ended, Ended)
    assert (ended.state, ended.exit_code) == ("failed", 4)
    run(study_of(), folder)
    kinds = [event.kind for event in events_of(folder)]
    assert kinds.count("started") == 2
    assert kinds[-1] == "ended"


def test_a_run_that_is_asked_to_stop_stops_and_goes_on_to_the_same_end(tmp_path: Path) -> None:
    whole, folder = new_run(study_of(), tmp_path), new_run(study_of(), tmp_path)
    run(study_of(), whole)

    with pytest.raises(Stopped, match="nothing is lost"):
        run(study_of(), folder, listen=lambda row: folder.ask_to_stop())
    assert len(folder.rounds()) == 1
    assert events_of(folder)[-1].state == "stopped"  # type: ignore[attr-defined]
    assert folder.read_json("failure.json") is None
    run(study_of(), folder)
    assert not folder.asked_to_stop
    assert (folder.path / "model.safetensors").read_bytes() == (whole.path / "model.safetensors").read_bytes()
    both = recorded_events(folder)
    again = next(place for place, one in enumerate(both) if one[0] == "started" and one[-1] == 1)
    assert both[: again - 1] + both[again + 1 :] == recorded_events(whole)


def test_ctrl_c_is_told(tmp_path: Path) -> None:
    def interrupt(row: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    folder = new_run(study_of(), tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run(study_of(), folder, listen=interrupt)
    assert events_of(folder)[-1].state == "stopped"  # type: ignore[attr-defined]


def test_whether_a_run_is_in_use_can_be_seen_without_disturbing_it(tmp_path: Path) -> None:
    folder = new_run(study_of(), tmp_path)
    onlooker = RunFolder.open(folder.path)
    assert onlooker.in_use is False
    folder.lock()
    assert onlooker.in_use is True
    folder.unlock()
    assert onlooker.in_use is False


def test_events_are_read_and_written_without_torch(tmp_path: Path) -> None:
    code = "import sys; from fedsift.runs import events; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
