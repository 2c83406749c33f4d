"""What a site does with a letter: introduce itself, or answer a request from its notebook and its data."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from typing import Any

import fedsift.methods  # noqa: F401  every request that may arrive must be known by its class
from fedsift.core.codec import digest_of
from fedsift.core.errors import NotebookGone, RunError
from fedsift.core.text import short
from fedsift.core.type_checks import shown
from fedsift.protocol.messages import Answer, Envelope
from fedsift.training.processes import threads_of
from fedsift.transports.remote.introduction import Hello, Noted, Notice, Vacant
from fedsift.transports.remote.messages import Letter, letter_of, value_of
from fedsift.transports.remote.notebooks import NotebookStore, UnknownPages
from fedsift.transports.remote.site_runtime import SiteRoom

log = logging.getLogger("fedsift.site")


OF_THE_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})
"""Errors that tell of a disk and nothing of data: full, over its quota, read-only."""
OpenRoom = Callable[[str], SiteRoom]
"""Opens the site for the study's network, by its name."""


def answer_letter(letter: Letter, open_room: OpenRoom | None, session: str, *, frank: bool) -> Letter:
    """`open_room`: None for a node without a site. `session`: one start of the coordinator.

    `frank`: whether an error's own words may travel; they may speak of data, so a real site keeps them in its log.
    """
    if open_room is None:
        return letter_of(Vacant())
    model = letter.note.get("model", "")
    return letter_of(answer(value_of(letter), lambda: open_room(model), model, session, frank=frank))


def answer(asked: Any, room_of: Callable[[], SiteRoom], model: str, session: str, *, frank: bool) -> Any:
    """The reply to a greeting or to a request; a failure is an answer too.

    One thread computes it, whatever the calling thread is set to: more are slower on shared cores and change the last
    bits of the weights.
    """
    with threads_of(1):
        return _safely(asked, room_of, model, session, frank=frank)


def _safely(asked: Any, room_of: Callable[[], SiteRoom], model: str, session: str, *, frank: bool) -> Any:
    run, site, moment = "", "", ""
    try:
        if isinstance(asked, Hello):
            return room_of().introduction(model)
        if isinstance(asked, Notice):
            log.warning("the coordinator says: %s", short(asked.text))
            return Noted()
        if not isinstance(asked, Envelope):
            raise RunError(f"a {type(asked).__name__} is nothing that a site answers")
        run, site, moment = asked.run, asked.site, asked.moment.id
        room = room_of()
        if site != room.name:
            raise RunError(f"the request is for site '{shown(site)}', this is '{room.name}'")
        return _answer(asked, room, model, session)
    except UnknownPages:
        raise  # not this site's failure: the app's own process may know them
    except Exception as error:  # the boundary: a site's failure is a value, not the run's end
        log.exception("request '%s' of run '%s' failed", short(moment, 200), short(run, 200))
        return Answer(run, site, moment, None, _words(error, frank))


def _answer(envelope: Envelope, room: SiteRoom, model: str, session: str) -> Answer:
    store = NotebookStore(room.notebook, envelope.run, room.name, session)
    digest = digest_of(envelope)
    with store.locked():
        known = store.repeated(envelope, digest)
        if known is not None:
            return known
        notebook, base = store.open(envelope)
        store.prune(envelope)
        site = room.site(envelope.moment, notebook, model)
        reply = envelope.request.answer(site)
        if room.release is not None:  # before it is kept: a repeated request must get the same noise
            reply = room.release(envelope, reply)
        result = Answer(envelope.run, room.name, envelope.moment.id, reply)
        store.keep(envelope, digest, notebook, base, result)
        return result


def _words(error: Exception, frank: bool) -> str:
    """What may be said of a failure."""
    if isinstance(error, NotebookGone | RunError):
        return f"{type(error).__name__}: {error}"
    if frank:
        return f"the site failed: {type(error).__name__}: {error}"
    if (
        isinstance(error, OSError) and error.errno in OF_THE_DISK
    ):  # the system's words, without the file's name
        return f"the site failed: {os.strerror(error.errno)}; its own log says more"
    return f"the site failed: {type(error).__name__}; its own log says more"
