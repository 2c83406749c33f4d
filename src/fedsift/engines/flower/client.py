"""The site's side on Flower: one message type, handed to the site.

Flower starts a new Python process for every message of a deployment, so this module imports next to nothing: a
deployed site answers from a process that stays (`worker.py`), with its data in memory. In a simulation, and where that
process is not there or does not know a request, the message is answered here.

Nothing lives in Flower's `Context.state`: it is lost on a restart, and large values are lost without one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedsift.engines.flower.letters import Letter
from fedsift.engines.flower.wire import call_worker

CALL = "call"
MESSAGE_TYPE = f"query.{CALL}"
SIMULATED_SITES = "FEDSIFT_SIMULATED_SITES"
"""In a simulation: the folder that holds one folder of sites for each federation."""

app = ClientApp()


@app.query(CALL)
def call(message: Message, context: Context) -> Message:
    """Answer one request."""
    letter = Letter.from_records(message.content)
    session = str(context.run_id)
    worker = context.node_config.get("worker")
    reply = call_worker(Path(str(worker)), letter.with_note(session=session)) if worker else None
    if reply is None:
        reply = _answer_here(letter, site_path(context.node_config, letter.note), session)
    return Message(reply.to_records(), reply_to=message)


def _answer_here(letter: Letter, path: Path | None, session: str) -> Letter:
    from fedsift.engines.flower.answering import answer_letter

    return answer_letter(letter, path, session)


def site_path(node_config: Any, note: dict[str, str]) -> Path | None:
    """The site.toml of this node, or None for a simulated node without a site.

    A coordinator chooses nothing here, except in a simulation, and there only among the simulated sites.
    """
    own = node_config.get("site")
    if own:
        return Path(str(own)).expanduser()
    root = os.environ.get(SIMULATED_SITES)
    if not root or "partition-id" not in node_config:
        from fedsift.contract.errors import ConfigError

        raise ConfigError("this node does not know its site: start it with `fedsift flower site SITE.toml`")
    sites = sorted(path for path in (Path(root) / Path(note["federation"]).name).iterdir() if path.is_dir())
    number = int(node_config["partition-id"])
    return sites[number] / "site.toml" if number < len(sites) else None
