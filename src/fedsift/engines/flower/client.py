"""The site's side on Flower: one message type, answered from the site's own disk.

Nothing lives in Flower's `Context.state`: it is lost on a restart, and large values are lost without one.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

import fedsift.methods  # noqa: F401  every request that may arrive must be known by its class
from fedsift.contract.codec import digest_of
from fedsift.contract.errors import ConfigError, NotebookGone, RunError
from fedsift.contract.messages import Answer, Envelope
from fedsift.engines.flower.hello import Hello, Vacant
from fedsift.engines.flower.notebooks import NotebookStore
from fedsift.engines.flower.records import note_of, pack, unpack
from fedsift.engines.flower.sites import SITE_FILE, SiteRoom, open_site

CALL = "call"
MESSAGE_TYPE = f"query.{CALL}"
SIMULATED_SITES = "FEDSIFT_SIMULATED_SITES"
"""In a simulation: the folder that holds one folder of sites for each federation."""

log = logging.getLogger("fedsift.site")
app = ClientApp()


@app.query(CALL)
def call(message: Message, context: Context) -> Message:
    """Answer one request."""
    torch.set_num_threads(1)  # more threads are slower on shared cores and change the last bits of the weights
    note = note_of(message.content)
    path = site_path(context.node_config, note)
    reply: Any
    if path is None:
        reply = Vacant()
    else:
        reply = answer(unpack(message.content), path, note.get("model", ""), session=str(context.run_id))
    return Message(pack(reply), reply_to=message)


def site_path(node_config: Any, note: dict[str, str]) -> Path | None:
    """The site.toml of this node. The coordinator chooses nothing here, except in a simulation among simulated sites."""
    own = node_config.get("site")
    if own:
        return Path(str(own)).expanduser()
    root = os.environ.get(SIMULATED_SITES)
    if not root or "partition-id" not in node_config:
        raise ConfigError("this node does not know its site: start it with --node-config 'site=\"/path/to/site.toml\"'")
    sites = sorted(path for path in (Path(root) / Path(note["federation"]).name).iterdir() if path.is_dir())
    number = int(node_config["partition-id"])
    return sites[number] / SITE_FILE if number < len(sites) else None


def answer(letter: Any, path: Path, model: str, session: str) -> Any:
    """The reply to a greeting or to a request; a failure is an answer too."""
    run, site, moment = "", "", ""
    try:
        if isinstance(letter, Hello):
            return open_site(path).introduction(model)
        if not isinstance(letter, Envelope):
            raise RunError(f"a {type(letter).__name__} is nothing that a site answers")
        run, site, moment = letter.run, letter.site, letter.moment.id
        room = open_site(path)
        if site != room.file.name:
            raise RunError(f"the request is for site '{site}', this is '{room.file.name}'")
        return _answer(letter, room, model, session)
    except Exception as error:  # the boundary: a site's failure is a value, not the run's end
        log.exception("request '%s' of run '%s' failed", moment, run)
        return Answer(run, site, moment, None, _words(error))


def _answer(envelope: Envelope, room: SiteRoom, model: str, session: str) -> Answer:
    store = NotebookStore(room.notebook, envelope.run, room.file.name, session)
    digest = digest_of(envelope)
    with store.locked():
        known = store.repeated(envelope, digest)
        if known is not None:
            return known
        notebook, base = store.open(envelope)
        store.prune(envelope)
        site = room.site(envelope.moment, notebook, model)
        reply = envelope.request.answer(site)
        result = Answer(envelope.run, room.file.name, envelope.moment.id, reply)
        store.keep(envelope, digest, notebook, base, result)
        return result


def _words(error: Exception) -> str:
    """What may be said of a failure: outside a simulation, errors that may speak of data stay in the site's log."""
    if isinstance(error, NotebookGone | RunError):
        return f"{type(error).__name__}: {error}"
    if os.environ.get(SIMULATED_SITES):
        return f"the site failed: {type(error).__name__}: {error}"
    return f"the site failed: {type(error).__name__}; its own log says more"
