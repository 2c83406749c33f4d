"""What a site lets out: its own rules, applied by its own process before a request is served and before a reply goes.

[policy]
requests = ["Train", "Evaluate"]                    # all that may be asked; anything else is refused
fields = ["Trained.weights", "Evaluated.correct"]   # all that a reply may carry
ask_first = true                                    # a run begins here only after `fedsift flower allow RUN`

Without the table a site answers what the installed fedsift knows. With it, what is not written down is refused: a
newer version's requests and fields were not there when the site approved.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedsift.contract.messages import Answer, Envelope, Reply, Request
from fedsift.deploy.private import append_private, private_folder, write_private
from fedsift.engines.flower.hello import Hello, Introduction
from fedsift.engines.flower.letters import Letter

ALLOWED_RUNS = "allowed-runs.json"


@dataclass(frozen=True)
class Policy:
    """The keys of the `[policy]` table."""

    requests: tuple[str, ...] = ()
    """Kinds of request that are served, by their names; also those inside another."""
    fields: tuple[str, ...] = ()
    """Fields of replies that may leave, as `Reply.field`."""
    ask_first: bool = False
    """Whether the operator must allow each run by its id."""

    def objection_to_request(self, asked: Any, allowed: frozenset[str]) -> str | None:
        """Why this is not served, or None. `allowed`: runs that the operator has let in."""
        if isinstance(asked, Hello):
            return None
        if not isinstance(asked, Envelope):
            return f"a {type(asked).__name__} is nothing that a site answers"
        for name in requests_in(asked.request):
            if name not in self.requests:
                return f"this site's policy does not allow the request {name}"
        if self.ask_first and asked.run not in allowed:
            return f"this site's operator has not allowed the run '{asked.run}' yet"
        return None

    def objection_to_reply(self, reply: Any) -> str | None:
        """Why this does not leave, or None."""
        if isinstance(reply, Introduction):
            return None
        refused = [name for name in fields_in(reply) if name not in self.fields]
        return f"this site's policy does not let {refused[0]} out" if refused else None


def requests_in(request: Request[Any]) -> Iterator[str]:
    """The names of a request and of all that ride on it."""
    yield type(request).__name__
    for part in request.besides:
        yield from requests_in(part)


def fields_in(value: Any) -> Iterator[str]:
    """`Reply.field` of every field that holds something, in a reply and in the replies inside it."""
    if isinstance(value, Reply):
        for f in dataclasses.fields(value):
            item = getattr(value, f.name)
            if not _empty(item):
                yield f"{type(value).__name__}.{f.name}"
            yield from fields_in(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from fields_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from fields_in(item)


def _empty(item: Any) -> bool:
    return item is None or (isinstance(item, str | list | tuple | Mapping) and not item)


# Runs that the operator lets in --------------------------------------------------------------------------------------


def allowed_runs(notebook: Path) -> frozenset[str]:
    try:
        return frozenset(map(str, json.loads((notebook / ALLOWED_RUNS).read_text("utf-8"))))
    except (OSError, ValueError):
        return frozenset()


def allow_run(notebook: Path, run: str) -> None:
    """Let a run in; it is asked again by the coordinator's next request."""
    private_folder(notebook)
    runs = sorted(allowed_runs(notebook) | {run})
    write_private(notebook / ALLOWED_RUNS, json.dumps(runs).encode())


# What left -----------------------------------------------------------------------------------------------------------


def note_reply(egress: Path, asked: Any, answer: Any, letter: Letter) -> None:
    """One line for what this process hands out: which request, which fields, bytes, hash; a refusal with its reason."""
    envelope = asked if isinstance(asked, Envelope) else None
    reply = answer.reply if isinstance(answer, Answer) else answer
    content = letter.tree.encode() + letter.tensors
    line = {
        "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "run": envelope.run[:200] if envelope else "",
        "request": "+".join(requests_in(envelope.request)) if envelope else type(asked).__name__,
        "fields": list(fields_in(reply)),
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        **({"refused": answer.failure} if isinstance(answer, Answer) and answer.failure else {}),
    }
    append_private(egress, json.dumps(line))
