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

from fedsift.contract.files import write_private

NODES_FILE = "nodes.json"


class NodeBook:
    """Fingerprints by node number, on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp: tuple[int, int] = (-1, -1)
        self._keys: dict[int, str] = {}

    def note(self, node: int, key: str) -> None:
        """Write down a node's key; a number that had another key changes hands only by the SuperLink's word."""
        if self.key_of(node) == key:
            return
        # one key has one node: a SuperLink that forgot gives it another number
        self._keys = {other: known for other, known in self._keys.items() if known != key} | {node: key}
        table = {str(number): known for number, known in sorted(self._keys.items())}
        write_private(self.path, json.dumps(table, indent=1).encode())

    def key_of(self, node: int) -> str | None:
        """The fingerprint of a node's key, as it stands on disk now; None for a node that no door let in."""
        try:
            found = self.path.stat()
            stamp = (found.st_mtime_ns, found.st_size)
            if stamp != self._stamp:
                self._keys = {int(n): str(key) for n, key in json.loads(self.path.read_text("utf-8")).items()}
                self._stamp = stamp
        except (OSError, ValueError):
            return self._keys.get(node)
        return self._keys.get(node)
