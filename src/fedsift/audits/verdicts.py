"""What people said about labels: one reader's verdict a sample, read from the page's file, a CSV or Label Studio.

A verdict is turned into class names at once, so that it stays true whatever a later audit proposes.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedsift.audits.findings import SiteAudit
from fedsift.audits.ledger import VERDICT, Entry, Note, effective
from fedsift.audits.table import original, read_cells
from fedsift.contract.errors import DataError

GIVEN, PROPOSAL, OTHER, BOTH, CANNOT_TELL = "given", "proposal", "other", "both", "cannot tell"
DECISIONS = (GIVEN, PROPOSAL, OTHER, BOTH, CANNOT_TELL)
PAGE_FORMAT = "fedsift-verdicts-1"
CHOICE_CANNOT_TELL, CHOICE_BOTH = "cannot tell", "both given and proposed"
"""Choices of the labelling tool that are no classes; a class of such a name gets the marked form instead."""


@dataclass(frozen=True)
class Verdict:
    """labels: the class names that are right; empty for "cannot tell" (and for a sample with no finding)."""

    id: str
    decision: str
    labels: tuple[str, ...]
    reader: str
    when: str = ""
    adjudicates: bool = False
    """Whether it settles what two readers left open."""

    @property
    def wrong(self) -> bool | None:
        """Whether the given label is wrong; None for "cannot tell". Either label being right is no error."""
        if self.decision == CANNOT_TELL:
            return None
        return self.decision in (PROPOSAL, OTHER)


def special_choice(text: str, classes: Sequence[str]) -> str:
    """A choice that is no class: marked with dots until no class is called that."""
    while text in classes:
        text = f"· {text} ·"
    return text


def read_verdicts(path: Path, audit: SiteAudit, reader: str = "", adjudicates: bool = False) -> list[Verdict]:
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
            }


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
                chosen = [
                    choice
                    for result in annotation["result"]
                    if result.get("from_name") == "label" and result.get("type") == "choices"
                    for choice in result["value"]["choices"]
                ]
                yield {
                    "id": name,
                    **_of_choices(chosen, audit),
                    "reader": _reader_of(annotation.get("completed_by")),
                    "when": annotation.get("updated_at") or annotation.get("created_at") or "",
                    "given": task["data"].get("given_label"),
                }
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{path}: task {number} is not as Label Studio exports it ({error!r})") from error


def _of_choices(choices: Sequence[str], audit: SiteAudit) -> dict[str, Any]:
    chosen = [original(choice) for choice in choices]  # as `formats` wrote the classes' names
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
) -> Verdict:
    name, decision = str(raw.get("id", "")), str(raw.get("decision", ""))
    if name not in rows:
        raise DataError(f"{path}: sample '{name}' is not in the audit of site '{audit.site}'")
    if decision not in DECISIONS:
        raise DataError(f"{path}, sample '{name}': '{decision}' is not one of: {', '.join(DECISIONS)}")
    row = rows[name]
    given, proposed = audit.names(audit.given, row), audit.names(audit.proposed, row)
    before = raw.get("given")
    if before is not None and before != "|".join(given):
        raise DataError(
            f"{path}, sample '{name}': the verdict was on the label '{before}', now it is '{'|'.join(given)}'"
        )
    said = tuple(dict.fromkeys(str(label) for label in raw.get("labels") or ()))
    for label in said:
        if label not in audit.classes:
            close = difflib.get_close_matches(label, audit.classes, n=1)
            hint = f"did you mean '{close[0]}'?" if close else f"classes are {', '.join(audit.classes[:12])}"
            raise DataError(f"{path}, sample '{name}': there is no class '{label}': {hint}")
    if decision == PROPOSAL and not said and proposed == given:
        raise DataError(
            f"{path}, sample '{name}': nothing was proposed for it, so the proposal cannot be right"
        )
    if decision == OTHER and not said and not audit.multilabel:
        raise DataError(
            f"{path}, sample '{name}': 'other' needs the class that is right (column other_label)"
        )
    decision, labels = _resolved(decision, said, given, proposed, audit)
    who = reader or str(raw.get("reader") or "").strip()
    if not who:  # two readers without a name would count as one who changed his mind
        raise DataError(f"{path} does not say who read sample '{name}': name the reader with --reader")
    return Verdict(name, decision, labels, who, str(raw.get("when") or ""), adjudicates)


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


def notes(verdicts: Iterable[Verdict], audit: SiteAudit, known: Iterable[Verdict]) -> list[Note]:
    """Ledger notes for verdicts that are new; one that the same reader gave before in the same words is not."""
    latest = {(one.id, one.reader, one.adjudicates): one for one in known}
    rows = audit.row_of
    fresh: dict[tuple[str, str, bool], Note] = {}
    for one in verdicts:
        key = (one.id, one.reader, one.adjudicates)
        before = latest.get(key)
        if before is not None and (before.decision, before.labels) == (one.decision, one.labels):
            fresh.pop(key, None)
            continue
        k = rows[one.id]
        fresh[key] = Note(
            VERDICT,
            {
                "id": one.id,
                "given": list(audit.names(audit.given, k)),
                "proposed": list(audit.names(audit.proposed, k)),
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
    return list(fresh.values())


def from_entries(entries: Iterable[Entry]) -> list[Verdict]:
    """The verdicts among ledger entries, in their order."""
    return [
        Verdict(
            id=entry.id,
            decision=str(entry.body["decision"]),
            labels=tuple(entry.body["labels"]),
            reader=str(entry.body["reader"]),
            when=str(entry.body["said"]),
            adjudicates=bool(entry.body["adjudicates"]),
        )
        for entry in entries
        if entry.kind == VERDICT and entry.body is not None
    ]


def verdicts_on(audit: SiteAudit, entries: Sequence[Entry]) -> list[Verdict]:
    """The verdicts that hold, read against the labels as they are now.

    A label that was corrected since to what a reader named is no longer wrong; one that he confirmed and that was
    changed since is.
    """
    return [_read_again(one, audit) for one in from_entries(effective(entries))]


def _read_again(one: Verdict, audit: SiteAudit) -> Verdict:
    row = audit.row_of.get(one.id)
    if row is None or one.decision not in (GIVEN, PROPOSAL, OTHER):
        return one
    right = one.labels == audit.names(audit.given, row)
    if right == (one.decision == GIVEN):
        return one
    return replace(one, decision=GIVEN if right else OTHER)
