"""An audit written again: what people settled is known, their queue stays while it can, and nothing new is released."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedsift.label_audit.corrections import forget
from fedsift.label_audit.label_table import read_labels
from fedsift.label_audit.ledger import LabelLedger
from fedsift.label_audit.recalibration import SETTLED, recalibrate
from fedsift.label_audit.results import COPY
from fedsift.label_audit.review import draw_plan, read_plan
from fedsift.label_audit.site_audit import LabelOrigin, SiteAudit
from fedsift.label_audit.site_files import SiteFolder
from fedsift.label_audit.verdicts import ReviewVerdict, notes, verdicts_on
from fedsift.label_audit.writing import open_site, write_again, write_site
from tests.label_audit.made import digits_audit, make_audit


def say(folder: SiteFolder, audit: SiteAudit, *verdicts: ReviewVerdict) -> None:
    LabelLedger(folder.ledger).append(notes(verdicts, audit, []), "readers")


def four(**changes: object) -> SiteAudit:
    """Labels a, a, b, b; the models doubt the second."""
    posterior = [[0.9, 0.1], [0.2, 0.8], [0.1, 0.9], [0.4, 0.6]]
    return make_audit([0, 0, 1, 1], posterior, classes=("a", "b"), ids=("k", "l", "m", "n"), **changes)


def test_settled_verdicts_are_known_labels(tmp_path: Path) -> None:
    audit = four()
    folder = write_site(tmp_path, audit, plan=draw_plan(audit, 0, 0, 0))
    released = folder.release.read_bytes()
    say(folder, audit, ReviewVerdict("l", "given", ("a",), "Ann"), ReviewVerdict("n", "other", ("a",), "Ann"))
    told: list[str] = []
    _, after = write_again(tmp_path, audit, report=told.append)
    assert told == ["site 'A': 2 settled verdicts are taken as known labels"]
    stored = {row.id: row for row in read_labels(folder.labels)}
    assert [stored[name].reason for name in "ln"] == [SETTLED, SETTLED]
    assert [stored[name].is_label_issue for name in "klmn"] == [False, False, False, True]
    assert stored["n"].proposed_label == "a"
    # the verdicts are outside the queue: a reader errs at the prior's tenth, so odds of 8 to 2 that 'l' is wrong
    # become 8 to 18, and 4 to 6 that 'n' is become 36 to 6
    assert after.probability_wrong[[1, 3]] == pytest.approx([8 / 26, 36 / 42], abs=0.03)
    np.testing.assert_allclose(after.probability_wrong[[0, 2]], audit.probability_wrong[[0, 2]], atol=1e-6)
    assert folder.release.read_bytes() == released
    # two findings, of which the second is the people's, and two verdicts
    assert len(LabelLedger(folder.ledger).entries()) == 4


def test_a_recalibration_stays_when_the_same_audit_is_written_again(tmp_path: Path) -> None:
    audit, true = digits_audit(200)
    plan = draw_plan(audit, 10, 5, 20)
    folder = write_site(tmp_path, audit, plan=plan)
    verdicts = [
        ReviewVerdict(item.id, "given", audit.names(audit.given, k), "Ann")
        if audit.given[k] == true[k]
        else ReviewVerdict(item.id, "other", (audit.classes[true[k]],), "Ann")
        for item in plan.items
        for k in [audit.row_of[item.id]]
    ]
    say(folder, audit, *verdicts)
    after, _ = recalibrate(audit, plan, verdicts_on(audit, LabelLedger(folder.ledger).entries()))
    write_site(tmp_path, after, plan=plan)
    labels, queue = folder.labels.read_bytes(), folder.plan.read_bytes()
    write_again(tmp_path, audit)
    assert folder.labels.read_bytes() == labels
    assert folder.plan.read_bytes() == queue


def test_a_queue_of_ones_own_stays_while_its_samples_do(tmp_path: Path) -> None:
    audit, _ = digits_audit(200)
    plan = draw_plan(audit, 7, 3, 12, blind=0.5, seed=9)
    folder = write_site(tmp_path, audit, plan=plan)
    planned = {item.id for item in plan.items}
    [other, *_] = [k for k in np.flatnonzero(audit.flagged) if audit.ids[k] not in planned]
    flagged = audit.flagged.copy()
    flagged[other] = False
    told: list[str] = []
    write_again(tmp_path, replace(audit, flagged=flagged), report=told.append)
    kept = read_plan(folder.plan)
    assert (kept.items, kept.sizes) == (plan.items, plan.sizes)
    assert kept.fingerprint == open_site(folder.path)[1].fingerprint()
    assert "stays as it was drawn" in told[0]

    given = audit.given.copy()  # a label of the queue was corrected: the queue was drawn for another list
    changed = audit.row_of[plan.items[0].id]
    given[changed] = (given[changed] + 1) % 10
    write_again(tmp_path, replace(audit, given=given), report=told.append)
    drawn = read_plan(folder.plan)
    assert [sum(item.arm == arm for item in drawn.items) for arm in plan.sizes] == [7, 3, 12]
    assert (drawn.blind, drawn.seed) == (0.5, 9)
    assert "another is drawn" in told[1]


def test_the_usual_queue_that_nobody_worked_on_is_drawn_anew_in_silence(tmp_path: Path) -> None:
    audit, _ = digits_audit(200)
    write_again(tmp_path, audit)
    flagged = ~audit.flagged
    told: list[str] = []
    folder, fresh = write_again(tmp_path, replace(audit, flagged=flagged), report=told.append)
    assert read_plan(folder.plan) == draw_plan(fresh)
    assert told == []


def test_a_verdict_is_read_against_the_label_as_it_is_now(tmp_path: Path) -> None:
    audit = four()
    folder = write_site(tmp_path, audit)
    say(
        folder,
        audit,
        ReviewVerdict("l", "proposal", ("b",), "Ann"),
        ReviewVerdict("m", "given", ("b",), "Ann"),
    )
    corrected = replace(audit, given=np.array([0, 1, 0, 1]))
    found = {one.id: one for one in verdicts_on(corrected, LabelLedger(folder.ledger).entries())}
    assert (found["l"].wrong, found["m"].wrong) == (False, True)
    _, after = write_again(tmp_path, corrected)
    assert list(after.flagged[[1, 2]]) == [False, True]
    renamed = replace(audit, classes=("a", "c"))
    assert verdicts_on(renamed, LabelLedger(folder.ledger).entries()) == []
    write_again(tmp_path, renamed)


def test_copies_with_other_labels_stay_listed_and_the_forgotten_stay_out(tmp_path: Path) -> None:
    audit = four(flagged=[True, True, False, False], reason=(COPY, "x", "", ""), origin=LabelOrigin("npz", "none.npz"))
    folder = write_site(tmp_path, audit)
    say(folder, audit, ReviewVerdict("n", "given", ("b",), "Ann"))
    forget(folder, audit, "m", who="owner")
    _, after = write_again(tmp_path, audit)
    assert bool(after.flagged[0])
    stored = open_site(folder.path)[1]
    assert stored.ids == ("k", "l", "n")
    assert read_plan(folder.plan).fingerprint == stored.as_made.fingerprint()
