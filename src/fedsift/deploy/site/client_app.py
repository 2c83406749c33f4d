"""The site's Flower ClientApp: passes each message on to the site's worker process.

Flower starts a new Python process for every message of a deployment, so this module imports next to nothing. It opens
no data and no notebook, and does not know where they are: the site answers from a process of its own (`worker.py`),
whose last step is the site's policy. Where that process does not answer, nobody does.

Nothing is kept in Flower's `Context.state`: it is lost on a restart, and large values are lost without one.
"""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedsift.core.errors import ConfigError
from fedsift.deploy.site.local_socket import call_worker
from fedsift.transports.flower.records import CALL, from_records, to_records

app = ClientApp()


@app.query(CALL)
def call(message: Message, context: Context) -> Message:
    """Carry one request to the site's process, and its answer back."""
    asked = from_records(message.content)
    worker = context.node_config.get("worker")
    if not worker:
        raise ConfigError("this node does not know its site: start it with `fedsift flower site SITE.toml`")
    reply = call_worker(Path(str(worker)), asked.with_note(session=str(context.run_id)))
    return Message(to_records(reply), reply_to=message)
