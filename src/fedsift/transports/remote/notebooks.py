"""A site's notebook on its own disk, with a version for each request that it answered.

The coordinator names the version to continue from. It checkpoints after every round, so it goes back to the start of
the round it is in; and to that of an older one, when its run folder is restored from a copy. Of older rounds the last
version is kept, for as many rounds as the site keeps (`history`), and the others are dropped when a newer round asks.

    runs/<run>/<round>.<ask>.answer     what was answered, and which pages belong to it: written last, the commit point
    runs/<run>/<round>.<ask>.pages      the notebook's pages, when the request changed them

The coordinator names the run, the site's own files lie beside `runs`: no name of a run can be one of theirs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedsift.core import codec
from fedsift.core.codec import WireFormat
from fedsift.core.errors import NotebookGone, RunError
from fedsift.core.files import safe_name, write_private
from fedsift.core.process import file_lock
from fedsift.core.type_checks import shown
from fedsift.protocol.messages import ReplyEnvelope, RequestEnvelope, moment_words
from fedsift.protocol.notebook import Notebook

ANSWER = ".answer"
PAGES = ".pages"
LOCK = ".lock"
ERASED = "erased"
"""In a run's folder: that its notes were removed for good, and when."""
RUNS = "runs"
"""In a notebook's folder: the notes of all runs."""
RUN_ID = re.compile(r"[A-Za-z0-9._-]{1,100}")
"""What a run may be called in a message to a real site: it becomes a folder, a line of a log and an argument."""


def unfit_run(run: str) -> str | None:
    """Why a site keeps no notes under such a name, or None."""
    if RUN_ID.fullmatch(run) and run not in (".", ".."):
        return None
    return (
        f"'{shown(run)}' is no name of a run: 1 to 100 letters, digits, dots, hyphens and underscores make one; start "
        "it with `fedsift flower start`"
    )


def run_folders(root: Path) -> list[Path]:
    """The notes of every run; those that an older version kept beside the site's own files are moved to the others."""
    for item in root.iterdir() if root.is_dir() else ():
        if item.name != RUNS and item.is_dir() and (item / LOCK).is_file():
            (root / RUNS).mkdir(exist_ok=True)
            if not (root / RUNS / item.name).exists():
                with suppress(FileNotFoundError):  # another process was first
                    item.rename(root / RUNS / item.name)
    return sorted(item for item in (root / RUNS).iterdir() if item.is_dir()) if (root / RUNS).is_dir() else []


class UnknownPages(Exception):
    """The notebook holds a class that this process has not loaded; another process may know it."""


@dataclass(frozen=True)
class Version(WireFormat):
    """What a site keeps of one answered request."""

    id: str
    digest: str
    """Of the whole envelope: a repeated request is the same request only if all of it is the same."""
    pages: str
    """The file with the pages of this moment; "" while nothing was ever written."""
    session: str
    """The start of the coordinator that asked."""
    answer: Tensor
    """The answer's bytes, uint8: who only needs the pages need not know its class. Empty once its round is over."""


class NotebookStore:
    """The versions of one site for one run."""

    def __init__(self, root: Path, run: str, site: str, session: str = "", history: int = 0) -> None:
        """`session`: one start of the coordinator; within it, requests only ever move forward. `history`: rounds by
        which a coordinator may be restored older than it was."""
        self.folder = Path(root) / RUNS / safe_name(run)
        if not self.folder.is_dir():
            run_folders(Path(root))
        self.run, self.site, self.session, self.history = run, site, session, history

    @classmethod
    def in_folder(cls, folder: Path, site: str) -> NotebookStore:
        """The store of one of `run_folders`, whose name is not always that of its run: long ones are cut."""
        store = cls(folder.parent.parent, folder.name, site)
        store.folder = folder
        return store

    def locked(self) -> AbstractContextManager[Any]:
        """One request at a time: a repeated one waits for the first and then finds its answer."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return file_lock(self.folder / LOCK)

    def repeated(self, envelope: RequestEnvelope, digest: str) -> ReplyEnvelope | None:
        """The stored answer, if this very request was answered before."""
        version = self._version(envelope.moment.id)
        if version is None or version.digest != digest or not self._has_pages(version):
            return None
        if version.answer.numel() == 0:
            return None
        answer: ReplyEnvelope = codec.from_bytes(version.answer.numpy().tobytes())
        return answer

    def open(self, envelope: RequestEnvelope) -> tuple[Notebook, str]:
        """The notebook to continue from, and the file that holds its pages; raises `NotebookGone`."""
        if (self.folder / ERASED).exists():
            raise NotebookGone(
                f"site '{self.site}' has removed its notes of run '{self.run}' and takes no further part in it: "
                "start a new run"
            )
        self._refuse_straggler(envelope)
        if not envelope.expects:
            return Notebook(), ""
        try:
            version = self._version(envelope.expects)
            if version is not None:
                return Notebook(codec.load(self.folder / version.pages) if version.pages else None), version.pages
        except RunError as error:  # pages that cannot be read are gone all the same
            if "unknown class" in str(error):
                raise UnknownPages(str(error)) from error
        raise NotebookGone(
            f"site '{self.site}' no longer has its notebook of {moment_words(envelope.expects)} in run '{self.run}' "
            f"(it keeps {self.history} older rounds): restore the site's notebook folder from a copy, or a newer copy "
            "of the coordinator's run folder, or start a new run"
        )

    def _refuse_straggler(self, envelope: RequestEnvelope) -> None:
        """A copy of an old request that Flower delivers late must not undo what came after it.

        A coordinator that was started again may well go back, to its last checkpoint; that is another session.
        """
        newest = max((_moment(file.name) for file in self._files() if file.suffix == ANSWER), default=None)
        if newest is None or newest <= _moment(envelope.moment.id):
            return
        latest = self._read(self.folder / _file(f"{newest[0]}.{newest[1]}", ANSWER))
        if latest is not None and latest.session == self.session:
            raise RunError(
                f"{moment_words(envelope.moment.id)} came late: {moment_words(latest.id)} is answered already"
            )

    def keep(
        self, envelope: RequestEnvelope, digest: str, notebook: Notebook, base: str, answer: ReplyEnvelope
    ) -> None:
        """Store the answer and the notebook of its moment; after this it may be sent."""
        self._forget(lambda moment: moment >= _moment(envelope.moment.id))
        pages = base
        if notebook.written:
            pages = _file(envelope.moment.id, PAGES)
            codec.save(self.folder / pages, notebook.pages())
        content = torch.frombuffer(bytearray(codec.to_bytes(answer)), dtype=torch.uint8)
        version = Version(envelope.moment.id, digest, pages, self.session, content)
        codec.save(self.folder / _file(envelope.moment.id, ANSWER), version)

    def prune(self, envelope: RequestEnvelope) -> None:
        """Drop what no request can ask for any more, when this is the first request of a newer round."""
        kept = [_moment(file.name) for file in self._files()]
        if not kept or envelope.moment.round <= max(kept)[0]:
            return
        base = self._version(envelope.expects) if envelope.expects else None
        past = [] if base is None else [*self._past(envelope), base]
        needed = {_moment(name) for version in past for name in (version.id, version.pages or version.id)}
        self._forget(lambda moment: moment not in needed)
        if base is not None:  # its pages may be asked for again, its answer (a whole model, perhaps) never
            codec.save(self.folder / _file(base.id, ANSWER), replace(base, answer=torch.empty(0, dtype=torch.uint8)))
        for leftover in self.folder.glob("*.tmp"):
            leftover.unlink(missing_ok=True)

    def _past(self, envelope: RequestEnvelope) -> list[Version]:
        """The versions with which older rounds ended, as far as a coordinator's copy may go back.

        They are those whose answer was dropped: each was what a newer round continued from.
        """
        found = [version for name in self.versions() if (version := self._version(name)) is not None]
        ended = [version for version in found if version.answer.numel() == 0]
        oldest = envelope.moment.round - self.history
        # a coordinator that is at the start of the oldest round continues from what came before it
        before = [version for version in ended if _moment(version.id)[0] < oldest][-1:] if self.history else []
        return before + [version for version in ended if self.history and _moment(version.id)[0] >= oldest]

    def erase(self) -> list[Path]:
        """Close the run here and remove all that was noted in it; the files that are gone."""
        write_private(self.folder / ERASED, datetime.now(UTC).isoformat(timespec="seconds"))
        gone = [*self._files(), *self.folder.glob("*.tmp")]
        for file in gone:
            file.unlink(missing_ok=True)
        return gone

    def pages(self, request_id: str) -> dict[str, Any]:
        """The pages as they were after that request; empty if it never wrote any."""
        version = self._version(request_id)
        if version is None or not version.pages:
            return {}
        pages: dict[str, Any] = codec.load(self.folder / version.pages)
        return pages

    def versions(self) -> list[str]:
        """Ids of the requests whose answers are kept, in the order in which they were asked."""
        files = sorted((file for file in self._files() if file.suffix == ANSWER), key=lambda file: _moment(file.name))
        return [version.id for file in files if (version := self._read(file)) is not None]

    def _forget(self, unwanted: Callable[[tuple[int, int]], bool]) -> None:
        for file in self._files():
            if unwanted(_moment(file.name)):
                file.unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        return [*self.folder.glob(f"*{ANSWER}"), *self.folder.glob(f"*{PAGES}")]

    def _version(self, request_id: str) -> Version | None:
        version = self._read(self.folder / _file(request_id, ANSWER))
        return version if version is not None and version.id == request_id else None

    def _read(self, file: Path) -> Version | None:
        """A file that cannot be read is as good as none: what needs it will say that it is gone."""
        try:
            version = codec.load(file)
        except RunError:
            return None
        return version if isinstance(version, Version) else None

    def _has_pages(self, version: Version) -> bool:
        return not version.pages or (self.folder / version.pages).is_file()


def _moment(name: str) -> tuple[int, int]:
    """Round and ask, from a request's id `round.ask:stage` or the name of a file made from it."""
    found = re.match(r"(-?\d+)\.(\d+)", name)
    if found is None:
        raise RunError(f"'{name}' is not a request's id")
    return int(found[1]), int(found[2])


def _file(request_id: str, kind: str) -> str:
    round_number, ask = _moment(request_id)
    return f"{round_number}.{ask}{kind}"
