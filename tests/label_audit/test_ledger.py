"""The ledger: whatever is done to it by hand is found; crashes and concurrent writers do no harm."""

from __future__ import annotations

import json
import multiprocessing
import os
import stat
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from fedsift.label_audit.ledger import (
    CHANGE,
    FINDING,
    FORGET,
    UNDO,
    VERDICT,
    ForgottenEntry,
    LabelLedger,
    LedgerEntry,
    LedgerError,
    LedgerNote,
    effective,
)


def filled(path: Path, count: int = 6) -> LabelLedger:
    ledger = LabelLedger(path / "ledger.jsonl", clock=lambda: "2026-01-01T00:00:00+00:00")
    for k in range(count):
        ledger.append(
            [LedgerNote(FINDING, {"id": f"s{k % 3}", "given": ["cat"], "probability": 0.5 + k / 100})],
            "audit",
        )
    return ledger


def lines(ledger: LabelLedger) -> list[str]:
    return ledger.path.read_text().splitlines(keepends=True)


def test_what_is_written_is_read_and_sound(tmp_path: Path) -> None:
    ledger = filled(tmp_path)
    assert ledger.verify() == []
    assert [entry.n for entry in ledger.entries()] == [1, 2, 3, 4, 5, 6]
    assert ledger.entries()[3].body == {"id": "s0", "given": ["cat"], "probability": 0.53}
    assert ledger.entries()[0].who == "audit"
    assert stat.S_IMODE(ledger.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(ledger.head_file.stat().st_mode) == 0o600


def test_lines_that_were_cut_off_together_with_the_head_are_missed(tmp_path: Path) -> None:
    ledger = filled(tmp_path)
    noted = ledger.head()[1]
    ledger.path.write_text("".join(lines(ledger)[:4]))
    ledger.head_file.unlink()
    assert "ledger.head is missing" in ledger.verify()[0]
    with pytest.raises(LedgerError, match=r"ledger.head is missing, so lines may have been cut off"):
        ledger.append([LedgerNote(FINDING, {"id": "s"})], "nobody")
    ledger.path.unlink()  # all of it is gone: only what was noted elsewhere knows
    assert ledger.verify() == []
    assert "was rewritten or cut" in ledger.verify(noted)[0]


def test_a_kill_before_the_first_line_leaves_a_sound_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = LabelLedger(tmp_path / "ledger.jsonl")
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", lambda handle: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            ledger.append([LedgerNote(FINDING, {"id": "s"})], "audit")
    assert ledger.verify() == []
    filled(tmp_path)
    assert ledger.verify() == []
    assert len(ledger.entries()) == 6


def test_notes_that_are_made_from_the_entries_are_made_under_the_lock(tmp_path: Path) -> None:
    """Two importers at a time: what one has just written the other sees before it decides what is new."""
    ledger = filled(tmp_path, 0)
    inside = threading.Barrier(2, timeout=1)

    def new(entries: list[LedgerEntry]) -> list[LedgerNote]:
        with suppress(threading.BrokenBarrierError):
            inside.wait()  # both are here at a time, or one is alone
        return [] if any(entry.id == "s" for entry in entries) else [LedgerNote(FINDING, {"id": "s"})]

    both = [threading.Thread(target=ledger.append, args=(new, who)) for who in ("first", "second")]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert len(ledger.entries()) == 1


def test_an_empty_ledger_is_sound(tmp_path: Path) -> None:
    ledger = LabelLedger(tmp_path / "ledger.jsonl")
    assert ledger.verify() == [] and ledger.entries() == []
    assert ledger.append([], "nobody") == []


@pytest.mark.parametrize("line", range(6))
@pytest.mark.parametrize("field", ["body", "who", "when", "kind", "n", "previous", "hash", "body_hash", "salt"])
def test_an_edited_line_is_found(tmp_path: Path, line: int, field: str) -> None:
    ledger = filled(tmp_path)
    text = lines(ledger)
    entry = json.loads(text[line])
    entry[field] = {**entry[field], "probability": 0.99} if field == "body" else 7 if field == "n" else "verdict"
    text[line] = json.dumps(entry) + "\n"
    ledger.path.write_text("".join(text))
    [problem] = ledger.verify()
    assert f"line {line + 1}" in problem


@pytest.mark.parametrize("line", range(5))
def test_a_removed_line_is_found(tmp_path: Path, line: int) -> None:
    ledger = filled(tmp_path)
    text = lines(ledger)
    del text[line]
    ledger.path.write_text("".join(text))
    assert f"line {line + 1} does not follow" in ledger.verify()[0]


@pytest.mark.parametrize("cut", [1, 2, 6])
def test_lines_cut_off_at_the_end_are_found(tmp_path: Path, cut: int) -> None:
    ledger = filled(tmp_path)
    ledger.path.write_text("".join(lines(ledger)[:-cut]))
    assert ledger.verify() == [f"{cut} of 6 lines are missing at the end"]


def test_a_reordered_or_repeated_line_is_found(tmp_path: Path) -> None:
    ledger = filled(tmp_path)
    text = lines(ledger)
    ledger.path.write_text("".join([text[1], text[0], *text[2:]]))
    assert "line 1 does not follow" in ledger.verify()[0]
    ledger.path.write_text("".join([*text, text[-1]]))
    assert "line 7 does not follow" in ledger.verify()[0]


def test_a_truncated_or_unreadable_line_is_found(tmp_path: Path) -> None:
    ledger = filled(tmp_path)
    whole = ledger.path.read_text()
    ledger.path.write_text(whole[:-20])
    assert ledger.verify() == ["line 6 is cut short"]
    ledger.path.write_text(whole.replace('"n": 3', '"n" 3'))
    assert "line 3 cannot be read" in ledger.verify()[0]
    ledger.path.write_text('{"n": 1}\n')
    assert "line 1 cannot be read" in ledger.verify()[0]


def test_a_ledger_that_was_replaced_as_a_whole_is_found(tmp_path: Path) -> None:
    ledger = filled(tmp_path)
    (tmp_path / "other").mkdir()
    other = filled(tmp_path / "other")
    ledger.path.write_text(other.path.read_text())
    assert "was replaced" in ledger.verify()[0]
    # with the head replaced, too, only a hash that somebody noted elsewhere can tell
    noted = other.head()[1]
    other.head_file.replace(ledger.head_file)
    assert ledger.verify() == []
    assert ledger.verify(noted) == []
    assert "was rewritten or cut" in ledger.verify("ab" * 32)[0]


def test_nothing_is_appended_to_a_broken_ledger(tmp_path: Path) -> None:
    ledger = filled(tmp_path)
    ledger.path.write_text("".join(lines(ledger)[1:]))
    before = ledger.path.read_bytes()
    with pytest.raises(LedgerError, match="line 1"):
        ledger.append([LedgerNote(FINDING, {"id": "x"})], "audit")
    assert ledger.path.read_bytes() == before


def test_a_crash_within_a_line_is_mended_by_the_next(tmp_path: Path) -> None:
    ledger = filled(tmp_path)
    with ledger.path.open("a") as file:
        file.write('{"n": 7, "when": "2026')  # the process died here, before it wrote the head
    assert ledger.verify() == []
    assert len(ledger.entries()) == 6
    ledger.append([LedgerNote(VERDICT, {"id": "s1"})], "reader")
    assert ledger.verify() == []
    assert len(ledger.entries()) == 7


def test_a_crash_before_the_head_loses_nothing(tmp_path: Path) -> None:
    ledger = filled(tmp_path)
    old = ledger.head_file.read_text()
    ledger.append([LedgerNote(VERDICT, {"id": "s1"})], "reader")
    ledger.head_file.write_text(old)
    assert ledger.verify() == []
    ledger.append([LedgerNote(VERDICT, {"id": "s2"})], "reader")
    assert len(ledger.entries()) == 8 and ledger.verify() == []


def _append_many(path: Path, who: str) -> None:
    for k in range(20):
        LabelLedger(path).append([LedgerNote(VERDICT, {"id": f"{who}{k}"})], who)


def test_writers_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_append_many, args=(path, who)) for who in "abc"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
        assert writer.exitcode == 0
    ledger = LabelLedger(path)
    assert ledger.verify() == []
    assert {entry.id for entry in ledger.entries()} == {f"{who}{k}" for who in "abc" for k in range(20)}


def test_undo_restores_what_held_and_can_be_undone(tmp_path: Path) -> None:
    ledger = LabelLedger(tmp_path / "ledger.jsonl")
    for k in range(3):
        ledger.append([LedgerNote(CHANGE, {"id": f"s{k}"})], "a")

    def held() -> list[str]:
        return [entry.id for entry in effective(ledger.entries())]

    assert held() == ["s0", "s1", "s2"]
    ledger.append([LedgerNote(UNDO, {"to": 1})], "a")
    assert held() == ["s0"]
    ledger.append([LedgerNote(CHANGE, {"id": "s9"})], "a")
    assert held() == ["s0", "s9"]
    ledger.append([LedgerNote(UNDO, {"to": 3})], "a")  # before the undo
    assert held() == ["s0", "s1", "s2"]
    ledger.append([LedgerNote(UNDO, {"to": 0})], "a")
    assert held() == []
    assert ledger.verify() == []


def test_forgetting_removes_the_name_and_keeps_the_chain(tmp_path: Path) -> None:
    ledger = filled(tmp_path)
    ledger.forget("s1", "owner", {"models": ["abc"]})
    text = ledger.path.read_text()
    assert '"s1"' not in text and '"s0"' in text
    assert ledger.verify() == []
    entries = ledger.entries()
    assert [entry.n for entry in entries if entry.body is None] == [2, 5]
    assert entries[-1].kind == FORGET and entries[-1].body is not None and entries[-1].body["entries"] == [2, 5]
    ledger.append([LedgerNote(VERDICT, {"id": "s2"})], "reader")
    assert ledger.verify() == []
    gone = ForgottenEntry(ledger.entries())
    assert "s1" in gone and "s2" not in gone and len(gone) == 1


def test_a_body_that_is_gone_without_a_tombstone_is_found(tmp_path: Path) -> None:
    ledger = filled(tmp_path)
    text = lines(ledger)
    text[1] = json.dumps({**json.loads(text[1]), "body": None, "salt": None}) + "\n"
    ledger.path.write_text("".join(text))
    assert ledger.verify() == ["the body of line 2 was removed without a tombstone"]


def test_a_body_that_comes_back_is_found(tmp_path: Path) -> None:
    ledger = filled(tmp_path)
    before = lines(ledger)
    ledger.forget("s1", "owner", {})
    text = lines(ledger)
    text[1] = before[1]
    ledger.path.write_text("".join(text))
    assert "says is forgotten" in ledger.verify()[0]


def test_a_damaged_head_is_one_line(tmp_path: Path) -> None:
    ledger = filled(tmp_path)
    ledger.head_file.write_text("{")
    with pytest.raises(LedgerError, match="ledger.head cannot be read"):
        ledger.entries()
