"""Answers a message at a site: introduces the site, or answers a request from its notebook and data."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from typing import Any

from fedsift.core.codec import digest_of
from fedsift.core.errors import NotebookGone, RunError
from fedsift.core.text import short
from fedsift.core.type_checks import shown
from fedsift.methods._base import methods
from fedsift.protocol.messages import ReplyEnvelope, RequestEnvelope
from fedsift.training.processes import threads_of
from fedsift.transports.remote.encoding import decode, encode
from fedsift.transports.remote.introduction import Acknowledged, IntroductionRequest, NoSite, SiteNotice
from fedsift.transports.remote.messages import EncodedMessage
from fedsift.transports.remote.notebooks import NotebookStore, UnknownPages
from fedsift.transports.remote.site_runtime import SiteRuntime

methods.load_own()  # every request that may arrive must be known by its class

log = logging.getLogger("fedsift.site")


OF_THE_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})
"""Errors of the disk that disclose nothing about data: full, over its quota, read-only."""
OpenSite = Callable[[str], SiteRuntime]
"""Opens the site for the study's network, by its name."""


def answer_message(
    message: EncodedMessage, open_site: OpenSite | None, session: str, *, expose_errors: bool
) -> EncodedMessage:
    """What a site answers; a process answers one message at a time, for networks are shared within it.

    `open_site`: None for a node without a site. `session`: one start of the coordinator.

    `expose_errors`: whether an error's own words may travel; they may speak of data, so a real site keeps them in its
    log.
    """
    if open_site is None:
        return encode(NoSite())
    model = message.note.get("model", "")
    return encode(answer(decode(message), lambda: open_site(model), model, session, expose_errors=expose_errors))


def answer(asked: Any, site_of: Callable[[], SiteRuntime], model: str, session: str, *, expose_errors: bool) -> Any:
    """The reply to a greeting or to a request; a failure is an answer too.

    One thread computes it, whatever the calling thread is set to: more are slower on shared cores and change the last
    bits of the weights.
    """
    with threads_of(1):
        return _safely(asked, site_of, model, session, expose_errors=expose_errors)


def _safely(asked: Any, site_of: Callable[[], SiteRuntime], model: str, session: str, *, expose_errors: bool) -> Any:
    run, site, moment = "", "", ""
    try:
        if isinstance(asked, IntroductionRequest):
            return site_of().introduction(model)
        if isinstance(asked, SiteNotice):
            log.warning("the coordinator says: %s", short(asked.text))
            return Acknowledged()
        if not isinstance(asked, RequestEnvelope):
            raise RunError(f"a {type(asked).__name__} is nothing that a site answers")
        run, site, moment = asked.run, asked.site, asked.moment.id
        runtime = site_of()
        if site != runtime.name:
            raise RunError(f"the request is for site '{shown(site)}', this is '{runtime.name}'")
        return _answer(asked, runtime, model, session)
    except UnknownPages:
        raise  # not this site's failure: the app's own process may know them
    except Exception as error:  # the boundary: a site's failure is a value, not the run's end
        log.exception("request '%s' of run '%s' failed", short(moment, 200), short(run, 200))
        return ReplyEnvelope(run, site, moment, None, _words(error, expose_errors))


def _answer(envelope: RequestEnvelope, runtime: SiteRuntime, model: str, session: str) -> ReplyEnvelope:
    store = NotebookStore(runtime.notebook, envelope.run, runtime.name, session, runtime.history)
    digest = digest_of(envelope)
    with store.locked():
        known = store.repeated(envelope, digest)
        if known is not None:
            return known
        notebook, base = store.open(envelope)
        store.prune(envelope)
        site = runtime.site(envelope.moment, notebook, model)
        reply = envelope.request.answer(site)
        if runtime.release is not None:  # before it is kept: a repeated request must get the same noise
            reply = runtime.release(envelope, reply, site.facts)
        result = ReplyEnvelope(envelope.run, runtime.name, envelope.moment.id, reply)
        store.keep(envelope, digest, notebook, base, result)
        return result


def _words(error: Exception, expose_errors: bool) -> str:
    """What may be said of a failure."""
    if isinstance(error, NotebookGone | RunError):
        return f"{type(error).__name__}: {error}"
    if expose_errors:
        return f"the site failed: {type(error).__name__}: {error}"
    if isinstance(error, OSError) and error.errno in OF_THE_DISK:  # the system's words, without the file's name
        return f"the site failed: {os.strerror(error.errno)}; its own log says more"
    return f"the site failed: {type(error).__name__}; its own log says more"
