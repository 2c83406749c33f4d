"""Checks whether an audit folder belongs to this study and whether its run judged the present data."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsift.core import codec
from fedsift.core.errors import RunError
from fedsift.core.files import write_private
from fedsift.data.dataset import FederatedDataset
from fedsift.label_audit.ledger import ForgottenEntry, LabelLedger
from fedsift.label_audit.method import LabelAudit
from fedsift.label_audit.results import names_of, site_rows
from fedsift.label_audit.site_files import DATA, SiteFolder, data_of
from fedsift.protocol.messages import Request, RequestEnvelope, RequestMoment
from fedsift.runs.folder import RunFolder
from fedsift.study.running import open_in_process
from fedsift.study.study import Study

AUDITED = "audited.toml"
"""In an audit of a finished run, which lies elsewhere: the run's study."""
NAMED = 6
"""Sites that a line names; of the others it says how many there are."""


def refuse_another(out: Path, study: Study) -> None:
    """Raises RunError where `out` holds an audit of another study."""
    for file in (out / "run" / "study.toml", out / AUDITED):
        if file.is_file() and _asked(Study.from_file(file)) != _asked(study):
            raise RunError(f"{out} holds an audit of another study: give another --out")


def note_study(out: Path, study: Study, folder: RunFolder) -> None:
    """Say of which study the audit is, where its run is no part of it."""
    if folder.path.resolve() != (out / "run").resolve():
        write_private(out / AUDITED, study.to_toml())


def _asked(study: Study) -> dict[str, Any]:
    """The study as it was asked for, before it knew its sites."""
    method = study.method
    return (
        replace(study, method=replace(method, penalty_rounds=None)) if isinstance(method, LabelAudit) else study
    ).to_table()


def present(out: Path, federated: FederatedDataset) -> FederatedDataset:
    """The data without the samples that sites of the audit in `out` were asked to forget, if they are still there."""
    for site in federated.sites:
        gone = ForgottenEntry(LabelLedger(SiteFolder.of(out, site).ledger).entries())
        if len(gone):
            federated = _without(federated, site, gone)
    return federated


def _without(federated: FederatedDataset, site: str, gone: ForgottenEntry) -> FederatedDataset:
    n = len(federated.rows[site])
    keep = np.array([name not in gone for name in names_of(federated.dataset, site_rows(federated, site)[0])])

    def cut(parts: dict[str, Any], mask: NDArray[np.bool_]) -> dict[str, Any]:
        return {**parts, site: parts[site][mask]} if site in parts else parts

    truth = federated.truth
    return replace(
        federated,
        rows=cut(federated.rows, keep[:n]),
        given=cut(federated.given, keep[:n]),
        held_out=cut(federated.held_out, keep[n:]),
        held_out_given=cut(federated.held_out_given, keep[n:]),
        truth=None
        if truth is None
        else replace(
            truth,
            clean=cut(truth.clean, keep[:n]),
            clean_held_out=cut(truth.clean_held_out, keep[n:]),
        ),
    )


def changed_sites(study: Study, folder: RunFolder, federated: FederatedDataset) -> list[str]:
    """Sites whose data are not those that the run judges, or of which it does not say what it judges."""
    header = folder.checkpointed()
    if header is None or not isinstance(study.method, LabelAudit):
        return []  # without a finished round there is nothing to go on from; only the label audit notes its data
    here = open_in_process(replace(study, engine=replace(study.engine, workers=0)), federated, "")
    every = dict.fromkeys([*federated.sites, *header.notebooks])
    return [
        name
        for name in every
        if name not in federated.rows
        or name not in header.notebooks
        or _noted(folder.path / header.notebooks[name])
        != data_of(here.site(RequestEnvelope("", name, RequestMoment(study.seed, "", 0, 0), "", Request())))
    ]


def _noted(notebook: Path) -> Any:
    """What a site's notebook says of its data; None where it, or the notebook, is gone."""
    return codec.decoded(notebook.read_bytes(), notebook).get(DATA) if notebook.is_file() else None


def refuse_other_data(study: Study, folder: RunFolder, federated: FederatedDataset, way_out: str) -> None:
    """Raises RunError where the run of a label audit judged other data than those that are there."""
    if changed := changed_sites(study, folder, federated):
        raise RunError(f"{folder.path} did not judge the labels and samples that {few(changed)} now: {way_out}")


def few(sites: Sequence[str]) -> str:
    """`site 'A' has`, `sites 'A', 'B' have`, ... for a line."""
    words = ", ".join(f"'{name}'" for name in sites[:NAMED])
    more = f" and {len(sites) - NAMED} more" if len(sites) > NAMED else ""
    return f"site {words} has" if len(sites) == 1 else f"sites {words}{more} have"


def drop_run(folder: RunFolder) -> None:
    """Remove a run that judged other data; the sites' ledgers and review plans lie elsewhere and stay."""
    folder.lock()  # another process may be at it
    try:
        shutil.rmtree(folder.path)
    finally:
        folder.unlock()
