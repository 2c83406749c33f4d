"""Forgets a sample at a deployed site: in its notes of every run, in features made of it, in its own audit.

A notebook's pages have a value for every sample and models that learned from all of them, so no row can be cut out that
would leave the rest right: the notes of every run are removed as a whole, and the run is closed at this site. What
stays is a line that names no sample, by which the site knows it again while the data still hold it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsift.core.errors import ConfigError, DataError, RunError
from fedsift.core.files import private_folder
from fedsift.core.process import exclusive, shared
from fedsift.core.text import argument, short
from fedsift.deploy.site.embeddings import embeddings_of
from fedsift.deploy.site.site_file import SiteFile, egress_of, notebook_of, read_site_file
from fedsift.label_audit.corrections import forget_everywhere, kept_of
from fedsift.label_audit.ledger import ForgottenEntry, LabelLedger
from fedsift.label_audit.site_files import MODELS, SiteFolder
from fedsift.label_audit.writing import open_site as open_audit
from fedsift.transports.remote.notebooks import NotebookStore, run_folders

SERVING = ".serving"
"""Locked, by any number of processes, while they answer from the notebook."""
FORGOTTEN = "forgotten.jsonl"
REMAINS = (
    "the original data: never touched from here; remove the sample there",
    "the models of these runs: what they learned stays in them; the coordinator lists them with `fedsift flower "
    "took-part {site} RUNS`",
    "egress.jsonl and the privacy account: hashes, sizes and times of what left, no value of a sample",
    "what left the site, at the coordinator",
    "the site's log, where an error named the sample, and copies of the notebook that you made",
)


@dataclass(frozen=True)
class ForgottenAtSite:
    """What was removed for one sample, and what cannot be removed from here."""

    id: str
    runs: tuple[str, ...]
    """Runs that may have seen it: those that the site has notes of, or that anything left for."""
    models: tuple[str, ...]
    """Digests of models that judged it, where a run noted them."""
    files: tuple[str, ...]
    """Files that held anything of it and are gone, or do so no more."""
    remains: tuple[str, ...]
    notes: tuple[str, ...]
    """What follows from it, a line each."""


# Requests under way------------------------------------------------------------------------------------------------


def serving(notebook: Path) -> AbstractContextManager[None]:
    """While this process answers from a notebook; the lock goes with it, however it ends."""
    return shared(private_folder(notebook) / SERVING)


def _nobody_serving(site: str, notebook: Path) -> AbstractContextManager[None]:
    words = f"site '{site}' is running and holds its samples in memory: end it, forget, and start it again"
    return exclusive(private_folder(notebook) / SERVING, ConfigError(words))


# Forgetting --------------------------------------------------------------------------------------------------------


def forgotten_at(notebook: Path) -> ForgottenEntry:
    """Recognises samples that this site has forgotten."""
    return ForgottenEntry(LabelLedger(notebook / FORGOTTEN).entries())


def forget_at_site(
    site_file: Path, names: Sequence[str], *, who: str, gone: bool = False, audit: Path | None = None
) -> list[ForgottenAtSite]:
    """Remove samples from all that the site keeps. `gone`: they are in the data no more, so nothing can be looked up.

    Stopped on the way, the same command does the rest: the line that says it was done is written last.
    """
    path = Path(site_file).resolve()
    file = read_site_file(path)
    notebook = notebook_of(path, file)
    named = True if gone else _check_known(path, file, names)
    with _nobody_serving(file.name, notebook):
        egress = egress_of(path, file)
        runs = tuple(sorted({folder.name for folder in run_folders(notebook)} | _runs_that_left(egress)))
        models, files = _erase_runs(notebook, file.name)
        files += _erase_features(notebook)
        found = []
        for name in names:
            judged, changed = _from_audit(path, file, audit, name, who)
            seen = tuple(sorted({*models, *judged}))
            notes = [f"run {run} is closed here: start a new one" for run in runs]
            if not named:
                notes.append("the data name no samples: remove the row before the site starts, or it is used again")
            LabelLedger(notebook / FORGOTTEN).forget(name, who, {"runs": list(runs), "models": list(seen)})
            remains = tuple(line.format(site=argument(file.name)) for line in REMAINS)
            found.append(ForgottenAtSite(name, runs, seen, (*files, *changed), remains, tuple(notes)))
        return found


def _check_known(path: Path, file: SiteFile, names: Sequence[str]) -> bool:
    """Raises DataError for a name that no sample of the site's has; whether the data name their samples at all."""
    from fedsift.deploy.site.data import site_data  # which leaves out what this module knows to be forgotten

    _, dataset, train, held = site_data(path)
    known = {dataset.id_of(int(row)) for rows in (train, held) for row in rows}
    for name in names:
        if name in known:
            continue
        if name in forgotten_at(notebook_of(path, file)) and dataset.ids is not None:
            raise DataError(f"site '{file.name}' has forgotten '{short(name, 200)}' already")
        raise DataError(
            f"site '{file.name}' has no sample '{short(name, 200)}' in its data: check the name or, if you removed it "
            "there already, add --gone"
        )
    return dataset.ids is not None


def _erase_runs(notebook: Path, site: str) -> tuple[set[str], list[str]]:
    models: set[str] = set()
    files: list[str] = []
    for folder in run_folders(notebook):
        store = NotebookStore.in_folder(folder, site)
        with store.locked():
            models |= _models_in(store)
            files += map(str, store.erase())
    return models, files


def _models_in(store: NotebookStore) -> set[str]:
    found = set()
    for moment in store.versions():
        try:
            found.add(str(store.pages(moment).get(MODELS, "")))
        except RunError:  # pages of a plugin that this process does not know, or cut off: they go all the same
            continue
    return found - {""}


def _erase_features(notebook: Path) -> list[str]:
    """Files of features of the site's pictures; they are made again on demand, without the sample."""
    try:
        files = [Path(file) for kind in embeddings_of(notebook).values() for file in kind]
    except ValueError as error:
        raise ConfigError(f"{notebook}: the list of features cannot be read ({error}): mend it") from None
    there = [file for file in files if file.is_file()]
    for file in there:
        file.unlink()
    return list(map(str, there))


def _from_audit(
    path: Path, file: SiteFile, audit: Path | None, name: str, who: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The models and the files of the site's own audit, where it has one that knows the sample."""
    folder = SiteFolder.of(path.parent / "audit" if audit is None else audit, file.name)
    if not folder.findings.is_file() or not kept_of(folder, name):
        return (), ()
    place, own = open_audit(folder.path)
    removed, _ = forget_everywhere(place, own, name, who=who)
    return removed.models, removed.files


def _runs_that_left(egress: Path) -> set[str]:
    """Runs for which anything left, by the list of what did; a line that cannot be read names none."""
    found: set[str] = set()
    for line in egress.read_text("utf-8").splitlines() if egress.is_file() else ():
        try:
            row: Any = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and row.get("fields") and not row.get("refused"):
            found.add(str(row.get("run", "")))
    return found - {""}
