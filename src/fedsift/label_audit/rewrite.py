"""A site's audit written where people may have worked before: what they settled is known, and their queue stays.

Known labels enter the posterior of this site and nothing else: they train no model, and no message knows of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedsift.core.errors import DataError
from fedsift.core.text import argument
from fedsift.label_audit.defaults import BLIND
from fedsift.label_audit.ledger import ForgottenEntry, LabelLedger
from fedsift.label_audit.recalibration import recalibrate
from fedsift.label_audit.results import COPY
from fedsift.label_audit.review import (
    ARM_SIZE,
    FLAGGED,
    UNFLAGGED,
    WORST,
    ReviewPlan,
    draw_plan,
    known_labels,
    read_plan,
)
from fedsift.label_audit.site_audit import SiteAudit, Thumbnails, load
from fedsift.label_audit.site_files import SiteFolder
from fedsift.label_audit.verdicts import ReviewVerdict, verdicts_on
from fedsift.label_audit.writing import write_site


def write_again(
    out: Path,
    audit: SiteAudit,
    thumbnails: Thumbnails | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> tuple[SiteFolder, SiteAudit]:
    """`write_site` of a fresh audit, with the settled verdicts of the site's ledger as known labels.

    Also the audit as it was written. `tell` gets a line about what was taken over.
    """
    folder = SiteFolder.of(out, audit.site)
    entries = LabelLedger(folder.ledger).entries()
    verdicts = verdicts_on(audit, entries)
    plan = _planned(folder, audit.without(ForgottenEntry(entries)), tell, worked=bool(verdicts))
    known = [name for name in known_labels(audit, verdicts) if name in audit.row_of]
    if known:
        audit = _known(audit, plan, verdicts)
        words = "verdict is taken as known label" if len(known) == 1 else "verdicts are taken as known labels"
        tell(f"site '{audit.site}': {len(known)} settled {words}")
    return write_site(out, audit, thumbnails, plan=plan), audit


def _known(audit: SiteAudit, plan: ReviewPlan, verdicts: list[ReviewVerdict]) -> SiteAudit:
    after, _ = recalibrate(audit, plan, verdicts)
    # a copy with another label is a finding whatever its probability; only people can take it off the list
    copies = np.array([why == COPY for why in after.reason], np.bool_)
    return replace(after, flagged=after.flagged | (audit.flagged & copies))


def _planned(folder: SiteFolder, audit: SiteAudit, tell: Callable[[str], None], *, worked: bool) -> ReviewPlan:
    """The plan that is there while its samples and their labels are; else one as long, from the present list.

    worked: whether anybody reviewed. A usual queue that nobody worked on is drawn from the present list at once.
    """
    if not folder.plan.is_file():
        return draw_plan(audit)
    kept, now = read_plan(folder.plan), audit.fingerprint()
    if kept.fingerprint == now:
        return kept
    lengths = _lengths(kept)
    if not worked and lengths == [None] * 3 and (kept.blind, kept.seed) == (BLIND, audit.seed):
        return draw_plan(audit)
    if _stands(kept, folder, audit):
        tell(
            f"site '{audit.site}': the review queue stays as it was drawn, from the list of the earlier audit; "
            f"`fedsift review plan {argument(folder.path)}` draws one from this"
        )
        return replace(kept, fingerprint=now)
    drawn = draw_plan(audit, *lengths, blind=kept.blind, seed=kept.seed)
    tell(f"site '{audit.site}': samples of the review queue are gone or have other labels: another is drawn")
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
