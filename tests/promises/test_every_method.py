"""What every registered method promises; a new method is tested here by being registered."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import random
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from fedsift.core.codec import pack
from fedsift.methods._base import methods
from fedsift.protocol.messages import Reply, ReplyEnvelope, RequestEnvelope
from fedsift.runs.folder import RunFolder
from fedsift.runtime.in_process import InProcess
from fedsift.study.running import new_run, run
from fedsift.study.study import Study
from fedsift.training import processes
from tests.promises.federations import alone_study, assert_same_bits, contract_study, outcome, play, tampering
from tests.promises.matrix import Probed, Row
from tests.promises.tamper import TAMPERS

ALL = methods.names()
torch.set_num_threads(1)


Sent = list[tuple[Reply, int]]
"""Replies with the number of samples that their sites have."""


def watched_run(name: str, folder: Path) -> tuple[RunFolder, Sent, Row]:
    """One honest run, every reply that left a site in it, and what the gate made of attacks on each exchange."""
    sent: Sent = []
    row = Row()

    class Watched(Probed):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.row, self.past = row, {}

        def deliver(self, envelopes: Mapping[str, RequestEnvelope], deadline: float) -> Mapping[str, ReplyEnvelope]:
            answers = super().deliver(envelopes, deadline)
            for site, answer in answers.items():
                if answer.reply is not None:
                    sent.append((answer.reply, self.facts[site].samples))
            return answers

    return play(contract_study(name, folder), folder, Watched), sent, row


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[RunFolder, Sent, Row]]:
    """One honest run of each method, made when first needed, with what was seen in it.

    The promises below compare with it; a method costs the tests as few runs as they allow.
    """
    runs: dict[str, tuple[RunFolder, Sent, Row]] = {}

    def of(name: str) -> tuple[RunFolder, Sent, Row]:
        if name not in runs:
            runs[name] = watched_run(name, tmp_path_factory.mktemp(f"honest-{name}"))
        return runs[name]

    return of


@pytest.fixture
def undisturbed(watched: Any) -> Callable[[str], RunFolder]:
    return lambda name: watched(name)[0]


@pytest.mark.parametrize("name", ALL)
def test_runs_every_stage_and_writes_everything(name: str, undisturbed: Any) -> None:
    folder = undisturbed(name)
    study = Study.from_file(folder.study_file)
    rows = folder.rounds()
    assert [row["round"] for row in rows] == list(range(1, study.method.total_rounds + 1))
    assert {row["stage"] for row in rows} == {stage.name for stage in study.method.stages() if stage.rounds}
    assert all(not row["refused"] for row in rows)
    summary = folder.read_json("summary.json")
    assert summary["method"] == name
    if study.method.evaluates is None:
        assert "accuracy" not in summary and summary["findings"]
    else:
        assert 0 <= summary["accuracy"]["final"] <= 1
    assert (folder.path / "sites.csv").read_text().count("\n") == 6


@pytest.mark.parametrize("name", ALL)
def test_the_resolved_study_builds_the_same_study(name: str, undisturbed: Any) -> None:
    written = Study.from_file(undisturbed(name).study_file)
    assert Study.from_table(written.to_table()) == written
    assert written.to_toml() == undisturbed(name).study_file.read_text()


class Shuffled(InProcess):
    """Serves the sites in another order each time, each alone."""

    def deliver(self, envelopes: Mapping[str, RequestEnvelope], deadline: float) -> Mapping[str, ReplyEnvelope]:
        order = list(envelopes)
        random.Random(self.round.number * 7 + 1).shuffle(order)
        answers: dict[str, ReplyEnvelope] = {}
        opened = {}
        for site in order:
            answers.update(super().deliver({site: envelopes[site]}, deadline))
            opened.update(self._open)
        self._open = opened
        return answers


@pytest.mark.parametrize("name", ALL)
def test_any_order_one_result(name: str, alone: Any, tmp_path: Path) -> None:
    weights, rows = outcome(alone(name))
    shuffled, shuffled_rows = outcome(play(alone_study(name, tmp_path), tmp_path, Shuffled))
    assert_same_bits(weights, shuffled)
    assert rows == shuffled_rows


@pytest.mark.parametrize("name", ALL)
def test_in_workers_as_in_one_process(name: str, alone: Any, tmp_path: Path) -> None:
    """Notebooks, replies and models, to the bit."""
    here, rounds_here = outcome(alone(name))
    there, rounds_there = outcome(play(alone_study(name, tmp_path, workers=2), tmp_path))
    assert processes._current is not None
    assert_same_bits(here, there)
    assert rounds_here == rounds_there


@pytest.mark.parametrize("name", ALL)
def test_replies_hold_what_they_declare_and_nothing_else(name: str, watched: Any) -> None:
    _, sent, _ = watched(name)
    assert sent
    for reply, samples in sent:
        _inspect(reply, samples)


def _inspect(reply: Reply, samples: int) -> None:
    fields = {field.name: field for field in dataclasses.fields(reply)}
    assert vars(reply).keys() == fields.keys(), f"{type(reply).__name__} carries undeclared attributes"
    for field in fields.values():
        assert field.metadata.get("what"), f"{type(reply).__name__}.{field.name} does not say what it discloses"
    for inner in getattr(reply, "then", ()):
        _inspect(inner, samples)
    _, tensors = pack(reply)
    for tensor in tensors.values():
        assert tensor.dim() == 0 or tensor.shape[0] != samples, (
            f"{type(reply).__name__} has a row for each of the site's {samples} samples"
        )


@pytest.mark.parametrize("name", ALL)
def test_every_attack_on_every_exchange_is_judged(name: str, watched: Any) -> None:
    """The attack matrix: what has a wrong form or goes too far is refused, and never an honest site beside it."""
    _, _, row = watched(name)
    assert row.exchanges and {"NaN", "a stale answer"} <= row.refused.keys()
    assert not row.wrong


def test_without_an_attacker_protection_changes_nothing(undisturbed: Any, tmp_path: Path) -> None:
    """Nothing is refused in any honest run above; one of them again with protection off gives the same bytes."""
    off = {"heuristics": "never"}
    weights, rows = outcome(play(contract_study("feddyn", tmp_path, gate=off), tmp_path))
    with_it, same_rows = outcome(undisturbed("feddyn"))
    assert_same_bits(weights, with_it)
    assert rows == same_rows


@pytest.mark.parametrize("name", ALL)
def test_bad_replies_are_set_aside_and_the_run_goes_on(name: str, tmp_path: Path) -> None:
    """A different fault in every exchange of the last site; each is refused for its own reason."""
    expected: list[str] = []
    kinds = list(TAMPERS.values())

    def corrupt(answer: ReplyEnvelope, envelope: RequestEnvelope) -> ReplyEnvelope | None:
        for offset in range(len(kinds)):
            change, reason = kinds[(len(expected) + offset) % len(kinds)]
            changed = change(answer)
            if changed is not None:
                expected.append(reason)
                return changed
        raise AssertionError("nothing in the reply could be corrupted")

    folder = play(contract_study(name, tmp_path), tmp_path, tampering(corrupt))
    reasons = [reason for row in folder.rounds() for reason in row["refused"].values()]
    assert expected
    assert reasons
    for row in folder.rounds():
        assert set(row["refused"]) <= {"site-04"}
    assert all(any(word in reason for word in expected) for reason in reasons)
    assert folder.read_json("summary.json")["refused"] == len(reasons)


# Kill and resume ---------------------------------------------------------------------------------------------------


def _run_until_killed(path: Path, writes: int, before: bool) -> None:
    """In a child: go on with the run, and die by SIGKILL at this of its writes, before or after the new file shows."""
    left = iter(range(writes, 0, -1))
    rename = os.replace

    def last(*arguments: Any, **options: Any) -> None:
        end = next(left) == 1
        if not (end and before):
            rename(*arguments, **options)
        if end:
            os.kill(os.getpid(), signal.SIGKILL)

    os.replace = last
    _run_on(path)


def _run_on(path: Path) -> None:
    torch.set_num_threads(1)
    folder = RunFolder.open(path)
    run(Study.from_file(folder.study_file), folder)
    os._exit(0)


def _killed_run(name: str, folder: Path, kills: int) -> RunFolder:
    """Killed so many times at writes that a seed chooses: where, does not hang on how fast the machine is."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # with all that it imports: a child has nothing left to load
    made = new_run(contract_study(name, folder), folder)
    chance = random.Random(f"{name} {kills}")
    killed = 0
    for _ in range(kills):
        fate = (made.path, chance.randint(1, 12 if killed else 5), chance.random() < 0.5)
        child = context.Process(target=_run_until_killed, args=fate)
        child.start()
        child.join()
        killed += child.exitcode == -signal.SIGKILL
        assert child.exitcode in (0, -signal.SIGKILL)
        if made.finished:
            break
    assert killed, "the run was never killed; the test shows nothing"
    if not made.finished:
        child = context.Process(target=_run_on, args=(made.path,))
        child.start()
        child.join()
        assert child.exitcode == 0
    return made


@pytest.mark.parametrize("name", ALL)
def test_killed_and_resumed_equals_never_stopped(name: str, undisturbed: Any, tmp_path: Path) -> None:
    honest = undisturbed(name)
    resumed = _killed_run(name, tmp_path, kills=10 if name == "fednoro" else 2)
    weights, rows = outcome(honest)
    again, again_rows = outcome(resumed)
    assert_same_bits(weights, again)
    assert rows == again_rows
    assert (honest.path / "sites.csv").read_text() == (resumed.path / "sites.csv").read_text()
