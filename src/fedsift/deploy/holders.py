"""Who is who: a Flower node speaks for the site whose key it holds, and for no other."""

from __future__ import annotations

from pathlib import Path

from fedsift.contract.errors import ConfigError
from fedsift.deploy.nodes import NodeBook
from fedsift.deploy.roster import Entry, Roster
from fedsift.engines.flower.hello import Introduction
from fedsift.engines.flower.post import Doorkeeper


class KeyHolders(Doorkeeper):
    """Whom the coordinator speaks to: nodes whose key is on the roster, each under its key's name."""

    def __init__(self, roster: Path, nodes: Path) -> None:
        self._roster, self._nodes = Roster(roster), NodeBook(nodes)

    def names(self) -> tuple[str, ...]:
        return tuple(entry.name for entry in self._roster.entries if not entry.revoked)

    def entry_of(self, node: int) -> Entry | None:
        key = self._nodes.key_of(node)
        entry = None if key is None else self._roster.of(key)
        return None if entry is None or entry.revoked else entry

    def admits(self, node: int) -> bool:
        """A node that is not listed, or not any more, receives nothing."""
        return self.entry_of(node) is not None

    def arrivals(self, node: int) -> int:
        return self._nodes.arrivals(node)

    def objection(self, node: int, own: Introduction) -> str | None:
        """Why this node may not speak as the site that it says it is."""
        entry, facts = self.entry_of(node), own.facts
        if entry is None:
            return f"its key is not on the roster {self._roster.path.name}"
        if facts.name != entry.name:
            return (
                f"it calls itself '{facts.name}', its key is that of '{entry.name}': write name = \"{entry.name}\" "
                "into its site.toml, or list its key under the other name"
            )
        most = max(facts.samples, facts.held_out)
        if most > entry.samples:
            return (
                f"site '{facts.name}' declares {most} samples, the roster allows {entry.samples}: "
                "correct the one that is wrong"
            )
        return None

    def share(self, site: str) -> float:
        return self._roster.share_of(site)


def holders_of(roster: str, nodes: str) -> KeyHolders:
    """As `KeyHolders`, with the words of a run that lost its door."""
    try:
        return KeyHolders(Path(roster), Path(nodes))
    except ConfigError as error:
        raise ConfigError(
            f"{error}; this run began behind a door with that roster, put the file back"
        ) from None
