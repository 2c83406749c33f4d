"""Which key each Flower node has: written by the door, read by the coordinator's program.

Flower's nodes are numbers; a site says its name itself. What binds them is the key. The door sees a request to
activate a node with a signature that it has checked, and the SuperLink answers with the number of that key's node (it
checks, with node authentication on, that a number is only ever used by its key). So the door writes down number and
fingerprint before the answer goes out, and the roster says which name the fingerprint may use. Nothing is added to any
message, and nothing that a site says of itself takes part.
"""

from __future__ import annotations

import json
from pathlib import Path

from fedsift.core.files import write_private

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
        """The fingerprint of a node's key, as it stands on disk now; None for a node that no door let in."""
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
