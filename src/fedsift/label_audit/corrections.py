"""Applies and undoes label corrections, by probability or by verdicts, and forgets samples.

The ledger is what was decided, the corrected table is what follows from it: it is always written anew from the changes
that hold, so an undo needs no memory of its own. The new table lies on the disk, beside the old one, before the ledger
says anything, and takes its place after: what cannot be written is not said to be done. A crash between the two leaves
the old table, which the next `apply` or `undo` writes as the ledger has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from fedsift.core.errors import ConfigError, DataError, RunError
from fedsift.core.files import safe_name, staged_private, write_private
from fedsift.data.truth_ledger import TruthLedger as Truth
from fedsift.detection.label_thresholds import APPLY
from fedsift.label_audit.ledger import (
    CHANGE,
    DECISION,
    UNDO,
    ForgottenEntry,
    LabelLedger,
    LedgerEntry,
    LedgerNote,
    Notes,
    effective,
)
from fedsift.label_audit.original_table import LabelCorrection, corrected_path, rendered
from fedsift.label_audit.review import read_plan, settle, standing
from fedsift.label_audit.site_audit import LabelOrigin, SiteAudit, load, to_bytes
from fedsift.label_audit.site_files import SiteFolder
from fedsift.label_audit.verdicts import ReviewVerdict, from_entries
from fedsift.label_audit.writing import keep_thumbnails, stored_thumbnails, write_queue, write_tables
from fedsift.runs.folder import RunFolder

BY = ("verdicts", "probability", "both")


@dataclass(frozen=True)
class AppliedCorrections:
    """What an `apply` or an `undo` left behind."""

    table: Path | None
    """The corrected table; None where the audit does not know the original."""
    changed: int
    """Labels that differ from the given ones in it."""
    new: int
    """Lines that were added to the ledger."""
    test_left_out: int = 0
    """Test samples that would have been changed, had they been asked for."""
    line: int = 0
    """The ledger's last line."""


def decisions(
    audit: SiteAudit, verdicts: Sequence[ReviewVerdict], by: str, threshold: float, *, test: bool
) -> dict[str, tuple[tuple[str, ...], str]]:
    """Sample to (class names, why): all that the rule decides, and the given label where people confirmed it.

    A settled verdict always outranks the model: a label that a reader confirmed is not changed by probability.
    """
    if by not in BY:
        raise ConfigError(f"--by must be one of {', '.join(BY)}, not '{by}'")
    if not 0 <= threshold <= 1:
        raise ConfigError(f"--above must lie between 0 and 1, not {threshold:g}")
    settled = settle(verdicts)
    decided: dict[str, tuple[tuple[str, ...], str]] = {}
    rows = audit.row_of
    for name, one in settled.final.items():
        if name not in rows or one.wrong is None:
            continue
        given = audit.names(audit.given, rows[name])
        if by != "probability" or not one.wrong:
            decided[name] = (one.labels if one.wrong else given, f"verdict of {one.reader}: {one.decision}")
    if by != "verdicts":
        unsettled = set(settled.open)
        for k in np.flatnonzero(audit.flagged & (audit.probability_wrong > threshold)):
            name, proposed = audit.ids[k], audit.names(audit.proposed, int(k))
            if name not in decided and name not in unsettled and proposed != audit.names(audit.given, int(k)):
                decided[name] = (proposed, f"probability above {threshold:g}")
    sides = audit.is_test
    return {name: what for name, what in decided.items() if test or not sides[rows[name]]}


def apply(
    folder: SiteFolder,
    audit: SiteAudit,
    *,
    by: str = "verdicts",
    threshold: float = APPLY,
    who: str,
    test: bool = False,
    origin: LabelOrigin | None = None,
    out: Path | None = None,
) -> AppliedCorrections:
    """Decide, write the decisions down, and write the corrected table beside the original."""
    source = _origin(audit, origin)
    left_out = 0

    def notes(entries: list[LedgerEntry]) -> list[LedgerNote]:
        nonlocal left_out
        verdicts = from_entries(effective(entries))
        wanted = decisions(audit, verdicts, by, threshold, test=test)
        everything = wanted if test else decisions(audit, verdicts, by, threshold, test=True)
        left_out = len(everything) - len(wanted)
        holding = holding_changes(entries)
        return [
            _change(audit, name, labels, why)
            for name, (labels, why) in wanted.items()
            if _new(audit, holding, name, labels)
        ]

    done = _noted(folder, audit, source, notes, who, out)
    return replace(done, test_left_out=left_out)


def undo(
    folder: SiteFolder,
    audit: SiteAudit,
    to: int,
    *,
    who: str,
    origin: LabelOrigin | None = None,
    out: Path | None = None,
) -> AppliedCorrections:
    """Back to what held after line `to` of the ledger (0: before anything); the lines since then stay readable."""
    source = _origin(audit, origin)
    ledger = LabelLedger(folder.ledger)
    entries = ledger.entries()
    if not 0 <= to <= len(entries):
        raise ConfigError(f"the ledger has lines 1 to {len(entries)}, so it cannot go back to line {to}")
    return _noted(folder, audit, source, [LedgerNote(UNDO, {"to": to})], who, out)


def _noted(
    folder: SiteFolder,
    audit: SiteAudit,
    origin: LabelOrigin,
    notes: Notes,
    who: str,
    out: Path | None,
) -> AppliedCorrections:
    """The notes in the ledger and the table that follows from them: both, or neither."""
    states: list[CorrectionState] = []

    def table(entries: list[LedgerEntry]) -> AbstractContextManager[None]:
        states.append(state_of(folder, audit, origin, entries, out))
        return staged_private(states[-1].path, states[-1].data)

    added = LabelLedger(folder.ledger).append(notes, who, around=table)
    [state] = states
    return AppliedCorrections(state.path, state.changed, len(added), line=state.line)


def holding_changes(entries: Sequence[LedgerEntry]) -> dict[str, tuple[str, ...]]:
    """Sample to the class names that the changes which still hold gave it."""
    return {entry.id: tuple(entry.body["labels"]) for entry in effective(entries, (CHANGE,)) if entry.body is not None}


def corrections(audit: SiteAudit, entries: Sequence[LedgerEntry]) -> dict[str, LabelCorrection]:
    """The samples whose label is another than the given one."""
    found: dict[str, LabelCorrection] = {}
    for entry in effective(entries, (CHANGE,)):
        assert entry.body is not None
        labels = tuple(entry.body["labels"])
        if list(labels) == entry.body["given"]:
            found.pop(entry.id, None)
        else:
            found[entry.id] = LabelCorrection(
                entry.id, labels, str(entry.body["decision"]), float(entry.body["probability"]), entry.n
            )
    return found


@dataclass(frozen=True)
class CorrectionState:
    """A corrected table that is still to be written."""

    path: Path
    data: bytes
    changed: int
    """Labels of the site that differ from the given ones."""
    line: int
    """The ledger's last line."""


def state_of(
    folder: SiteFolder,
    audit: SiteAudit,
    origin: LabelOrigin,
    entries: Sequence[LedgerEntry],
    out: Path | None,
) -> CorrectionState:
    """The corrected table as the ledger has it, and as those of other sites whose labels lie in the same table do."""
    own = corrections(audit, entries)
    found, everyone = dict(own), list(entries)
    for other, theirs in _sharing(folder, origin):
        found = {**corrections(other, theirs), **found}
        everyone += theirs
    made = rendered(origin, audit.site, audit.classes, found, forgotten=ForgottenEntry(everyone), out=out)
    return CorrectionState(*made, changed=len(own), line=len(entries))


def write_state(
    folder: SiteFolder,
    audit: SiteAudit,
    origin: LabelOrigin,
    entries: Sequence[LedgerEntry],
    out: Path | None,
) -> tuple[Path, int]:
    state = state_of(folder, audit, origin, entries, out)
    return write_private(state.path, state.data), state.changed


def _sharing(folder: SiteFolder, origin: LabelOrigin) -> Iterator[tuple[SiteAudit, list[LedgerEntry]]]:
    """The other sites of the audit whose corrections belong into the same file: without them it would lose these."""
    for findings in sorted(folder.path.parent.glob("*/findings.npz")):
        place = SiteFolder(findings.parent)
        if place.path.resolve() == folder.path.resolve():
            continue
        other = load(findings)
        if other.origin is not None and corrected_path(other.origin) == corrected_path(origin):
            yield other, LabelLedger(place.ledger).entries()


def _new(audit: SiteAudit, holding: Mapping[str, tuple[str, ...]], name: str, labels: tuple[str, ...]) -> bool:
    """Whether a decision says anything that the table does not say already."""
    given = audit.names(audit.given, audit.row_of[name]) if name not in holding else holding[name]
    return labels != given


def _change(audit: SiteAudit, name: str, labels: tuple[str, ...], why: str) -> LedgerNote:
    k = audit.row_of[name]
    return LedgerNote(
        CHANGE,
        {
            "id": name,
            "given": list(audit.names(audit.given, k)),
            "proposed": list(audit.names(audit.proposed, k)),
            "probability": round(float(audit.probability_wrong[k]), 6),
            "evidence": asdict(audit.evidence),
            "model": audit.evidence.model,
            "decision": why,
            "labels": list(labels),
        },
    )


def _origin(audit: SiteAudit, origin: LabelOrigin | None) -> LabelOrigin:
    found = origin or audit.origin
    if found is None:
        raise DataError(
            f"site '{audit.site}': the audit does not know the table that its labels came from; name it with --table"
        )
    return found


# Forgetting


@dataclass(frozen=True)
class RemovedSample:
    """What was removed for one sample, and what cannot be removed from here."""

    id: str
    models: tuple[str, ...]
    """Digests of the models that were trained with, or judged, the sample."""
    ledger_lines: int
    files: tuple[str, ...]
    """Files that held it and do so no more."""
    remains: tuple[str, ...]
    """What the owner must see to."""
    notes: tuple[str, ...] = ()
    """What follows from it, a line each."""


def forget(folder: SiteFolder, audit: SiteAudit, name: str, *, who: str) -> tuple[RemovedSample, SiteAudit]:
    """Remove a sample from every file of the site's folder and the corrected table; a tombstone stays in the ledger."""
    rows = audit.row_of
    ledger = LabelLedger(folder.ledger)
    entries = ledger.entries()
    lines = [entry for entry in entries if entry.id == name]
    if name not in rows and not lines:
        raise DataError(f"site '{audit.site}' has no sample '{name}'")
    models = {str(entry.body["model"]) for entry in lines if entry.body and entry.body.get("model")}
    if name in rows and audit.evidence.model:
        models.add(audit.evidence.model)
    files: list[str] = []
    rest = audit
    if name in rows:
        rest = audit.without({name})
        files = _rewrite(folder, audit, rest, name)
    ledger.forget(name, who, {"models": sorted(models)})
    if (decision := standing(audit, entries)) is not None and decision.body is not None:  # it holds for the rest
        ledger.append([LedgerNote(DECISION, {**decision.body, "labels": rest.labels_digest()})], who)
    if rest.origin is not None and corrected_path(rest.origin).is_file():
        table, _ = write_state(folder, rest, rest.origin, ledger.entries(), None)
        files.append(str(table))
    return RemovedSample(name, tuple(sorted(models)), len(lines), tuple(files), _remains(audit)), rest


def _remains(audit: SiteAudit) -> tuple[str, ...]:
    original = ""
    if audit.origin is not None:
        original = audit.origin.table or audit.origin.path
    return (
        f"the original data{f' ({original})' if original else ''}: never touched from here; remove the sample there",
        "the models named: what they learned stays in them until they are trained again without the sample",
        "counts and shares that were released to the consortium",
        "verdicts files, exports and corrected tables that people saved elsewhere",
        "the notebooks of other runs that trained with the sample; a deployed site's: `fedsift flower forget site.toml "
        "ID`, at the site",
    )


def _rewrite(folder: SiteFolder, audit: SiteAudit, rest: SiteAudit, name: str) -> list[str]:
    """Every file of the folder again, without the sample; the plan keeps the other samples that it drew."""
    pictures = stored_thumbnails(folder, rest)
    plan = read_plan(folder.plan)
    sizes = dict(plan.sizes)
    gone = {item.id: item.arm for item in plan.items}.get(name)
    if gone is not None:
        sizes[gone] -= 1
    elif audit.split[audit.row_of[name]] == "train":
        sizes["flagged" if audit.as_made.flagged[audit.row_of[name]] else "unflagged"] -= 1
    shorter = replace(plan.without(name), fingerprint=rest.as_made.fingerprint(), sizes=sizes)
    write_private(folder.findings, to_bytes(rest))
    keep_thumbnails(folder, rest, shorter, pictures)
    write_tables(folder, rest)
    written = write_queue(folder, rest, shorter)
    return [str(path) for path in (folder.findings, folder.thumbnails, folder.labels, *written) if path.is_file()]


# Forgetting a sample
# -------------------


ANEW = "the audit cannot be gone on with: the next `fedsift audit` computes it anew, without the sample"


def forget_everywhere(folder: SiteFolder, audit: SiteAudit, name: str, *, who: str) -> tuple[RemovedSample, SiteAudit]:
    """`forget` in the site's folder, in its part of a simulated audit's run, and among samples that came later."""
    out = folder.path.parent.parent
    run = RunFolder(out / "run")
    if run.in_use:
        raise RunError(f"{run.path} is in use by another process: forget '{name}' when the audit is done")
    later = [place for place in _later(out, folder) if _holds(place, name)]
    # the site's own folder comes last: stopped on the way, the same command finds the rest
    removed = [forget(place, load(place.findings), name, who=who)[0] for place in later]
    if not later or _holds(folder, name):
        files = _from_run(run.path, audit.site, name) if _holds(folder, name) else []
        found, audit = forget(folder, audit, name, who=who)
        notes = (ANEW,) if files else ()
        removed.insert(0, replace(found, files=(*found.files, *files), notes=notes))
    every = replace(
        removed[0],
        models=tuple(sorted({model for one in removed for model in one.models})),
        ledger_lines=sum(one.ledger_lines for one in removed),
        files=tuple(file for one in removed for file in one.files),
    )
    return every, audit


def kept_of(folder: SiteFolder, name: str) -> bool:
    """Whether the site's folder, or one of samples that came later, has anything of the sample."""
    return any(_holds(place, name) for place in (folder, *_later(folder.path.parent.parent, folder)))


def _later(out: Path, folder: SiteFolder) -> list[SiteFolder]:
    """The site's folders of samples that came after the audit."""
    return [SiteFolder(place) for place in sorted(out.glob(f"later/*/sites/{folder.path.name}"))]


def _holds(folder: SiteFolder, name: str) -> bool:
    known = folder.findings.is_file() and name in load(folder.findings).row_of
    return known or any(entry.id == name for entry in LabelLedger(folder.ledger).entries())


def _from_run(run: Path, site: str, name: str) -> list[str]:
    """Remove the site's notebook, which has a value for every sample, and the sample from a simulation's truth."""
    changed = []
    for notebook in sorted((run / "notebooks" / safe_name(site)).glob("*")):
        notebook.unlink()
        changed.append(str(notebook))
    truth = run / "truth.csv"
    if truth.is_file():
        known = Truth.load(truth)
        kept = tuple(change for change in known if (change.site, change.sample) != (site, name))
        if len(kept) < len(known):
            RunFolder(run).write_text(truth.name, Truth(kept).text())
            changed.append(str(truth))
    return changed
