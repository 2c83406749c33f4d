"""`ledger.jsonl`: every finding, verdict, change of a label and decision of a review, a line each, chained by hashes.

    body_hash_n = H(salt_n, body_n)          hash_n = H(n, when_n, who_n, kind_n, body_hash_n, hash_{n-1})

The chain holds the body's hash instead of the body, so a user's entries can be forgotten (body and salt deleted) and
the rest still verifies; the salt keeps a forgotten body from being guessed. Beside the ledger, `ledger.head` says how
many lines there are and the last hash, so that lines cut off at the end are missed. It is there before the first line
is, so a ledger without it was cut, and the site's `summary.json` holds the head of its last writing. A user who may
write all of them can rewrite history: note the head elsewhere (`fedsift labels verify` prints it) where that matters.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedsift.core.errors import RunError
from fedsift.core.files import write_private
from fedsift.core.process import file_lock
from fedsift.label_audit.site_files import PRIVATE_FILE

START = "0" * 64
FINDING, VERDICT, DECISION, CHANGE, UNDO, FORGET = "finding", "verdict", "decision", "change", "undo", "forget"
KINDS = (FINDING, VERDICT, DECISION, CHANGE, UNDO, FORGET)


class LedgerError(RunError):
    """The ledger was edited, cut or cannot be read."""


@dataclass(frozen=True)
class LedgerEntry:
    """One line. body: None once it is forgotten."""

    n: int
    when: str
    who: str
    kind: str
    body: Mapping[str, Any] | None
    salt: str | None
    body_hash: str
    previous: str
    hash: str

    @property
    def id(self) -> str:
        return str(self.body.get("id", "")) if self.body else ""


@dataclass(frozen=True)
class LedgerNote:
    """What is to be written down: id, given, proposed, probability, evidence, model, decision, as its kind needs."""

    kind: str
    body: Mapping[str, Any]


Notes = Iterable[LedgerNote] | Callable[[list[LedgerEntry]], Iterable[LedgerNote]]
"""Notes, or what makes them from the entries that are there: no other process writes in between."""
Around = Callable[[list[LedgerEntry]], AbstractContextManager[None]]


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


class LabelLedger:
    """The ledger in one file; any number of processes may append to it."""

    def __init__(self, path: Path, clock: Callable[[], str] = now) -> None:
        self.path = Path(path)
        self.clock = clock

    @property
    def head_file(self) -> Path:
        return self.path.with_name(f"{self.path.stem}.head")

    def append(self, notes: Notes, who: str, around: Around | None = None) -> list[LedgerEntry]:
        """Write the notes, all or none; returns their entries.

        around: what must go with them, made from all entries, the new ones last: nothing is written if it cannot be
        entered, and it learns from its exit whether they were.
        """
        with self._locked():
            entries = self._sound()
            new = self._chain(entries, notes(entries) if callable(notes) else notes, who)
            with nullcontext() if around is None else around([*entries, *new]):
                self._append(new)
            return new

    def entries(self) -> list[LedgerEntry]:
        """All entries, after checking the chain; an unfinished last line, left by a crash, is not one of them."""
        return self._sound()

    def head(self) -> tuple[int, str]:
        """How many lines there are, and the last hash."""
        entries = self._sound()
        return len(entries), entries[-1].hash if entries else START

    def verify(self, *heads: str) -> list[str]:
        """What is wrong with the ledger, in words; empty when it is as it was written. heads: hashes noted earlier."""
        entries, problems, _ = self._read()
        known = {START, *(entry.hash for entry in entries)}
        return problems or [
            f"the hash {head[:12]}… that was noted earlier is not in the ledger: it was rewritten or cut"
            for head in heads
            if head not in known
        ]

    def forget(self, name: str, who: str, details: Mapping[str, Any]) -> LedgerEntry:
        """Delete the bodies of a sample's entries and leave a tombstone that names their numbers only.

        Decisions go as well, since they hold a digest of all names: who calls this writes again those that stand.
        """
        with self._locked():
            entries = self._sound()
            numbers = [entry.n for entry in entries if entry.id == name or entry.kind == DECISION]
            salt = secrets.token_hex(16)
            body = {**details, "entries": numbers, "salt": salt, "mark": _mark(salt, name)}
            [tombstone] = self._chain(entries, [LedgerNote(FORGET, body)], who)
            kept = [_emptied(entry) if entry.n in set(numbers) else entry for entry in entries]
            if not self.head_file.is_file():
                self._write_head(0, START)
            # The rewritten file appears at once with its tombstone: there is no moment without either.
            write_private(self.path, "".join(_line(entry) for entry in (*kept, tombstone)))
            self._write_head(tombstone.n, tombstone.hash)
            return tombstone

    # Reading -------------------------------------------------------------------------------------------------------

    def _sound(self) -> list[LedgerEntry]:
        entries, problems, _ = self._read()
        if problems:
            raise LedgerError(f"{self.path}: {problems[0]}; nothing was written (see `fedsift labels verify`)")
        return entries

    def _read(self) -> tuple[list[LedgerEntry], list[str], int]:
        """The entries, what is wrong, and the length in bytes of the whole lines."""
        data = self.path.read_bytes() if self.path.is_file() else b""
        if data and not self.head_file.is_file():
            return [], [f"{self.head_file.name} is missing, so lines may have been cut off: restore both files"], 0
        count, last = self._read_head()
        whole, _, rest = data.rpartition(b"\n")
        lines = whole.split(b"\n") if whole else []
        length = len(data) - len(rest)
        if rest and len(lines) < count:
            return [], [f"line {len(lines) + 1} is cut short"], length
        entries: list[LedgerEntry] = []
        previous = START
        for number, line in enumerate(lines, start=1):
            entry, problem = _parsed(line, number, previous)
            if entry is None:
                return entries, [problem], length
            entries.append(entry)
            previous = entry.hash
        problems = _unexplained(entries)
        if not problems and len(entries) < count:
            problems = [f"{count - len(entries)} of {count} lines are missing at the end"]
        elif not problems and count and entries[count - 1].hash != last:
            problems = [f"line {count} is not the one that was written last: the ledger was replaced"]
        return entries, problems, length

    def _read_head(self) -> tuple[int, str]:
        try:
            head = json.loads(self.head_file.read_text("utf-8"))
            return int(head["lines"]), str(head["hash"])
        except FileNotFoundError:
            return 0, START
        except (ValueError, KeyError, TypeError) as error:
            raise LedgerError(f"{self.head_file} cannot be read: {error}") from error

    # Writing -------------------------------------------------------------------------------------------------------

    def _locked(self) -> AbstractContextManager[Any]:
        """One writer at a time; the lock goes with the process, however that ends."""
        return file_lock(self.path.with_name(f".{self.path.name}.lock"))

    def _append(self, new: Sequence[LedgerEntry]) -> None:
        if not new:
            return
        _, _, length = self._read()
        if not self.head_file.is_file():
            self._write_head(0, START)  # before the first line
        handle = os.open(self.path, os.O_CREAT | os.O_RDWR, PRIVATE_FILE)
        try:
            with os.fdopen(handle, "r+b") as file:
                file.truncate(length)  # an unfinished line of a crash
                file.seek(length)
                file.write("".join(_line(entry) for entry in new).encode("utf-8"))
                file.flush()
                os.fsync(file.fileno())
            self._write_head(new[-1].n, new[-1].hash)
        except BaseException:
            if self._read_head()[0] < new[0].n:  # lines that the head does not know are taken back
                os.truncate(self.path, length)
            raise

    def _chain(self, entries: Sequence[LedgerEntry], notes: Iterable[LedgerNote], who: str) -> list[LedgerEntry]:
        n, previous = len(entries), entries[-1].hash if entries else START
        new: list[LedgerEntry] = []
        when = self.clock()
        for note in notes:
            if note.kind not in KINDS:
                raise ValueError(f"'{note.kind}' is no kind of entry")
            n += 1
            salt = secrets.token_hex(16)
            body = json.loads(json.dumps(note.body))
            digest = _hash([salt, body])
            chained = _hash([n, when, who, note.kind, digest, previous])
            new.append(LedgerEntry(n, when, who, note.kind, body, salt, digest, previous, chained))
            previous = chained
        return new

    def _write_head(self, lines: int, last: str) -> None:
        write_private(self.head_file, json.dumps({"lines": lines, "hash": last}) + "\n")


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")).hexdigest()


def _line(entry: LedgerEntry) -> str:
    return json.dumps(vars(entry), sort_keys=False) + "\n"


def _emptied(entry: LedgerEntry) -> LedgerEntry:
    return LedgerEntry(**{**vars(entry), "body": None, "salt": None})


def _parsed(line: bytes, number: int, previous: str) -> tuple[LedgerEntry | None, str]:
    """The line's entry, or None and what is wrong with it."""
    try:
        entry = LedgerEntry(**json.loads(line))
        chained = _hash([entry.n, entry.when, entry.who, entry.kind, entry.body_hash, entry.previous])
    except (ValueError, TypeError) as error:
        return None, f"line {number} cannot be read ({error})"
    if chained != entry.hash:
        return None, f"line {number} was edited"
    if entry.n != number or entry.previous != previous:
        return (
            None,
            f"line {number} does not follow the one before it: lines were removed, added or reordered",
        )
    if entry.body is not None and _hash([entry.salt, entry.body]) != entry.body_hash:
        return None, f"line {number} was edited"
    return entry, ""


def _unexplained(entries: Sequence[LedgerEntry]) -> list[str]:
    """Bodies may be gone only where a later tombstone says so, and must be gone where one does."""
    forgotten_by = {
        n: entry.n
        for entry in entries
        if entry.kind == FORGET and entry.body is not None
        for n in entry.body.get("entries", ())
    }
    for entry in entries:
        if entry.body is None and forgotten_by.get(entry.n, 0) <= entry.n:
            return [f"the body of line {entry.n} was removed without a tombstone"]
        if entry.body is not None and forgotten_by.get(entry.n, 0) > entry.n:
            return [f"line {entry.n} holds a body that line {forgotten_by[entry.n]} says is forgotten"]
    return []


def _mark(salt: str, name: str) -> str:
    return hashlib.sha256(f"{salt}:{name}".encode("utf-8", "surrogatepass")).hexdigest()


class ForgottenEntry:
    """Recognises samples that were forgotten, without knowing their names, so that they do not come back.

    The original data may hold them until their owner removes them there; new audits and corrected tables leave them
    out.
    """

    def __init__(self, entries: Sequence[LedgerEntry]) -> None:
        bodies = (entry.body for entry in entries if entry.kind == FORGET and entry.body is not None)
        self._marks = [(str(body["salt"]), str(body["mark"])) for body in bodies]

    def __len__(self) -> int:
        return len(self._marks)

    def __contains__(self, name: object) -> bool:
        return any(_mark(salt, str(name)) == mark for salt, mark in self._marks)


def effective(entries: Sequence[LedgerEntry], kinds: Sequence[str] = (VERDICT, CHANGE)) -> list[LedgerEntry]:
    """The entries that still hold: an `undo` to line n restores what held after line n (also an undo can be undone)."""
    # held[n]: what held after line n, as a linked list, since copies of a long list would fill the memory
    held: list[Any] = [None]
    for entry in entries:
        node = held[-1]
        if entry.kind == UNDO and entry.body is not None:
            node = held[int(entry.body["to"])]
        elif entry.kind in kinds and entry.body is not None:
            node = (node, entry)
        held.append(node)
    found: list[LedgerEntry] = []
    node = held[-1]
    while node is not None:
        node, entry = node
        found.append(entry)
    return found[::-1]
