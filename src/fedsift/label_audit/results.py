"""Turns a finished audit run into each site's judged labels, as a `SiteAudit`.

In a simulation all sites' folders lie under `OUT/sites/`; a deployed site writes its own from its own notebook, by the
same function, and the coordinator has the consortium's page alone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsift.core.errors import RunError
from fedsift.data.dataset import Dataset, FederatedDataset, Labels, Rows
from fedsift.detection.label_rates import FALSE_ALARM
from fedsift.label_audit.at_site import JUDGED, JudgedLabels
from fedsift.label_audit.consortium import CensoredCounts, SiteRow
from fedsift.label_audit.judge import corrected
from fedsift.label_audit.site_audit import AuditFinding, LabelOrigin, SampleEvidence, SiteAudit, WrongShare
from fedsift.protocol.notebook import evidence_of

# Expected counts of given against probable labels, as a site's agreement table holds them
# ------------------------------------------------------------------------------


def agreement_of(given: NDArray[np.int64], probability: NDArray[np.float64], classes: int) -> NDArray[np.int64]:
    """Whole expected counts `[K, K]`, row: given, column: probably true."""
    table = np.zeros((classes, classes))
    np.add.at(table, given, probability)
    return np.asarray(np.rint(table), np.int64)


def entries_of(given: NDArray[np.int64], wrong: NDArray[np.float64]) -> NDArray[np.int64]:
    """Multi-label: right 0, wrong 0, wrong 1, right 1, expected counts `[K, 4]`."""
    zero = given == 0
    columns = [(1 - wrong) * zero, wrong * zero, wrong * ~zero, (1 - wrong) * ~zero]
    return np.asarray(np.rint(np.stack([column.sum(0) for column in columns], 1)), np.int64)


DISAGREES = "the model disagrees"
COPY = "an exact copy carries another label"
LATER = "the model disagrees (a sample for testing)"


def site_rows(federated: FederatedDataset, site: str) -> tuple[Rows, Labels, tuple[str, ...]]:
    """A site's rows, given labels and parts, what it holds out last."""
    held = federated.held_out.get(site, np.zeros(0, np.int64))
    given = federated.given[site]
    if len(held):
        given = np.concatenate([given, federated.held_out_given[site]])
    parts = ("train",) * len(federated.rows[site]) + ("test",) * len(held)
    return np.concatenate([federated.rows[site], held]), given, parts


def names_of(dataset: Dataset, rows: Rows) -> tuple[str, ...]:
    """A name of its own for each sample; one that stands twice is numbered."""
    names = [dataset.id_of(int(row)) for row in rows]
    seen: Counter[str] = Counter()
    result = []
    twice = {name for name, count in Counter(names).items() if count > 1}
    for name in names:
        seen[name] += 1
        result.append(f"{name} ({seen[name]})" if name in twice else name)
    return tuple(result)


def judged_site(
    dataset: Dataset,
    site: str,
    rows: Rows,
    given: Labels,
    parts: tuple[str, ...],
    pages: Mapping[str, Any],
    *,
    evidence: SampleEvidence,
    min_count: int,
    origin: LabelOrigin | None = None,
    seed: int = 0,
) -> SiteAudit:
    """One site's audit from its notebook: the page that the label audit left there, or any method's evidence."""
    page = pages.get(JUDGED)
    found = (
        _from_page(page, dataset, site, given)
        if isinstance(page, JudgedLabels)
        else _from_evidence(pages, dataset, site, given)
    )
    names = names_of(dataset, rows)
    paths = tuple(str(dataset.paths[row]) for row in rows) if dataset.paths is not None else ()
    return SiteAudit(
        site=site,
        classes=dataset.classes,
        multilabel=dataset.multilabel,
        ids=names,
        given=given,
        paths=paths,
        split=parts,
        evidence=evidence,
        min_count=min_count,
        origin=origin,
        seed=seed,
        **found,
    )


def _from_page(page: JudgedLabels, dataset: Dataset, site: str, given: Labels) -> dict[str, Any]:
    posterior = page.posterior.double().numpy()
    wrong = np.clip(page.wrong.double().numpy(), 0.0, 1.0)
    flagged = page.flagged.numpy()
    copies = page.disagrees.numpy()
    n = page.training
    if len(posterior) != len(given):
        raise RunError(f"site '{site}': its notebook judges {len(posterior)} labels, the data have {len(given)}")
    likely = posterior.argmax(2)
    if dataset.multilabel:
        probability = wrong
        anything = 1.0 - np.prod(1.0 - np.nan_to_num(wrong), axis=1)
        proposed = corrected(given, 1 - given, wrong)
        predicted, agreement = page.predicted.numpy(), entries_of(given[:n], np.nan_to_num(wrong[:n]))
    else:
        probability = posterior[:, 0]
        anything, predicted = wrong[:, 0], page.predicted.numpy()[:, 0]
        proposed = corrected(given, likely[:, 0], anything)
        agreement = agreement_of(given[:n], probability[:n], dataset.n_classes)
    known = [rate for rate, own in zip(page.rates, wrong.T) if not np.isnan(own).all()] or [(0, 0, 0, False)]
    labels = max(n * len(known), 1)
    total, low, high = (min(sum(rate[i] for rate in known) / labels, 1.0) for i in range(3))
    found = any(rate[3] for rate in known)
    notes = tuple(
        f"the codes of {'this site' if not dataset.multilabel else dataset.classes[q]} look swapped: most labels "
        "differ from what the pictures show, always in the same way"
        for q, swapped in enumerate(page.swapped)
        if swapped
    )
    return {
        "probability": probability,
        "probability_wrong": anything,
        "predicted": predicted,
        "proposed": proposed,
        "flagged": flagged,
        "reason": _reasons(flagged, copies, n),
        "rate": WrongShare(total, low, high).at_stated_rate(found, labels),
        "finding": AuditFinding(found, FALSE_ALARM),
        "agreement": agreement,
        "notes": notes,
    }


def _from_evidence(pages: Mapping[str, Any], dataset: Dataset, site: str, given: Labels) -> dict[str, Any]:
    """What a method said of its labels, scaled to 0..1 by rank where it is no probability."""
    found = evidence_of(pages)
    n = len(given) if found.suspicion is None else len(found.suspicion)
    if found.suspicion is None and found.flagged is None:
        raise RunError(f"site '{site}': its notebook holds no evidence about labels")
    blank = np.zeros(given.shape)
    suspicion = blank if found.suspicion is None else _filled(found.suspicion.double().numpy(), given)
    flagged = np.zeros(given.shape, np.bool_) if found.flagged is None else _filled(found.flagged.numpy(), given)
    proposed = given if found.proposed is None else _filled(found.proposed.numpy(), given, given)
    score = _ranked(np.nan_to_num(suspicion))
    marks: NDArray[np.bool_] = np.asarray(flagged.any(1) if flagged.ndim == 2 else flagged, np.bool_)
    changed = np.where(flagged, proposed, given)
    if dataset.multilabel:
        probability, anything = score, score.max(1)
        agreement = entries_of(given[:n], flagged[:n].astype(float))
    else:
        probability = np.zeros((len(given), dataset.n_classes))
        probability[np.arange(len(given)), changed] = 1.0
        anything, agreement = score, agreement_of(given[:n], probability[:n], dataset.n_classes)
    share = float(flagged[:n].mean()) if n else 0.0
    return {
        "probability": probability,
        "probability_wrong": anything,
        "predicted": proposed,
        "proposed": changed,
        "flagged": marks,
        "reason": tuple(f"flagged by {found.method}" if mark else "" for mark in marks),
        "rate": WrongShare(share, 0.0, 1.0),
        "finding": AuditFinding(bool(marks.any()), 1.0),
        "agreement": agreement,
        "notes": (
            f"from {found.method}'s own evidence (round {found.round}): the order means something, the numbers are "
            "ranks and no probabilities; `fedsift audit` on the study judges every label by a model that never saw it",
        ),
    }


def _filled(values: NDArray[Any], given: Labels, rest: NDArray[Any] | None = None) -> NDArray[Any]:
    """Values of the training samples with zeros (or `rest`) for held-out ones."""
    whole = np.zeros(given.shape, values.dtype) if rest is None else rest.astype(values.dtype).copy()
    whole[: len(values)] = values
    return whole


def _ranked(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks scaled to 0..1; equal values get equal ranks."""
    flat = values.ravel()
    _, place, counts = np.unique(flat, return_inverse=True, return_counts=True)
    below = np.concatenate([[0], np.cumsum(counts)[:-1]])
    return np.asarray((below[place] / max(len(flat) - 1, 1)).reshape(values.shape))


def _reasons(flagged: NDArray[np.bool_], copies: NDArray[np.bool_], training: int) -> tuple[str, ...]:
    words = []
    for k, (mark, copy) in enumerate(zip(flagged, copies)):
        words.append(COPY if copy else "" if not mark else DISAGREES if k < training else LATER)
    return tuple(words)


# What the consortium gets --------------------------------------------------------------------------------------------


def consortium_rows(
    audited: Mapping[str, Any], samples: Mapping[str, int], classes: tuple[str, ...], multilabel: bool, method: str,
    min_count: int,
) -> list[SiteRow]:  # fmt: skip
    """The sites' lines as they left them (`audited`: the record of the judging round)."""
    rows = []
    for site, line in audited.items():
        asked = [q for q in range(len(line["wrong"])) if _annotated(line, q)]
        evidence = bool(line["evidence"])
        rate = _released_rate([line["wrong"][q] for q in asked], samples[site], evidence)
        cells, remainders = line["cells"], line["remainders"]
        agreement = _two_by_two(cells) if multilabel else _withheld(cells[0], remainders[0], int(line["rest"][0]))
        rows.append(
            SiteRow(
                site=site,
                samples=None if rate is None else samples[site],
                flagged=int(line["flagged"]) or None,
                rate=rate,
                finding=None if rate is None else AuditFinding(evidence, FALSE_ALARM),
                classes=classes,
                agreement=agreement,
                min_count=min_count,
                method=method,
            )
        )
    return rows


def _annotated(line: Mapping[str, Any], question: int) -> bool:
    """A class that a site does not annotate has an empty table; of any other a number is sent or withheld."""
    return bool(np.any(line["cells"][question]) or np.any(line["remainders"][question]))


def _released_rate(wrong: list[list[int]], samples: int, evidence: bool) -> WrongShare | None:
    """The share from (wrong, low, high) of each question, -1 for withheld; None for a site below its minimum count."""
    if any(high < 0 for _, _, high in wrong):
        return None
    labels = max(samples * len(wrong), 1)
    low, high = (min(sum(own[i] for own in wrong) / labels, 1.0) for i in (1, 2))
    few = any(count < 0 for count, _, _ in wrong)
    share = math.nan if few else sum(own[0] for own in wrong) / labels
    return WrongShare(share, low, high).at_stated_rate(evidence, labels)


def _shown(count: int) -> int | None:
    return None if count < 0 else count


def _withheld(cells: list[list[int]], remainders: list[int], rest: int) -> CensoredCounts:
    """The reply's rows are probable classes, as its small cells were lumped; here rows are given classes."""
    return CensoredCounts(
        tuple(tuple(_shown(cell) for cell in column) for column in zip(*cells)),
        tuple(map(_shown, remainders)),
        rest,
        lumped_by="probable",
    )


def _two_by_two(tables: list[list[list[int]]]) -> CensoredCounts:
    """Of each class's table, probable by given: right 0, wrong 0 (missing), wrong 1 (too many), right 1."""
    rows = tuple((_shown(t[0][0]), _shown(t[1][0]), _shown(t[0][1]), _shown(t[1][1])) for t in tables)
    return CensoredCounts(rows, (None,) * len(rows), None)
