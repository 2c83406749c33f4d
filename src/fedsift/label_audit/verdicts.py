"""Readers' verdicts on labels: read from the page's file, a CSV or Label Studio, and combined.

A verdict is turned into class names at once, by the proposal that its reader saw, so that it stays true whatever
recalibration or a later audit proposes.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedsift.core.errors import DataError
from fedsift.core.text import uncell
from fedsift.label_audit.label_table import read_cells
from fedsift.label_audit.ledger import VERDICT, LedgerEntry, LedgerNote, effective
from fedsift.label_audit.site_audit import SiteAudit, joined

GIVEN, PROPOSAL, OTHER, BOTH, CANNOT_TELL = "given", "proposal", "other", "both", "cannot tell"
DECISIONS = (GIVEN, PROPOSAL, OTHER, BOTH, CANNOT_TELL)
PAGE_FORMAT = "fedsift-verdicts-1"
MODEL_VERSION = "fedsift"
"""How the version of a prediction of ours begins in the labelling tool."""
CHOICE_CANNOT_TELL, CHOICE_BOTH = "cannot tell", "both given and proposed"
"""Choices of the labelling tool that are no classes; a class of such a name gets the marked form instead."""


@dataclass(frozen=True)
class ReviewVerdict:
    """labels: the class names that are right; empty for "cannot tell" (and for a sample with no finding)."""

    id: str
    decision: str
    labels: tuple[str, ...]
    reader: str
    when: str = ""
    adjudicates: bool = False
    """Whether it settles what two readers left open."""
    proposed: tuple[str, ...] | None = field(default=None, compare=False)
    """What the reader was shown as the proposal; None where nobody knows."""

    @property
    def wrong(self) -> bool | None:
        """Whether the given label is wrong; None for "cannot tell". Either label being right is no error."""
        if self.decision == CANNOT_TELL:
            return None
        return self.decision in (PROPOSAL, OTHER)

    @property
    def answer(self) -> tuple[bool | None, tuple[str, ...]]:
        """What was said, whether or not a proposal was shown that says the same."""
        return self.wrong, self.labels

    @property
    def spoken_at(self) -> datetime | None:
        """When it was said; None where the file does not say so in a form that can be compared."""
        try:
            when = datetime.fromisoformat(self.when.strip())
        except ValueError:
            return None
        return when.replace(tzinfo=UTC) if when.tzinfo is None else when


def special_choice(text: str, classes: Sequence[str]) -> str:
    """A choice that is no class: marked with dots until no class is called that."""
    while text in classes:
        text = f"· {text} ·"
    return text


def read_verdicts(path: Path, audit: SiteAudit, reader: str = "", adjudicates: bool = False) -> list[ReviewVerdict]:
    """Verdicts of one file, in any of the three formats; every line is checked before any is used."""
    try:
        if path.suffix.lower() == ".csv":
            raw = list(_from_csv(path, audit))
        else:
            raw = list(_from_json(json.loads(path.read_text("utf-8-sig")), audit, path))
    except FileNotFoundError:
        raise DataError(f"there is no file {path}") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DataError(f"{path} is neither JSON nor CSV in UTF-8: {error}") from error
    rows = audit.row_of
    return [_checked(entry, audit, rows, path, reader, adjudicates) for entry in raw]


def _from_csv(path: Path, audit: SiteAudit) -> Iterable[dict[str, Any]]:
    """The queue with its columns `verdict` and `other_label` filled in; rows without a verdict are still to do."""
    for row in read_cells(path):
        for name in ("id", "verdict"):
            if name not in row:
                raise DataError(f"{path} has no column '{name}': it has {', '.join(row)}")
        if row["verdict"].strip():
            yield {
                "id": row["id"],
                "decision": row["verdict"].strip().lower(),
                "labels": _names(row.get("other_label", "").strip(), audit),
                "reader": row.get("reader", ""),
                "when": row.get("when", ""),
                "given": row.get("given_label"),
                **_shown_in_row(row, audit),
            }


def _shown_in_row(row: Mapping[str, str], audit: SiteAudit) -> dict[str, Any]:
    """The proposal that the queue showed; of several labels it may be that none is right, beside its probability."""
    if "proposed_label" not in row:
        return {}
    cell = row["proposed_label"].strip()
    own = audit.names(audit.as_made.proposed, audit.row_of[row["id"]]) if row["id"] in audit.row_of else ()
    if cell and cell == joined(own):  # also where the classes' own names hold the separator
        return {"proposed": list(own)}
    return {"proposed": _names(cell, audit) if cell or row.get("probability_wrong", "").strip() else None}


def _names(cell: str, audit: SiteAudit) -> list[str]:
    """The classes that a cell names; a class may have the separator in its own name."""
    if not audit.multilabel or cell in audit.classes:
        return [cell] if cell else []
    return [name.strip() for name in cell.split("|") if name.strip()]


def _from_json(value: Any, audit: SiteAudit, path: Path) -> Iterable[dict[str, Any]]:
    if isinstance(value, dict) and value.get("format") == PAGE_FORMAT:
        if value.get("site") != audit.site:
            raise DataError(f"{path} holds verdicts on site '{value.get('site')}', this is '{audit.site}'")
        for one in value.get("verdicts", ()):
            yield {"reader": value.get("reader", ""), **one}
    elif isinstance(value, list):
        yield from _from_label_studio(value, audit, path)
    else:
        raise DataError(f"{path} is neither a verdicts file of a report nor an export of Label Studio")


def _from_label_studio(tasks: Sequence[Any], audit: SiteAudit, path: Path) -> Iterable[dict[str, Any]]:
    """Finished annotations of exported tasks; cancelled ones and tasks without any are still to do."""
    for number, task in enumerate(tasks, start=1):
        try:
            name = str(task["data"]["sample_id"])
            for annotation in task.get("annotations", ()):
                if annotation.get("was_cancelled"):
                    continue
                yield {
                    "id": name,
                    **_of_choices(_chosen(annotation), audit),
                    "reader": _reader_of(annotation.get("completed_by")),
                    "when": annotation.get("updated_at") or annotation.get("created_at") or "",
                    "given": task["data"].get("given_label"),
                    **_shown_in_task(task, annotation),
                }
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{path}: task {number} is not as Label Studio exports it ({error!r})") from error


def _shown_in_task(task: Mapping[str, Any], annotation: Mapping[str, Any]) -> dict[str, Any]:
    """The prediction that the task was imported with, rather than one that another model made there; nothing where the
    export leaves predictions out."""
    every = [*(task.get("predictions") or ()), annotation.get("prediction")]
    made = [one for one in every if isinstance(one, dict) and one.get("result")]
    made.sort(key=lambda one: not str(one.get("model_version", "")).startswith(MODEL_VERSION))
    return {"proposed": [uncell(choice) for choice in _chosen(made[0])]} if made else {}


def _chosen(annotation: Mapping[str, Any]) -> list[str]:
    return [
        choice
        for result in annotation["result"]
        if result.get("from_name") == "label" and result.get("type") == "choices"
        for choice in result["value"]["choices"]
    ]


def _of_choices(choices: Sequence[str], audit: SiteAudit) -> dict[str, Any]:
    chosen = [uncell(choice) for choice in choices]  # as `formats` wrote the classes' names
    if special_choice(CHOICE_CANNOT_TELL, audit.classes) in chosen:
        return {"decision": CANNOT_TELL, "labels": []}
    if special_choice(CHOICE_BOTH, audit.classes) in chosen:
        return {"decision": BOTH, "labels": []}
    if not chosen and not audit.multilabel:
        return {"decision": CANNOT_TELL, "labels": []}
    return {"decision": OTHER, "labels": list(chosen)}


def _reader_of(completed_by: Any) -> str:
    if isinstance(completed_by, dict):
        return str(completed_by.get("email") or completed_by.get("id") or "")
    return "" if completed_by is None else f"reader {completed_by}"


def _checked(
    raw: Mapping[str, Any],
    audit: SiteAudit,
    rows: Mapping[str, int],
    path: Path,
    reader: str,
    adjudicates: bool,
) -> ReviewVerdict:
    name, decision = str(raw.get("id", "")), str(raw.get("decision", ""))
    if name not in rows:
        raise DataError(f"{path}: sample '{name}' is not in the audit of site '{audit.site}'")
    if decision not in DECISIONS:
        raise DataError(f"{path}, sample '{name}': '{decision}' is not one of: {', '.join(DECISIONS)}")
    row = rows[name]
    given = audit.names(audit.given, row)
    before = raw.get("given")
    if before is not None and before != "|".join(given):
        raise DataError(
            f"{path}, sample '{name}': the verdict was on the label '{before}', now it is '{'|'.join(given)}'"
        )
    said = _known(raw.get("labels"), audit, f"{path}, sample '{name}'")
    # What the file showed counts: recalibration may propose something else by now. Where it does not say, or the sample
    # was blind, it is what the audit itself proposed.
    proposed, hidden = audit.names(audit.as_made.proposed, row), "proposed" in raw and raw["proposed"] is None
    if raw.get("proposed") is not None:
        shown = _known(raw["proposed"], audit, f"{path}, sample '{name}'")
        proposed = tuple(label for label in audit.classes if label in shown)
    if decision == PROPOSAL and not said and (hidden or proposed == given):
        raise DataError(f"{path}, sample '{name}': nothing was proposed for it, so the proposal cannot be right")
    if decision == OTHER and not said and not audit.multilabel:
        raise DataError(f"{path}, sample '{name}': 'other' needs the class that is right (column other_label)")
    decision, labels = _resolved(decision, said, given, proposed, audit)
    who = str(raw.get("reader") or "").strip() or reader
    if not who:  # two readers without a name would count as one who changed his mind
        raise DataError(f"{path} does not say who read sample '{name}': name the reader with --reader")
    return ReviewVerdict(name, decision, labels, who, str(raw.get("when") or ""), adjudicates, proposed)


def _known(labels: Any, audit: SiteAudit, where: str) -> tuple[str, ...]:
    """Class names, each once, which must be the audit's."""
    names = tuple(dict.fromkeys(str(label) for label in labels or ()))
    for label in names:
        if label not in audit.classes:
            close = difflib.get_close_matches(label, audit.classes, n=1)
            hint = f"did you mean '{close[0]}'?" if close else f"classes are {', '.join(audit.classes[:12])}"
            raise DataError(f"{where}: there is no class '{label}': {hint}")
    return names


def _resolved(
    decision: str, said: tuple[str, ...], given: tuple[str, ...], proposed: tuple[str, ...], audit: SiteAudit
) -> tuple[str, tuple[str, ...]]:
    """The decision that the labels amount to: a blind reader who names the proposed class confirms the proposal."""
    if decision == CANNOT_TELL:
        return CANNOT_TELL, ()
    if decision == BOTH:
        return BOTH, tuple(dict.fromkeys((*given, *proposed)))
    labels = {GIVEN: given, PROPOSAL: said or proposed, OTHER: said}[decision]
    if not audit.multilabel and len(labels) > 1:
        # two classes in one-class data: the given one among them means that it is acceptable
        return (BOTH, labels) if given[0] in labels else (OTHER, labels[:1])
    ordered = tuple(name for name in audit.classes if name in labels)
    if ordered == given:
        return GIVEN, given
    return (PROPOSAL, proposed) if ordered == proposed else (OTHER, ordered)


def in_order(verdicts: Iterable[ReviewVerdict]) -> list[ReviewVerdict]:
    """The verdicts, those of one reader on one sample in the order in which they were said: the last of them counts.

    That is by `when` where files say so; one that does not comes after all that were imported before it.
    """
    result = list(verdicts)
    places: dict[tuple[str, str, bool], list[int]] = {}
    for k, one in enumerate(result):
        # an adjudication replaces every other verdict on the sample
        places.setdefault((one.id, "" if one.adjudicates else one.reader, one.adjudicates), []).append(k)
    for own in places.values():
        times, latest = [], datetime.min.replace(tzinfo=UTC)
        for k in own:
            times.append(result[k].spoken_at or latest)
            latest = max(latest, times[-1])
        moved = [result[own[k]] for k in sorted(range(len(own)), key=times.__getitem__)]
        for k, one in zip(own, moved):
            result[k] = one
    return result


def fresh(verdicts: Iterable[ReviewVerdict], known: Iterable[ReviewVerdict]) -> list[ReviewVerdict]:
    """Each reader's last word on each sample, where the same answer of the same time is not known already."""
    heard = {_as_said(one) for one in known}
    last = {(one.id, one.reader, one.adjudicates): one for one in in_order(verdicts)}
    return [one for one in last.values() if _as_said(one) not in heard]


def _as_said(one: ReviewVerdict) -> tuple[Any, ...]:
    return one.id, one.reader, one.adjudicates, *one.answer, one.when


def superseded(verdicts: Sequence[ReviewVerdict], known: Sequence[ReviewVerdict]) -> int:
    """How many of these do not count when they are imported, since the same reader said something else later."""
    every = in_order([*known, *fresh(verdicts, known)])
    counts = {(one.id, one.reader, one.adjudicates): one for one in every}
    last = {(one.id, one.reader, one.adjudicates): one for one in in_order(verdicts)}
    return sum(counts[key].answer != one.answer for key, one in last.items())


def notes(verdicts: Iterable[ReviewVerdict], audit: SiteAudit, known: Iterable[ReviewVerdict]) -> list[LedgerNote]:
    """Ledger notes for verdicts that are new; one that was imported before is not."""
    rows = audit.row_of
    return [_note(one, audit, rows[one.id]) for one in fresh(verdicts, known)]


def _note(one: ReviewVerdict, audit: SiteAudit, k: int) -> LedgerNote:
    return LedgerNote(
        VERDICT,
        {
            "id": one.id,
            "given": list(audit.names(audit.given, k)),
            "proposed": list(audit.names(audit.as_made.proposed, k) if one.proposed is None else one.proposed),
            "probability": round(float(audit.probability_wrong[k]), 6),
            "evidence": asdict(audit.evidence),
            "model": audit.evidence.model,
            "decision": one.decision,
            "labels": list(one.labels),
            "reader": one.reader,
            "said": one.when,
            "adjudicates": one.adjudicates,
        },
    )


def from_entries(entries: Iterable[LedgerEntry]) -> list[ReviewVerdict]:
    """The verdicts among ledger entries; of one reader's on one sample, the last counts."""
    return in_order(
        ReviewVerdict(
            id=entry.id,
            decision=str(entry.body["decision"]),
            labels=tuple(entry.body["labels"]),
            reader=str(entry.body["reader"]),
            when=str(entry.body["said"]),
            adjudicates=bool(entry.body["adjudicates"]),
            proposed=tuple(entry.body["proposed"]),
        )
        for entry in entries
        if entry.kind == VERDICT and entry.body is not None
    )


def verdicts_on(audit: SiteAudit, entries: Sequence[LedgerEntry]) -> list[ReviewVerdict]:
    """The verdicts that hold, read against the labels as they are now.

    A label that was corrected since to what a reader named is no longer wrong; one that he confirmed and that was
    changed since is. Verdicts that name a class which the data no longer have say nothing.
    """
    held = from_entries(effective(entries))
    return [_read_again(one, audit) for one in held if set(one.labels) <= set(audit.classes)]


def _read_again(one: ReviewVerdict, audit: SiteAudit) -> ReviewVerdict:
    row = audit.row_of.get(one.id)
    if row is None or one.decision not in (GIVEN, PROPOSAL, OTHER):
        return one
    right = one.labels == audit.names(audit.given, row)
    if right == (one.decision == GIVEN):
        return one
    return replace(one, decision=GIVEN if right else OTHER)
