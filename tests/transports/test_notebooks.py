"""A site's notebook on disk: restarts, repeated requests, forks after a crash, pruning, and what is gone."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fedsift.core.codec import digest_of
from fedsift.core.errors import NotebookGone, RunError
from fedsift.protocol.messages import ReplyEnvelope, RequestEnvelope, RequestMoment
from fedsift.training.requests import Evaluate
from fedsift.transports.remote.notebooks import NotebookStore, UnknownPages, run_folders, unfit_run


def envelope(round_number: int, ask: int = 0, expects: str = "", weight: float = 0.0) -> RequestEnvelope:
    request = Evaluate({"w": torch.tensor([weight])})
    return RequestEnvelope("run", "north", RequestMoment(1, "train", round_number, ask), expects, request)


def store(path: Path, session: str = "first") -> NotebookStore:
    return NotebookStore(path, "run", "north", session)


def serve(notes: NotebookStore, asked: RequestEnvelope, page: object = None) -> ReplyEnvelope:
    """What the site's side does with a request that writes `page`, or nothing."""
    digest = digest_of(asked)
    with notes.locked():
        known = notes.repeated(asked, digest)
        if known is not None:
            return known
        notebook, base = notes.open(asked)
        notes.prune(asked)
        if page is not None:
            notebook["page"] = page
        answer = ReplyEnvelope("run", "north", asked.moment.id, None, f"answered with {page}")
        notes.keep(asked, digest, notebook, base, answer)
        return answer


def test_pages_outlive_a_restart(tmp_path: Path) -> None:
    serve(store(tmp_path), envelope(0), page=torch.tensor([3, 1]))
    notebook, _ = store(tmp_path).open(envelope(1, expects="0.0:train"))
    assert torch.equal(notebook["page"], torch.tensor([3, 1]))


def test_a_request_that_writes_nothing_hands_the_pages_on(tmp_path: Path) -> None:
    serve(store(tmp_path), envelope(0), page="kept")
    for number in range(1, 5):
        serve(store(tmp_path), envelope(number, expects=f"{number - 1}.0:train"))
    assert store(tmp_path).pages("4.0:train") == {"page": "kept"}


def test_a_repeated_request_gets_the_same_answer_and_is_not_worked_on_again(tmp_path: Path) -> None:
    first = serve(store(tmp_path), envelope(0), page="one")
    again = serve(store(tmp_path, "second"), envelope(0), page="two")
    assert again == first
    assert store(tmp_path).pages("0.0:train") == {"page": "one"}


def test_the_same_id_with_other_content_is_answered_anew_from_its_base(tmp_path: Path) -> None:
    serve(store(tmp_path), envelope(0), page="base")
    serve(store(tmp_path), envelope(1, expects="0.0:train"), page="first")
    anew = serve(store(tmp_path, "second"), envelope(1, expects="0.0:train", weight=1.0), page="second")
    assert anew.failure == "answered with second"
    assert store(tmp_path).pages("1.0:train") == {"page": "second"}
    assert store(tmp_path).pages("0.0:train") == {"page": "base"}


@pytest.mark.parametrize("back", [1, 2, 3, 4])
def test_a_coordinator_that_was_restored_older_goes_on(tmp_path: Path, back: int) -> None:
    """Its checkpoint is some rounds old, the site was not touched: it continues from the notes of that moment."""
    expects = ""
    for number in range(8):
        for ask in range(2):
            notes = NotebookStore(tmp_path, "run", "north", "first", history=3)
            serve(notes, envelope(number, ask, expects), page=f"{number}.{ask}")
            expects = f"{number}.{ask}:train"
    restored = NotebookStore(tmp_path, "run", "north", "second", history=3)
    begun = 8 - back - 1  # rounds done, by the old checkpoint
    again = envelope(begun, 0, f"{begun - 1}.1:train", weight=1.0)
    if back == 4:
        with pytest.raises(NotebookGone, match="it keeps 3 older rounds"):
            restored.open(again)
        return
    assert restored.open(again)[0]["page"] == f"{begun - 1}.1"
    serve(restored, again, page="again")
    assert restored.versions()[-1] == f"{begun}.0:train"
    assert len(restored.versions()) <= 5


def test_a_site_that_is_asked_seldom_keeps_what_the_oldest_copy_continues_from(tmp_path: Path) -> None:
    notes = NotebookStore(tmp_path, "run", "north", "first", history=2)
    serve(notes, envelope(0), page="first")
    serve(notes, envelope(5, expects="0.0:train"), page="second")
    serve(notes, envelope(6, expects="5.0:train"), page="third")
    restored = NotebookStore(tmp_path, "run", "north", "second", history=2)
    assert restored.open(envelope(4, expects="0.0:train", weight=1.0))[0]["page"] == "first"


def test_what_followed_from_an_answer_that_changed_is_forgotten(tmp_path: Path) -> None:
    serve(store(tmp_path), envelope(1), page="old")
    serve(store(tmp_path), envelope(1, 1, expects="1.0:train"))
    serve(store(tmp_path, "second"), envelope(1, weight=1.0), page="new")
    follow = envelope(1, 1, expects="1.0:train")
    assert store(tmp_path, "second").repeated(follow, digest_of(follow)) is None
    serve(store(tmp_path, "second"), follow)
    assert store(tmp_path).pages("1.1:train") == {"page": "new"}


def test_a_round_keeps_its_base_until_a_newer_round_asks(tmp_path: Path) -> None:
    notes = store(tmp_path)
    serve(notes, envelope(0), page="0")
    serve(notes, envelope(4, expects="0.0:train"), page="4.0")
    serve(notes, envelope(4, 1, expects="4.0:train"), page="4.1")
    assert notes.versions() == ["0.0:train", "4.0:train", "4.1:train"]
    serve(notes, envelope(5, expects="4.1:train"))
    assert notes.versions() == ["4.1:train", "5.0:train"]
    assert {file.name for file in notes.folder.iterdir()} == {
        ".lock",
        "4.1.answer",
        "4.1.pages",
        "5.0.answer",
    }


def test_answers_of_a_finished_round_take_no_room(tmp_path: Path) -> None:
    notes, asked = store(tmp_path), envelope(0)
    answer = ReplyEnvelope("run", "north", asked.moment.id, None, "x" * 100_000)
    with notes.locked():
        notes.keep(asked, digest_of(asked), notes.open(asked)[0], "", answer)
    assert notes.repeated(asked, digest_of(asked)) == answer
    serve(notes, envelope(1, expects="0.0:train"))
    assert (notes.folder / "0.0.answer").stat().st_size < 1000
    assert notes.repeated(asked, digest_of(asked)) is None


def test_pages_of_an_older_request_stay_while_they_are_the_current_ones(tmp_path: Path) -> None:
    notes = store(tmp_path)
    serve(notes, envelope(0), page="old but current")
    for number in (1, 2, 3):
        serve(notes, envelope(number, expects=f"{number - 1}.0:train"))
    assert (notes.folder / "0.0.pages").is_file()
    assert notes.pages("3.0:train") == {"page": "old but current"}


def test_a_process_that_does_not_know_what_was_answered_can_still_go_on_from_it(tmp_path: Path) -> None:
    """An app may bring requests of its own; the process that stays at the site does not know their classes."""
    serve(store(tmp_path), envelope(0), page="kept")
    file = store(tmp_path).folder / "0.0.answer"
    foreign = file.read_bytes().replace(b"ReplyEnvelope", b"ForeignAnswer")
    assert foreign != file.read_bytes()
    file.write_bytes(foreign)
    notebook, _ = store(tmp_path).open(envelope(1, expects="0.0:train"))
    assert notebook["page"] == "kept"


def test_pages_of_a_class_that_is_not_loaded_are_not_called_gone(tmp_path: Path) -> None:
    serve(store(tmp_path), envelope(0), page=Evaluate(None))
    file = store(tmp_path).folder / "0.0.pages"
    file.write_bytes(file.read_bytes().replace(b"Evaluate", b"Evaluato"))
    with pytest.raises(UnknownPages, match="Evaluato"):
        store(tmp_path).open(envelope(1, expects="0.0:train"))


@pytest.mark.parametrize("lost", ["0.0.answer", "0.0.pages"])
@pytest.mark.parametrize("damage", ["removed", "cut short"])
def test_a_lost_or_damaged_notebook_is_said_to_be_gone(tmp_path: Path, lost: str, damage: str) -> None:
    notes = store(tmp_path)
    serve(notes, envelope(0), page=torch.arange(100))
    file = notes.folder / lost
    if damage == "removed":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(NotebookGone, match=r"'north'.*round 1 \(train\).*restore"):
        notes.open(envelope(1, expects="0.0:train"))


def test_a_fresh_notebook_is_never_given_in_place_of_a_lost_one(tmp_path: Path) -> None:
    with pytest.raises(NotebookGone):
        serve(store(tmp_path), envelope(3, expects="2.0:train"))
    assert store(tmp_path).versions() == []


def test_a_late_copy_of_an_old_request_changes_nothing(tmp_path: Path) -> None:
    notes = store(tmp_path)
    serve(notes, envelope(0), page="0")
    serve(notes, envelope(1, expects="0.0:train"), page="1")
    serve(notes, envelope(2, expects="1.0:train"), page="2")
    with pytest.raises(RunError, match="came late"):
        serve(notes, envelope(0), page="again")
    assert notes.pages("2.0:train") == {"page": "2"}


def test_a_coordinator_started_again_may_go_back(tmp_path: Path) -> None:
    serve(store(tmp_path), envelope(-1), page="start")
    serve(store(tmp_path), envelope(0, expects="-1.0:train"), page="0")
    serve(store(tmp_path, "second"), envelope(-1, weight=1.0), page="start anew")
    assert store(tmp_path).versions() == ["-1.0:train"]
    assert store(tmp_path).pages("-1.0:train") == {"page": "start anew"}


def test_runs_do_not_share_notebooks(tmp_path: Path) -> None:
    serve(store(tmp_path), envelope(0), page="run")
    other = NotebookStore(tmp_path, "another run", "north", "first")
    assert other.versions() == []


def test_no_name_of_a_run_is_that_of_a_file_of_the_site(tmp_path: Path) -> None:
    names = ["withdrawn.json", "allowed-runs.json", "approved.json", "secret", "runs"]
    for name in names:
        with NotebookStore(tmp_path, name, "north").locked():
            pass
    assert [item.name for item in tmp_path.iterdir()] == ["runs"]
    assert [folder.name for folder in run_folders(tmp_path)] == sorted(names)


def test_notes_of_an_older_version_are_found_in_their_new_place(tmp_path: Path) -> None:
    serve(store(tmp_path), envelope(0), page="kept")
    (tmp_path / "runs" / "run").rename(tmp_path / "run")
    (tmp_path / "runs").rmdir()
    (tmp_path / "secret").write_text("of the site")
    (tmp_path / "a folder of the site").mkdir()
    assert store(tmp_path).pages("0.0:train") == {"page": "kept"}
    assert sorted(item.name for item in tmp_path.iterdir()) == ["a folder of the site", "runs", "secret"]
    assert [folder.name for folder in run_folders(tmp_path)] == ["run"]


def test_notes_in_the_new_place_are_never_exchanged_for_older_ones(tmp_path: Path) -> None:
    serve(store(tmp_path / "old"), envelope(0), page="old")
    serve(store(tmp_path), envelope(0), page="new")
    (tmp_path / "old" / "runs" / "run").rename(tmp_path / "run")
    run_folders(tmp_path)
    assert store(tmp_path).pages("0.0:train") == {"page": "new"}


@pytest.mark.parametrize("run", ["first-0a1b2c3d4e5f6071", "a", "v1.2_b", "...", "x" * 100])
def test_names_of_runs(run: str) -> None:
    assert unfit_run(run) is None


@pytest.mark.parametrize("run", ["", ".", "..", "a/b", "a b", "a\nb", "a;b", "$(b)", "a'b", "ü", "x" * 101, "a\n"])
def test_what_is_no_name_of_a_run_is_refused_in_one_line(run: str) -> None:
    reason = unfit_run(run)
    assert reason is not None and reason.isprintable() and "is no name of a run" in reason


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from test_notebooks import envelope, serve, store
from fedsift.core import codec
real, count = os.replace, [0]
def replace(source, target):
    count[0] += 1
    if count[0] == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    real(source, target)
os.replace = replace
serve(store(Path(sys.argv[1])), envelope(1, expects="0.0:train"), page="1")
"""


@pytest.mark.parametrize("write", [1, 2])
def test_a_kill_between_two_writes_loses_nothing(tmp_path: Path, write: int) -> None:
    serve(store(tmp_path), envelope(0), page="0")
    arguments = [str(tmp_path), str(write), str(Path(__file__).parent)]
    killed = subprocess.run([sys.executable, "-c", KILLED, *arguments], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert store(tmp_path).pages("0.0:train") == {"page": "0"}
    assert store(tmp_path).versions() == ["0.0:train"]
    serve(store(tmp_path), envelope(1, expects="0.0:train"), page="1")
    assert store(tmp_path).pages("1.0:train") == {"page": "1"}
    serve(store(tmp_path), envelope(2, expects="1.0:train"))
    assert not list(store(tmp_path).folder.glob("*.tmp"))
