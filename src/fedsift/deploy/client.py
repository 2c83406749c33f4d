"""The site's side of a deployment: one kind of message, handed to the site's own process.

Flower starts a new Python process for every message of a deployment, so this module imports next to nothing: the site
answers from a process that stays (`worker.py`), with its data in memory. Where that process is not there or does not
know a request, the message is answered here.

Nothing lives in Flower's `Context.state`: it is lost on a restart, and large values are lost without one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedsift.deploy.wire import call_worker
from fedsift.engines.flower.letters import CALL, Letter

app = ClientApp()


@app.query(CALL)
def call(message: Message, context: Context) -> Message:
    """Answer one request."""
    letter = Letter.from_records(message.content)
    session = str(context.run_id)
    worker = context.node_config.get("worker")
    reply = call_worker(Path(str(worker)), letter.with_note(session=session)) if worker else None
    if reply is None:
        reply = _answer_here(letter, site_path(context.node_config), session)
    return Message(reply.to_records(), reply_to=message)


def _answer_here(letter: Letter, path: Path, session: str) -> Letter:
    from fedsift.deploy.sites import open_site
    from fedsift.engines.flower.answering import answer_letter

    return answer_letter(letter, lambda model: open_site(path, model), session, frank=False)


def site_path(node_config: Any) -> Path:
    """The site.toml of this node, by its own settings: a coordinator chooses nothing here."""
    own = node_config.get("site")
    if own:
        return Path(str(own)).expanduser()
    from fedsift.contract.errors import ConfigError

    raise ConfigError("this node does not know its site: start it with `fedsift flower site SITE.toml`")
