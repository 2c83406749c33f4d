"""Reads and edits the roster `federation.toml` (which key belongs to which site), and records the key of each Flower
node.

[[site]]
name = "north"                 # how the federation knows this site
key = "sha256:5b0e..."         # fingerprint of the site's public key: `fedsift flower fingerprint north.pub`
samples = 400                  # the most that it may declare: what it has, and a little more
share = 0.3                    # the most that it may count for in a round's average; without it what the study says
revoked = false
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization

from fedsift.core.errors import ConfigError
from fedsift.core.files import rewrite, write_private

ROSTER_FILE = "federation.toml"


def fingerprint(public_key: bytes) -> str:
    """`sha256:` and the hash of a public key, the same for its PEM and its OpenSSH form."""
    load = (
        serialization.load_ssh_public_key
        if public_key.lstrip().startswith((b"ecdsa-", b"ssh-"))
        else serialization.load_pem_public_key
    )
    try:
        key = load(public_key)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"this is no public key (PEM or OpenSSH): {error}") from None
    der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return f"sha256:{hashlib.sha256(der).hexdigest()}"


@dataclass(frozen=True)
class RosterEntry:
    """One site of the roster."""

    name: str
    key: str
    samples: int
    revoked: bool = False
    share: float = 1.0
    """The most that its size may count for among a round's replies."""


def entries_of(table: dict[str, Any], where: str = ROSTER_FILE) -> tuple[RosterEntry, ...]:
    """The roster's entries, every key checked: one key speaks for one name, one name has one key."""
    found: list[RosterEntry] = []
    for number, row in enumerate(table.get("site", ()), 1):
        place = f"{where}: site {number}"
        unknown = set(row) - {"name", "key", "samples", "revoked", "share"}
        if unknown:
            raise ConfigError(f"{place} has an unknown key '{sorted(unknown)[0]}'")
        name, key, samples, revoked = (row.get(part) for part in ("name", "key", "samples", "revoked"))
        if not isinstance(name, str) or not name.strip():
            raise ConfigError(f"{place} has no name")
        if not isinstance(key, str) or not key.startswith("sha256:") or len(key) != 71:
            raise ConfigError(f"{place} ({name}): 'key' must be the fingerprint sha256:... of its public key")
        if not isinstance(samples, int) or isinstance(samples, bool) or samples < 1:
            raise ConfigError(f"{place} ({name}): 'samples', the most it may declare, must be a whole number above 0")
        if revoked not in (None, True, False):
            raise ConfigError(f"{place} ({name}): 'revoked' = {revoked!r} must be true or false")
        found.append(RosterEntry(name, key, samples, bool(revoked), _share(row, f"{place} ({name})")))
    for part in ("name", "key"):
        values = [getattr(entry, part) for entry in found]
        twice = next((value for value in values if values.count(value) > 1), None)
        if twice is not None:
            raise ConfigError(f"{where}: {part} '{twice}' stands there twice")
    return tuple(found)


def _share(row: dict[str, Any], place: str) -> float:
    share = row.get("share", 1.0)
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise ConfigError(
            f"{place}: 'share' = {share!r}, the most that it may count for, must be above 0 and at most 1"
        )
    return float(share)


class Roster:
    """The roster as it stands on disk now: a revoked site's next message is refused.

    A file that cannot be read, e.g. while it is being edited, changes nothing and is a `trouble`, which the gateway
    reports to its operator repeatedly; at the start the file must be valid.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp: tuple[int, int] = (0, 0)
        self._by_key: dict[str, RosterEntry] = {}
        self.trouble = ""
        """Why the file as it stands now was not taken over."""
        self._read(self._now())

    def of(self, key: str) -> RosterEntry | None:
        """The entry of a key's fingerprint; None for a key that is not listed."""
        self.refresh()
        return self._by_key.get(key)

    @property
    def entries(self) -> tuple[RosterEntry, ...]:
        """All of them, in the file's order."""
        self.refresh()
        return tuple(self._by_key.values())

    def share_of(self, name: str) -> float:
        """The most that a site's size may count for among a round's replies; 1 for one that is not listed."""
        self.refresh()
        return next((entry.share for entry in self._by_key.values() if entry.name == name), 1.0)

    def refresh(self) -> None:
        """Read the file if it has changed."""
        stamp = self._now()
        if stamp != self._stamp:
            try:
                self._read(stamp)
            except ConfigError as error:
                self.trouble, self._stamp = str(error), stamp

    def _now(self) -> tuple[int, int]:
        try:
            found = self.path.stat()
        except OSError:
            return (-1, -1)
        return (found.st_mtime_ns, found.st_size)

    def _read(self, stamp: tuple[int, int]) -> None:
        try:
            table = tomllib.loads(self.path.read_text("utf-8"))
        except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{self.path} cannot be read: {error}") from None
        self._by_key = {entry.key: entry for entry in entries_of(table, str(self.path))}
        self._stamp, self.trouble = stamp, ""


def read_entries(path: Path) -> tuple[RosterEntry, ...]:
    """The entries of a roster's file; a file that is not there has none."""
    if not path.is_file():
        return ()
    try:
        return entries_of(tomllib.loads(path.read_text("utf-8")), str(path))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None


def add_entry(path: Path, entry: RosterEntry) -> None:
    """List a site at the end of the file; all else in it, comments too, stays as it is."""
    wanted = (*read_entries(path), entry)
    entries_of({"site": [vars(each) for each in wanted]}, str(path))
    before = path.read_text("utf-8") if path.is_file() else ""
    gap = "" if not before or before.endswith("\n\n") else "\n" if before.endswith("\n") else "\n\n"
    _write(path, before + gap + roster_text([entry]), wanted)


def revoke_entry(path: Path, name: str) -> RosterEntry:
    """Mark a site as revoked; a gateway that reads the file refuses its next message."""
    return change_entry(path, name, revoked=True)


def change_entry(path: Path, name: str, **parts: str | bool) -> RosterEntry:
    """Change parts of a site's entry where it stands; all else in the file, comments too, stays as it is."""
    known = read_entries(path)
    number = next((n for n, entry in enumerate(known) if entry.name == name), None)
    if number is None:
        names = ", ".join(entry.name for entry in known) or "nobody"
        raise ConfigError(f"{path} lists no site '{name}'; it lists {names}")
    changed = replace(known[number], **parts)  # type: ignore[arg-type]  # of an entry's own fields
    wanted = (*known[:number], changed, *known[number + 1 :])
    entries_of({"site": [vars(each) for each in wanted]}, str(path))
    if changed == known[number]:
        return changed
    lines = path.read_text("utf-8").splitlines()
    heads = [n for n, line in enumerate(lines) if _HEAD.match(line)]
    if len(heads) != len(known):  # written in another way than [[site]] tables
        raise ConfigError(f"{path}: write each site as a [[site]] table, then try again")
    start = heads[number]
    end = next((n for n in range(start + 1, len(lines)) if lines[n].lstrip().startswith("[")), len(lines))
    old = re.compile(rf"\s*({'|'.join(parts)})\s*=")
    kept = [line for line in lines[start + 1 : end] if not old.match(line)]
    new = [f"{part} = {json.dumps(value)}" for part, value in parts.items()]  # text and truth: TOML writes them so
    _write(path, "\n".join([*lines[: start + 1], *new, *kept, *lines[end:]]) + "\n", wanted)
    return changed


_HEAD = re.compile(r"\s*\[\[\s*site\s*\]\]")


def _write(path: Path, text: str, wanted: tuple[RosterEntry, ...]) -> None:
    """Replace the file, if it then says what was wanted."""
    if entries_of(tomllib.loads(text), str(path)) != wanted:
        raise ConfigError(f"{path} could not be changed safely: edit it by hand")
    if path.is_file():
        rewrite(path, text.encode("utf-8"))
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_private(path, text)


def roster_text(entries: Iterable[RosterEntry]) -> str:
    """The TOML of a roster."""
    import tomli_w

    rows = [
        {"name": entry.name, "key": entry.key, "samples": entry.samples, "revoked": entry.revoked}
        | ({"share": entry.share} if entry.share < 1 else {})
        for entry in entries
    ]
    return tomli_w.dumps({"site": rows})


# Keys of the connected nodes
# ------------------------------------------------------------------------------


NODES_FILE = "nodes.json"


class NodeKeys:
    """Fingerprints by node number, and how often each node has come, on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp: tuple[int, int] = (-1, -1)
        self._known: dict[int, tuple[str, int]] = {}

    def note(self, node: int, key: str) -> None:
        """Write down that a node came; a number that had another key changes hands only by the SuperLink's word."""
        before = self._now().get(node, ("", 0))
        times = before[1] + 1 if before[0] == key else 1
        # one key has one node: a SuperLink that forgot gives it another number
        others = {other: entry for other, entry in self._known.items() if entry[0] != key}
        self._known = others | {node: (key, times)}
        table = {str(number): list(entry) for number, entry in sorted(self._known.items())}
        write_private(self.path, json.dumps(table, indent=1).encode())

    def key_of(self, node: int) -> str | None:
        """The fingerprint of a node's key, as it stands on disk now; None for a node that no gateway let in."""
        return self._now().get(node, (None, 0))[0]

    def arrivals(self, node: int) -> int:
        """How often this node has been activated: a program that was started again has lost what it was sent."""
        return self._now().get(node, (None, 0))[1]

    def _now(self) -> dict[int, tuple[str, int]]:
        try:
            found = self.path.stat()
            stamp = (found.st_mtime_ns, found.st_size)
            if stamp != self._stamp:
                table = json.loads(self.path.read_text("utf-8"))
                self._known = {int(number): (str(key), int(times)) for number, (key, times) in table.items()}
                self._stamp = stamp
        except (OSError, ValueError, TypeError):
            return self._known
        return self._known
