"""Judges samples that came after an audit with its models, without training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedsift.core.errors import DataError, RunError
from fedsift.data.dataset import Dataset, FederatedDataset, Rows
from fedsift.data.sources.base import Source
from fedsift.data.sources.table import TableSource
from fedsift.label_audit.at_site import (
    JUDGED,
    NATS,
    PROBABILITIES,
    JudgedLabels,
    JudgeGrid,
    answerable,
    given_answers,
    own_models,
)
from fedsift.label_audit.judge import judge_labels
from fedsift.label_audit.method import AuditState, LabelAudit
from fedsift.label_audit.results import judged_site
from fedsift.label_audit.running import audit_data, notebooks_of, state_of
from fedsift.label_audit.site_audit import MIN_COUNT, SampleEvidence, SiteAudit
from fedsift.label_audit.staleness import present, refuse_other_data
from fedsift.protocol.messages import RequestMoment, SiteFacts
from fedsift.protocol.site import Samples
from fedsift.runs.folder import RunFolder
from fedsift.study.study import Study
from fedsift.training.features import with_features
from fedsift.training.requests import LocalSite


def judge_later(out: Path, source: Source) -> tuple[dict[str, SiteAudit], Dataset, dict[str, Rows]]:
    """Every new sample under the site that its `site` column names, judged as the audit in `out` judged the others."""
    folder = RunFolder.open(out / "run")
    study = Study.from_file(folder.study_file)
    if not isinstance(study.method, LabelAudit) or not folder.finished:
        raise RunError(f"{out} holds no finished audit: run `fedsift audit` first")
    state = state_of(folder)
    federated = present(out, audit_data(study))
    refuse_other_data(study, folder, federated, "run `fedsift audit` without --new first")
    scale = federated.dataset.scale
    # new rows of a table are measured by the old ones, or the model would see other numbers
    raw = source.read_as(scale) if isinstance(source, TableSource) and scale is not None else source.load()
    _check(raw, federated)
    new = with_features(raw, study.model.name, device=study.engine.device)
    if new.shape != federated.dataset.shape:
        shapes = [" x ".join(map(str, data.shape)) for data in (new, federated.dataset)]
        raise DataError(f"the new samples are {shapes[0]}, those of the audit {shapes[1]}: they must be alike")
    notebooks, evidence = notebooks_of(folder, study)
    sites = np.asarray(raw.sites) if raw.sites is not None else np.full(len(raw.labels), federated.sites[0])
    every = np.union1d(raw.train, raw.test)
    found: dict[str, SiteAudit] = {}
    rows_of: dict[str, Rows] = {}
    for name in dict.fromkeys(sites[every].tolist()):
        if name not in notebooks:
            raise DataError(f"site '{name}' took no part in the audit of {out}: {', '.join(notebooks)} did")
        rows = every[sites[every] == name]
        rows_of[name] = rows
        found[name] = _judged(study, state, federated, new, str(name), rows, notebooks[name], evidence)
    return found, raw, rows_of


def _check(data: Dataset, federated: FederatedDataset) -> None:
    if data.classes != federated.dataset.classes:
        raise DataError(
            f"the new data have classes {', '.join(data.classes)}, the audit {', '.join(federated.dataset.classes)}: "
            "name the same ones in the same order (classes=...)"
        )
    if data.multilabel != federated.dataset.multilabel:
        kinds = ["several labels" if own.multilabel else "one class" for own in (data, federated.dataset)]
        raise DataError(f"the new data have {kinds[0]} a sample, the audit {kinds[1]}")
    if data.sites is None and len(federated.sites) > 1:
        raise DataError("the new data name no site: give a site column, or --new with data of one site")


def _judged(
    study: Study,
    state: AuditState,
    federated: FederatedDataset,
    new: Dataset,
    name: str,
    rows: Rows,
    pages: Any,
    evidence: SampleEvidence,
) -> SiteAudit:
    old = torch.from_numpy(federated.given[name])
    data = federated.dataset
    site = LocalSite(
        facts=SiteFacts(name, len(rows), model=study.model.name),
        samples=Samples(torch.from_numpy(np.asarray(new.images)), torch.from_numpy(rows), data.mean, data.std),
        given=torch.from_numpy(new.labels[rows]),
        classes=data.classes,
        moment=RequestMoment(study.seed, "later", 0, 0),
        multilabel=data.multilabel,
        notebook=pages,
    )
    assert isinstance(study.method, LabelAudit)
    grid: JudgeGrid = study.method.grid_of(state, len(data.classes), data.multilabel)
    p = grid.other_probabilities(site, site.samples)
    before, answers, later = (
        pages[PROBABILITIES].double().numpy(),
        given_answers(old),
        given_answers(site.given),
    )
    page: JudgedLabels = pages[JUDGED]
    nats = pages[NATS]
    annotated = ~page.wrong.isnan().all(0).numpy()
    judged = judge_labels(before, answers, annotated, own_models(state.shared, nats), nats[0, 0].numpy(), (p, later))
    new_ones = slice(len(answers), None)
    doubts = np.where(answerable(site), judged.wrong[new_ones], np.nan)
    own = replace(
        page,
        posterior=torch.from_numpy(judged.posterior[new_ones]).float(),
        wrong=torch.from_numpy(doubts).float(),
        predicted=torch.from_numpy(judged.predicted[new_ones]),
        flagged=torch.from_numpy(judged.flagged[new_ones]),
        disagrees=torch.zeros(len(rows), dtype=torch.bool),
        training=len(rows),
        rates=_shares(doubts, page),
    )
    parts = ("train",) * len(rows)
    return judged_site(
        new,
        name,
        rows,
        new.labels[rows],
        parts,
        {JUDGED: own},
        evidence=evidence,
        min_count=MIN_COUNT,
        seed=study.seed,
    )


def _shares(doubts: Any, page: JudgedLabels) -> tuple[tuple[int, int, int, bool], ...]:
    """How many of the new labels are probably wrong; an interval is not claimed for them."""
    return tuple((round(float(np.nansum(own))), 0, len(own), rate[3]) for own, rate in zip(doubts.T, page.rates))
