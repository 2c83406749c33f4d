"""What a site does with a letter: introduce itself, or answer a request from its notebook and its data."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import fedsift.methods  # noqa: F401  every request that may arrive must be known by its class
from fedsift.contract.codec import digest_of
from fedsift.contract.errors import NotebookGone, RunError
from fedsift.contract.messages import Answer, Envelope
from fedsift.engines.flower.client import SIMULATED_SITES
from fedsift.engines.flower.hello import Hello, Vacant
from fedsift.engines.flower.letters import Letter
from fedsift.engines.flower.notebooks import NotebookStore, UnknownPages
from fedsift.engines.flower.records import letter_of, value_of
from fedsift.engines.flower.sites import SiteRoom, open_site
from fedsift.local.processes import threads_of

log = logging.getLogger("fedsift.site")


def answer_letter(letter: Letter, path: Path | None, session: str) -> Letter:
    """`path`: the site's file, None for a node without a site. `session`: one start of the coordinator."""
    if path is None:
        return letter_of(Vacant())
    return letter_of(answer(value_of(letter), path, letter.note.get("model", ""), session))


def answer(asked: Any, path: Path, model: str, session: str) -> Any:
    """The reply to a greeting or to a request; a failure is an answer too.

    One thread computes it, whatever the calling thread is set to: more are slower on shared cores and change the last
    bits of the weights.
    """
    with threads_of(1):
        return _safely(asked, path, model, session)


def _safely(asked: Any, path: Path, model: str, session: str) -> Any:
    run, site, moment = "", "", ""
    try:
        if isinstance(asked, Hello):
            return open_site(path, model).introduction(model)
        if not isinstance(asked, Envelope):
            raise RunError(f"a {type(asked).__name__} is nothing that a site answers")
        run, site, moment = asked.run, asked.site, asked.moment.id
        room = open_site(path, model)
        if site != room.file.name:
            raise RunError(f"the request is for site '{site}', this is '{room.file.name}'")
        return _answer(asked, room, model, session)
    except UnknownPages:
        raise  # not this site's failure: the app's own process may know them
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
