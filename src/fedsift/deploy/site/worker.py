"""A deployed site's worker process: checks each message against the policy and budget, answers it, records what left.

    python -m fedsift.deploy.site.worker SITE.toml SOCKET

It ends with the process that started it, and is started again if it ends before. Losing it loses nothing: what it
answered is on disk. No other process of a site opens its data or its notebook.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import shutil
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedsift.core.errors import ConfigError, FedsiftError
from fedsift.core.files import make_files_private, private_folder, write_private
from fedsift.core.process import when_parent_ends
from fedsift.core.text import argument, short, visible
from fedsift.core.type_checks import schema_error
from fedsift.deploy.flower_commands import failure_file
from fedsift.deploy.site.consent import (
    WITHDRAWN,
    account_of,
    note_reply,
    objection_to_run,
    rules_of,
    withdrawn_since,
)
from fedsift.deploy.site.data import open_site
from fedsift.deploy.site.embeddings import objection_to_embedding
from fedsift.deploy.site.forgetting import serving
from fedsift.deploy.site.local_socket import receive_message, send_message
from fedsift.deploy.site.policy import Policy, held_in
from fedsift.deploy.site.site_file import SiteFile, egress_of, notebook_of, read_site_file
from fedsift.formulas.privacy import update_zcdp
from fedsift.protocol.messages import Reply, ReplyEnvelope, RequestEnvelope
from fedsift.training.features import LONGEST_NAME, unknown_network
from fedsift.training.private_updates import noised_fields
from fedsift.transports.remote.answering import answer
from fedsift.transports.remote.encoding import decode, encode
from fedsift.transports.remote.introduction import SiteNotice
from fedsift.transports.remote.messages import EncodedMessage
from fedsift.transports.remote.notebooks import run_folders, unfit_run

# The log of a site's own process: a line of it is a line, whatever a message from outside holds
# ------------------------------------------------------------------------------


class EscapedLines(logging.Formatter):
    """Log formatter: control characters are escaped, and a traceback's lines cannot be taken for log entries."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return visible(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:
        return "\n".join(f"  | {visible(line)}" for line in super().formatException(ei).splitlines())


def begin_log() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(EscapedLines("%(asctime)s %(name)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


log = logging.getLogger("fedsift.site")

UNKNOWN = "this site does not know what it was asked; it runs another version, or no plugin"

HEARD_WITHIN = 120.0
"""Seconds in which a message must have come, and be taken: one app that says nothing must not keep out all others."""


def serve(site_file: Path, place: Path) -> None:
    """Answer messages one after the other until this process is ended."""
    file = read_site_file(site_file)
    check_notebook(file.name, notebook_of(site_file, file))
    load_plugins(file)
    with serving(notebook_of(site_file, file)), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        open_site(site_file)  # kept in memory; what is wrong with the data shows before anything connects
        # The name appears only when calls are taken: a client may connect as soon as it sees the name.
        unfinished = place.with_name(f"{place.name}.new")
        unfinished.unlink(missing_ok=True)
        listener.bind(str(unfinished))
        unfinished.chmod(0o600)
        listener.listen()
        unfinished.replace(place)
        while True:
            channel, _ = listener.accept()
            with channel:
                attend(channel, site_file)


def attend(channel: socket.socket, site_file: Path) -> None:
    """Answer one message. Nothing that it says ends this process: what cannot be answered is refused, and listed."""
    try:
        try:
            reply = _reply(receive_message(channel, HEARD_WITHIN), site_file)
        except (OSError, ConfigError):
            raise
        except (Exception, SystemExit) as error:
            log.warning("refused: %s", short(f"{type(error).__name__}: {error}"))
            reply = _listed(_refusal(None, UNKNOWN), None, site_file, read_site_file(site_file))
        channel.settimeout(HEARD_WITHIN)
        send_message(channel, reply)
    except OSError:
        log.warning("a request's process ended, or was silent, before it was answered")
    except ConfigError as error:  # the site's file is being edited: nothing leaves without its policy
        log.warning("no answer: %s", error)


def check_notebook(site: str, notebook: Path) -> None:
    """A notebook that cannot be written would fail the first request, in the middle of a run."""
    with _writing(site, notebook):
        # a run's folder of an older version may have the name of one of the site's own files
        run_folders(notebook)
    since = withdrawn_since(notebook)
    if since is not None:
        raise ConfigError(
            f"site '{site}' has withdrawn ({since}), its notebook is closed: to take part again, remove "
            f"{notebook / WITHDRAWN}"
        )
    with _writing(site, notebook):
        private_folder(notebook)
        write_private(notebook / ".probe", b"")
        (notebook / ".probe").unlink()


@contextmanager
def _writing(site: str, notebook: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"site '{site}': its notebook '{notebook}' cannot be written ({error.strerror or error}): make it writable "
            "for this account, or name another folder in site.toml (notebook)"
        ) from None


def load_plugins(file: SiteFile) -> None:
    """Import what the site's own file names: a method of one's own must be installed where it is answered."""
    for name in file.plugins:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise ConfigError(f"site '{file.name}': the plugin '{name}' cannot be imported: {error}") from None


def _reply(message: EncodedMessage, site_file: Path) -> EncodedMessage:
    """The site's answer: its policy stands before the work and, as the last step, before what leaves."""
    file, began = read_site_file(site_file), time.perf_counter()
    asked: Any = None
    try:
        found = decode(message)
        wrong = schema_error(found, type(found), "the request")
        if wrong is None:
            asked = found
            answered = _answer(asked, message.note, file, site_file)
        else:  # whatever follows relies on the types that an envelope declares
            answered = _unfit(wrong)
    except Exception as error:  # a request that this process does not know, or a notebook with such pages
        cause = error.__cause__
        if isinstance(cause, ConfigError):  # a number out of its range; nothing has looked at data yet
            answered = _unfit(str(cause))
        else:
            log.warning("refused: %s", short(error))
            answered = _refusal(asked, UNKNOWN)
    return _listed(answered, asked, site_file, file, _private(answered, file), time.perf_counter() - began)


def _unfit(reason: str) -> ReplyEnvelope:
    log.warning("refused: %s", short(reason))
    return _refusal(None, short(f"the request cannot be served: {reason}"))


def _listed(
    answered: Any,
    asked: Any,
    site_file: Path,
    file: SiteFile,
    private: tuple[str, ...] = (),
    seconds: float = 0.0,
) -> EncodedMessage:
    """The message of an answer, once the list of what left has its line."""
    reply = encode(answered)
    note_reply(egress_of(site_file, file), asked, answered, reply, private, seconds)
    return reply


def _answer(asked: Any, note: Mapping[str, str], file: SiteFile, site_file: Path) -> Any:
    notebook, model = notebook_of(site_file, file), file.model or note.get("model", "")
    since = withdrawn_since(notebook)
    if since is not None:
        return _refusal(asked, f"site '{file.name}' has withdrawn ({since})")
    policy = rules_of(file, notebook)
    reason = unfit_run(asked.run) if isinstance(asked, RequestEnvelope) else None
    if reason is not None:
        log.warning("refused: %s", short(reason))
        return _refusal(asked, reason)
    reason = policy.objection_to_request(asked) if policy else None
    unapproved = None
    if reason is None and policy and policy.ask_first and isinstance(asked, RequestEnvelope):
        reason = unapproved = objection_to_run(asked, model, file, notebook)
    reason = (
        reason
        or _unwritten(asked, model, file)
        or _too_much(asked, model, file, site_file)
        or _unaffordable(asked, file, site_file)
    )
    if reason is not None:
        log.warning("refused: %s%s", short(reason), _way_out(asked, site_file) if unapproved else "")
        return _refusal(asked, reason)
    answered = answer(
        asked, lambda: open_site(site_file, model, file), model, note.get("session", ""), expose_errors=False
    )
    reply = answered.reply if isinstance(answered, ReplyEnvelope) else answered
    reason = policy.objection_to_reply(reply) if policy and reply is not None else None
    if reason is not None:
        log.warning("refused: %s", short(reason))
        return _refusal(asked, reason)
    return answered


def _unwritten(asked: Any, model: str, file: SiteFile) -> str | None:
    """Why the network that a message names is not built: its name could have any code imported and called."""
    reason = unknown_network(model, (file.model, *file.networks))
    if reason is None or isinstance(asked, SiteNotice):
        return None
    line = f"networks = [{json.dumps(short(model, LONGEST_NAME), ensure_ascii=False)}]"
    return (
        f"{reason}: at site '{file.name}', install what registers it or, for code that you know, write {line} "
        "into site.toml"
    )


def _too_much(asked: Any, model: str, file: SiteFile, site_file: Path) -> str | None:
    """Why a message asks for more work than the site does for one, with or without a policy of its own."""
    if isinstance(asked, SiteNotice):
        return None
    limits, site = file.policy or Policy(), open_site(site_file, file=file)
    if len(site.samples.shape) > 1:  # rows of features are nothing to embed
        notebook, written = notebook_of(site_file, file), (file.model, *file.networks)
        reason = objection_to_embedding(notebook, model, limits.embeddings, written)
        if reason is not None:
            return f"site '{file.name}': {reason}"
    return limits.objection_to_work(asked.request, site.facts("")) if isinstance(asked, RequestEnvelope) else None


def _unaffordable(asked: Any, file: SiteFile, site_file: Path) -> str | None:
    """Why what leaves noised is not even computed: it could not be paid for."""
    policy = file.policy
    if policy is None or policy.budget is None or not isinstance(asked, RequestEnvelope):
        return None
    rules = rules_of(file, notebook_of(site_file, file))
    listed = set(rules.fields or ()) if rules else set()
    kind = asked.request.reply_type
    costly = [name for name in noised_fields(kind) if f"{kind.__name__}.{name}" in listed]
    return account_of(site_file, file).objection(update_zcdp(policy.noise, len(costly))) if costly else None


def _private(answered: Any, file: SiteFile) -> tuple[str, ...]:
    """Fields that left with noise, as `Reply.field`."""
    if file.policy is None or not file.policy.noise > 0 or not isinstance(answered, ReplyEnvelope):
        return ()
    replies = () if answered.reply is None else held_in(answered.reply, Reply)
    return tuple(f"{type(reply).__name__}.{name}" for reply in replies for name in noised_fields(type(reply)))


def _way_out(asked: RequestEnvelope, site_file: Path) -> str:
    dashes = "-- " if asked.run.startswith("-") else ""  # or it would be read as an option
    words = f"fedsift flower allow --app APP {dashes}{argument(asked.run)} {argument(site_file)}"
    return f". To let it in, with APP for the folder of the app that you have read: {words}"


def _refusal(asked: Any, reason: str) -> ReplyEnvelope:
    if isinstance(asked, RequestEnvelope):
        return ReplyEnvelope(asked.run, asked.site, asked.moment.id, None, f"Refused: {reason}")
    return ReplyEnvelope("", "", "", None, f"Refused: {reason}")


def _leave(place: Path) -> None:
    """End this process at once, and remove what lies beside its socket."""
    shutil.rmtree(place.parent, ignore_errors=True)
    os._exit(0)


if __name__ == "__main__":
    make_files_private()
    begin_log()
    place = Path(sys.argv[2])
    when_parent_ends(lambda: _leave(place))
    try:
        serve(Path(sys.argv[1]), place)
    except FedsiftError as error:
        failure_file(place).write_text(str(error), "utf-8")
        sys.exit(error.exit_code)
