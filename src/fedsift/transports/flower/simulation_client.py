"""The ClientApp of Flower's simulation: a node acts as one site and answers from the site's folder.

Nothing is kept in Flower's `Context.state`: it is lost on a restart, and large values are lost without one.
"""

from __future__ import annotations

import os
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedsift.core.errors import ConfigError
from fedsift.transports.flower.processes import SIMULATED_SITES
from fedsift.transports.flower.records import CALL, from_records, to_records
from fedsift.transports.remote.answering import answer_message
from fedsift.transports.remote.simulated_sites import open_simulated

app = ClientApp()


@app.query(CALL)
def call(message: Message, context: Context) -> Message:
    """Answer one request."""
    asked = from_records(message.content)
    place = site_place(int(context.node_config["partition-id"]), asked.note["federation"])
    open_site = None if place is None else lambda model: open_simulated(place)
    reply = answer_message(asked, open_site, str(context.run_id), expose_errors=True)
    return Message(to_records(reply), reply_to=message)


def site_place(number: int, federation: str) -> Path | None:
    """The folder of this node's site; None for a node to which the federation gives none."""
    root = os.environ.get(SIMULATED_SITES)
    if not root:
        raise ConfigError("this node serves simulated sites, and nobody said where they are")
    sites = sorted(path for path in (Path(root) / Path(federation).name).iterdir() if path.is_dir())
    return sites[number] if number < len(sites) else None
