"""FedNoRo between two entries in every site's notebook: shows that a notebook outlives what happens in between."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from fedsift.methods._base import methods
from fedsift.methods.fednoro import FedNoRo, FedNoRoState
from fedsift.protocol.federation import Federation
from fedsift.protocol.messages import Reply, Request, SiteFacts, disclosed
from fedsift.protocol.method import Stage
from fedsift.protocol.site import Site


@dataclass(frozen=True)
class DiaryEntries(Reply):
    """How often the site has written."""

    entries: int = disclosed("number of entries in the site's diary", "setting")

    def refusal(self, request: Any, facts: SiteFacts) -> str | None:
        return None if self.entries > 0 else "an entry was made, so there must be one"


@dataclass(frozen=True)
class WriteDiary(Request[DiaryEntries]):
    """Add an entry to the diary that the site keeps in its notebook."""

    reply_type: ClassVar[type[Reply]] = DiaryEntries

    def answer(self, site: Site) -> DiaryEntries:
        site.notebook["diary"] = [*site.notebook.get("diary", []), site.moment.id]
        return DiaryEntries(len(site.notebook["diary"]))


@methods.register("fednoro-diary")
@dataclass(frozen=True)
class FedNoRoDiary(FedNoRo):
    def stages(self) -> list[Stage]:
        first = Stage("open the diary", 1, self.write, asks=(WriteDiary,), trains=False)
        return [first, *super().stages(), replace(first, name="close the diary")]

    def write(self, state: FedNoRoState, federation: Federation) -> FedNoRoState:
        replies = federation.ask(WriteDiary())
        federation.record(entries={site: reply.entries for site, reply in replies.items()})
        return state
