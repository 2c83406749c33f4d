"""Writes all files of a site's audit."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsift.core.errors import DataError
from fedsift.core.files import write_private
from fedsift.core.numbers import plain
from fedsift.core.text import argument
from fedsift.detection.label_thresholds import BLIND
from fedsift.label_audit import label_table as table
from fedsift.label_audit.consortium import release, release_review
from fedsift.label_audit.exports import write_review
from fedsift.label_audit.ledger import FINDING, ForgottenEntry, LabelLedger, LedgerEntry, LedgerNote
from fedsift.label_audit.page import render, shown_rows
from fedsift.label_audit.recalibration import recalibrate
from fedsift.label_audit.results import COPY
from fedsift.label_audit.review import (
    ARM_SIZE,
    FLAGGED,
    UNFLAGGED,
    WORST,
    ReviewAnswer,
    ReviewPlan,
    decided,
    decision_note,
    draw_plan,
    known_labels,
    orders,
    read_plan,
    standing,
)
from fedsift.label_audit.site_audit import OPEN, SiteAudit, Thumbnails, load, to_bytes
from fedsift.label_audit.site_files import SiteFolder, make_private
from fedsift.label_audit.verdicts import ReviewVerdict, verdicts_on

RESERVE = 1000
"""Pictures kept of each random arm beyond the plan, so that a longer plan needs no data again."""
WHO = "fedsift audit"


def write_site(
    out: Path,
    audit: SiteAudit,
    thumbnails: Thumbnails | None = None,
    *,
    plan: ReviewPlan | None = None,
    who: str = WHO,
) -> SiteFolder:
    """`OUT/sites/SITE/` with table, page, review queue, ledger and the row for the consortium.

    Files are readable by their owner only. Writing the same audit again changes nothing that people did: a plan that
    was drawn from it stays, the ledger gets lines for new findings only, and samples that were forgotten stay out.
    """
    folder = SiteFolder.of(out, audit.site)
    make_private(folder.path.parent)
    make_private(folder.path)
    ledger = LabelLedger(folder.ledger)
    entries = ledger.entries()
    gone = ForgottenEntry(entries)
    if len(gone):
        audit = audit.without(gone)
    audit = as_decided(audit, entries)
    chosen = plan or _kept_plan(folder, audit) or draw_plan(audit)
    write_private(folder.findings, to_bytes(audit))
    keep_thumbnails(folder, audit, chosen, thumbnails)
    ledger.append(lambda entries: _new_findings(audit, entries), who)
    write_tables(folder, audit)
    write_queue(folder, audit, chosen)
    return folder


def write_tables(folder: SiteFolder, audit: SiteAudit) -> None:
    """`labels.csv`, flagged and other test samples apart, the site's own summary, and what may leave it."""
    write_private(folder.labels, table.labels_csv(audit, table.of_split(audit, test=False)))
    if audit.is_test.any():
        write_private(folder.test_labels, table.labels_csv(audit, table.of_split(audit, test=True)))
    else:
        folder.test_labels.unlink(missing_ok=True)
    lines, last = LabelLedger(folder.ledger).head()
    anchored = {**summary(audit), "ledger": {"lines": lines, "hash": last}}
    write_private(folder.summary, json.dumps(plain(anchored), indent=2) + "\n")
    write_private(folder.release, json.dumps(plain(release(audit)), indent=2) + "\n")


def write_queue(folder: SiteFolder, audit: SiteAudit, plan: ReviewPlan, prefix: str = "") -> list[Path]:
    """The review folder and the page, which shows the queue as well."""
    pictures = stored_thumbnails(folder, audit)
    written = write_review(folder.review, audit, plan, pictures, prefix)
    return [*written, write_private(folder.report, render(audit, plan, pictures))]


def summary(audit: SiteAudit) -> dict[str, object]:
    """The site's own figures, private as everything here but `release.json`."""
    train = ~audit.is_test
    return {
        "site": audit.site,
        "samples": int(train.sum()),
        "flagged": int(audit.flagged[train].sum()),
        "test_samples": int(audit.is_test.sum()),
        "test_flagged": int(audit.flagged[audit.is_test].sum()),
        "rate": asdict(audit.rate),
        "finding": {
            **asdict(audit.finding),
            "answer": audit.finding.answer(audit.rate),
            "words": audit.finding.words(audit.rate),
        },
        "notes": list(audit.notes),
        "evidence": asdict(audit.evidence),
        "classes": list(audit.classes),
        "agreement": audit.agreement,
        "fingerprint": audit.fingerprint(),
    }


def open_site(path: Path) -> tuple[SiteFolder, SiteAudit]:
    """A site's folder and the audit in it."""
    folder = SiteFolder.open(path)
    return folder, load(folder.findings)


def as_decided(audit: SiteAudit, entries: Sequence[LedgerEntry]) -> SiteAudit:
    """The audit with the answer that a review gave on these labels, if one did."""
    decision = standing(audit, entries)
    if decision is None or decision.body is None:
        return audit
    return replace(audit, finding=audit.finding.settled(str(decision.body["answer"])))


def enter_decision(folder: SiteFolder, audit: SiteAudit, who: str) -> tuple[ReviewAnswer | None, SiteAudit]:
    """What the verdicts of the ledger say by now; None without a plan. Decided for the first time, it is entered in the
    ledger, the site's files and the consortium's table, and a queue that was read until then ends."""
    plan = _kept_plan(folder, audit)
    if plan is None:
        return None, audit
    drawn, found = plan, list[ReviewAnswer]()

    def notes(entries: list[LedgerEntry]) -> list[LedgerNote]:
        found.append(decided(as_decided(audit, entries), drawn, verdicts_on(audit, entries)))
        done = found[0].answer == OPEN or standing(audit, entries) is not None
        return [] if done else [decision_note(audit, found[0])]

    ledger = LabelLedger(folder.ledger)
    if ledger.append(notes, who):
        entries = ledger.entries()
        if plan.until_decided:
            plan = plan.stopped(verdicts_on(audit, entries))
        audit, out = as_decided(audit, entries), folder.path.parent.parent
        write_site(out, audit, stored_thumbnails(folder, audit), plan=plan)
        release_review(out, audit.site, audit.finding.review)
    return found[0], audit


def _kept_plan(folder: SiteFolder, audit: SiteAudit) -> ReviewPlan | None:
    """A plan that was drawn from this very audit; another audit needs another."""
    if not folder.plan.is_file():
        return None
    kept = read_plan(folder.plan)
    return kept if kept.fingerprint == audit.as_made.fingerprint() else None


def _new_findings(audit: SiteAudit, entries: Sequence[LedgerEntry]) -> list[LedgerNote]:
    known = {entry.id: entry.body for entry in entries if entry.kind == FINDING and entry.body}
    notes = []
    for k in audit.worst_first():
        if not audit.flagged[k]:
            continue
        body = {
            "id": audit.ids[k],
            "given": list(audit.names(audit.given, int(k))),
            "proposed": list(audit.names(audit.proposed, int(k))),
            "probability": round(float(audit.probability_wrong[k]), 6),
            "evidence": asdict(audit.evidence),
            "model": audit.evidence.model,
            "decision": "listed" if audit.split[k] == "train" else "listed, test sample",
        }
        if known.get(audit.ids[k]) != body:
            notes.append(LedgerNote(FINDING, body))
    return notes


# Pictures


def keep_thumbnails(folder: SiteFolder, audit: SiteAudit, plan: ReviewPlan, thumbnails: Thumbnails | None) -> None:
    """The pictures that the page shows, and some more of each arm, in one zip; entries have hashed names."""
    if thumbnails is None:
        folder.thumbnails.unlink(missing_ok=True)
        return
    order = orders(audit.as_made, plan.seed)
    wanted = dict.fromkeys(k for rows in shown_rows(audit, plan) for k in rows)
    wanted.update(dict.fromkeys((*order[FLAGGED][:RESERVE], *order[UNFLAGGED][:RESERVE])))
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for k in wanted:
            picture = thumbnails(k)
            if picture:
                archive.writestr(zipfile.ZipInfo(entry_name(audit.ids[k])), picture)
    write_private(folder.thumbnails, file.getvalue())


def entry_name(name: str) -> str:
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def stored_thumbnails(folder: SiteFolder, audit: SiteAudit) -> Thumbnails | None:
    """The pictures that `keep_thumbnails` kept."""
    if not folder.thumbnails.is_file():
        return None
    try:
        with zipfile.ZipFile(folder.thumbnails) as archive:
            pictures = {name: archive.read(name) for name in archive.namelist()}
    except (zipfile.BadZipFile, OSError) as error:
        raise DataError(f"{folder.thumbnails} cannot be read: {error}") from error
    return lambda k: pictures.get(entry_name(audit.ids[k]))


def array_thumbnails(images: NDArray[Any], size: int = 96) -> Thumbnails | None:
    """Thumbnails of uint8 pictures `[n, channels, height, width]`; None for samples that are no pictures."""
    if images.ndim != 4 or images.dtype != np.uint8 or images.shape[1] not in (1, 3):
        return None
    from PIL import Image

    def picture(k: int) -> bytes:
        pixels = np.asarray(images[k])
        shown = Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0))
        small = max(shown.size) <= 32
        if not small:
            shown.thumbnail((size, size))
        file = io.BytesIO()
        # a small picture is shown as it is, without JPEG's blocks
        shown.save(file, "PNG") if small else shown.save(file, "JPEG", quality=85)
        return file.getvalue()

    return picture


# Writing where people have worked before
# ------------------------------------------------------------------------------


def write_again(
    out: Path,
    audit: SiteAudit,
    thumbnails: Thumbnails | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> tuple[SiteFolder, SiteAudit]:
    """`write_site` of a fresh audit, with the settled verdicts of the site's ledger as known labels.

    Also the audit as it was written. `report` is called with a line about what was kept from before.
    """
    folder = SiteFolder.of(out, audit.site)
    entries = LabelLedger(folder.ledger).entries()
    verdicts = verdicts_on(audit, entries)
    plan = _planned(folder, audit.without(ForgottenEntry(entries)), report, worked=bool(verdicts))
    known = [name for name in known_labels(audit, verdicts) if name in audit.row_of]
    if known:
        audit = _known(audit, plan, verdicts)
        words = "verdict is taken as known label" if len(known) == 1 else "verdicts are taken as known labels"
        report(f"site '{audit.site}': {len(known)} settled {words}")
    return write_site(out, audit, thumbnails, plan=plan), audit


def _known(audit: SiteAudit, plan: ReviewPlan, verdicts: list[ReviewVerdict]) -> SiteAudit:
    after, _ = recalibrate(audit, plan, verdicts)
    # a copy with another label is a finding whatever its probability; only people can take it off the list
    copies = np.array([why == COPY for why in after.reason], np.bool_)
    return replace(after, flagged=after.flagged | (audit.flagged & copies))


def _planned(folder: SiteFolder, audit: SiteAudit, report: Callable[[str], None], *, worked: bool) -> ReviewPlan:
    """The plan that is there while its samples and their labels are; else one as long, from the present list.

    worked: whether anybody reviewed. A usual queue that nobody worked on is drawn from the present list at once.
    """
    if not folder.plan.is_file():
        return draw_plan(audit)
    kept, now = read_plan(folder.plan), audit.fingerprint()
    if kept.fingerprint == now:
        return kept
    lengths = _lengths(kept)
    if (
        not worked
        and lengths == [None] * 3
        and not kept.until_decided
        and (kept.blind, kept.seed) == (BLIND, audit.seed)
    ):
        return draw_plan(audit)
    if _stands(kept, folder, audit):
        report(
            f"site '{audit.site}': the review queue stays as it was drawn, from the list of the earlier audit; "
            f"`fedsift review plan {argument(folder.path)}` draws one from this"
        )
        return replace(kept, fingerprint=now)
    lengths = [None] * 3 if kept.until_decided else lengths
    drawn = draw_plan(audit, *lengths, blind=kept.blind, seed=kept.seed, until_decided=kept.until_decided)
    report(f"site '{audit.site}': samples of the review queue are gone or have other labels: another is drawn")
    return drawn


def _stands(plan: ReviewPlan, folder: SiteFolder, audit: SiteAudit) -> bool:
    """Whether every sample of the queue is still there to train on, with the label that it had."""
    try:
        earlier = load(folder.findings)
    except DataError:
        return False
    then, now = earlier.row_of, audit.row_of
    return all(
        item.id in then
        and item.id in now
        and not audit.is_test[now[item.id]]
        and earlier.names(earlier.given, then[item.id]) == audit.names(audit.given, now[item.id])
        for item in plan.items
    )


def _lengths(plan: ReviewPlan) -> list[int | None]:
    """How many of each arm were asked for; None where it may have been the usual number, or all that there were."""
    count = {arm: sum(item.arm == arm for item in plan.items) for arm in (WORST, FLAGGED, UNFLAGGED)}
    most = {**plan.sizes, WORST: plan.sizes[WORST] + plan.sizes[FLAGGED]}
    usual = {arm: count[arm] == min(ARM_SIZE, most[arm]) for arm in count}
    return [None if usual[arm] else count[arm] for arm in count]
