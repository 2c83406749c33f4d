"""A deployed site's own label audit, written from its own notebook to its own disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedsift.core.errors import RunError
from fedsift.deploy.site.data import open_site, site_data, source_of
from fedsift.deploy.site.site_file import SiteFile, notebook_of
from fedsift.label_audit.at_site import JUDGED
from fedsift.label_audit.original_table import origin_of
from fedsift.label_audit.page import row_cards
from fedsift.label_audit.results import judged_site
from fedsift.label_audit.site_audit import SampleEvidence, SiteAudit
from fedsift.label_audit.site_files import DATA, MODELS, SiteFolder, data_of
from fedsift.label_audit.writing import array_thumbnails, write_again
from fedsift.protocol.messages import RequestMoment
from fedsift.protocol.notebook import Notebook, evidence_of
from fedsift.transports.remote.notebooks import ANSWER, NotebookStore, run_folders


def last_pages(file: SiteFile, path: Path) -> tuple[str, dict[str, Any]]:
    """The run that wrote evidence about labels last, and the pages of its last answer."""
    root = notebook_of(path, file)
    found = [
        (newest.stat().st_mtime_ns, folder)
        for folder in run_folders(root)
        if (newest := max(folder.glob(f"*{ANSWER}"), key=lambda f: f.stat().st_mtime_ns, default=None))
    ]
    for _, folder in sorted(found, reverse=True):
        store = NotebookStore.in_folder(folder, file.name)
        for moment in reversed(store.versions()):
            pages = store.pages(moment)
            if JUDGED in pages or not evidence_of(pages).empty:
                return folder.name, pages
    raise RunError(
        f"site '{file.name}': no run has said anything about its labels yet ({root}); take part in a study whose "
        "method judges labels, e.g. label-audit"
    )


def _refuse_other_data(path: Path, file: SiteFile, run: str, pages: Mapping[str, Any]) -> None:
    """Raises RunError where the site's data are not those that the run was shown; other methods note none."""
    shown = pages.get(DATA)
    if shown is None:
        return
    network, _ = shown
    here = open_site(path, network).site(RequestMoment(0, "", 0, 0), Notebook(), network)
    if data_of(here) != shown:
        raise RunError(
            f"site '{file.name}': its labels or samples are not those that run '{run}' judged: take part in another "
            "audit, or put them back"
        )


def write_own_audit(
    site_file: Path, out: Path, *, report: Callable[[str], None] = lambda line: None
) -> tuple[SiteFolder, SiteAudit]:
    """The list, the page and the review queue of this site, from its own notebook; nothing of it leaves.

    Returns the folder and the audit in it; `report` is called with a line about corrections and verdicts that were
    kept.
    """
    path = Path(site_file).resolve()
    file, dataset, train, held = site_data(path)
    run, pages = last_pages(file, path)
    _refuse_other_data(path, file, run, pages)
    source = source_of(file.data, path, file.classes)
    rows = np.concatenate([train, held])
    parts = ("train",) * len(train) + ("test",) * len(held)
    judged = judged_site(
        dataset,
        file.name,
        rows,
        dataset.labels[rows],
        parts,
        pages,
        evidence=SampleEvidence(f"run {run}", evidence_of(pages).round or None, pages.get(MODELS, "")),
        min_count=file.audit_min_count,
        origin=origin_of(source, file.name),
    )
    shown = array_thumbnails(dataset.images[rows]) or row_cards(source, rows)
    return write_again(out, judged, shown, report)
