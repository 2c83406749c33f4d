"""Verdicts change how sure a score is, settle what was looked at, and leave the order of the rest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedsift.core.errors import DataError
from fedsift.label_audit.recalibration import SETTLED, recalibrate
from fedsift.label_audit.review import draw_plan
from fedsift.label_audit.site_audit import (
    CONVICTED,
    WITHDRAWN,
    AuditFinding,
    SampleEvidence,
    SiteAudit,
    WrongShare,
    load,
    to_bytes,
)
from fedsift.label_audit.verdicts import ReviewVerdict
from tests.label_audit.made import multilabel_audit


def made(n: int = 300) -> tuple[SiteAudit, np.ndarray]:
    """Three classes; the audit is too sure: of labels at 0.8 only about half are wrong. Also which are wrong."""
    draw = np.random.default_rng(2)
    doubt = draw.uniform(0.02, 0.98, n)
    wrong = draw.random(n) < doubt**2
    given = draw.integers(0, 3, n)
    posterior = np.zeros((n, 3))
    posterior[np.arange(n), given] = 1 - doubt
    posterior[np.arange(n), (given + 1) % 3] = doubt
    flagged = doubt > 0.5
    audit = SiteAudit(
        site="north",
        classes=("cat", "cow", "dog"),
        multilabel=False,
        ids=tuple(f"s{k}" for k in range(n)),
        given=given,
        probability=posterior,
        probability_wrong=doubt,
        predicted=posterior.argmax(1),
        proposed=np.where(flagged, (given + 1) % 3, given),
        flagged=flagged,
        rate=WrongShare(0.3, 0.2, 0.4),
        finding=AuditFinding(True, 0.05),
        agreement=np.zeros((3, 3), np.int64),
        evidence=SampleEvidence("test"),
    )
    return audit, wrong


def verdicts_of(audit: SiteAudit, wrong: np.ndarray, ids: list[str]) -> list[ReviewVerdict]:
    said = []
    for name in ids:
        k = audit.row_of[name]
        label = audit.classes[int(audit.given[k] + wrong[k]) % 3]
        said.append(ReviewVerdict(name, "proposal" if wrong[k] else "given", (label,), "Ann"))
    return said


def test_probabilities_come_nearer_to_what_people_found() -> None:
    audit, wrong = made()
    plan = draw_plan(audit, 40, 40, 40)
    said = verdicts_of(audit, wrong, [item.id for item in plan.items])
    after, learnt = recalibrate(audit, plan, said)
    rest = np.array([name not in {item.id for item in plan.items} for name in audit.ids])
    before_error = abs(audit.probability_wrong[rest].mean() - wrong[rest].mean())
    after_error = abs(after.probability_wrong[rest].mean() - wrong[rest].mean())
    assert after_error < 0.5 * before_error
    assert learnt.curve.slope > 0
    order = np.argsort(audit.probability_wrong[rest], kind="stable")
    assert (np.diff(after.probability_wrong[rest][order]) >= -1e-12).all()
    assert np.allclose(after.probability.sum(1), 1)


def test_a_settled_label_is_listed_as_people_said_and_nearly_certain() -> None:
    audit, wrong = made()
    plan = draw_plan(audit, 20, 20, 20)
    said = verdicts_of(audit, wrong, [item.id for item in plan.items])
    after, learnt = recalibrate(audit, plan, said)
    for one in said:
        k = audit.row_of[one.id]
        unsettled = learnt.curve(audit.probability_wrong)[k]
        odds = (1 - learnt.reader_error) * 2 / learnt.reader_error
        told = int(audit.given[k] + wrong[k]) % 3
        row = np.array([1 - unsettled if c == audit.given[k] else 0.0 for c in range(3)])
        row[(audit.given[k] + 1) % 3] = unsettled
        row[told] *= odds
        assert after.probability_wrong[k] == pytest.approx(1 - (row / row.sum())[audit.given[k]], abs=1e-6)
        assert after.flagged[k] == wrong[k]
        assert after.reason[k] == SETTLED
        assert audit.classes[int(after.proposed[k])] == one.labels[0]


def test_without_a_verdict_there_is_nothing_to_learn() -> None:
    audit, _ = made()
    with pytest.raises(DataError, match="no settled verdict"):
        recalibrate(audit, draw_plan(audit, 5, 5, 5), [])


def test_two_who_agree_and_an_adjudication_weigh_more_than_one() -> None:
    audit, wrong = made()
    plan = draw_plan(audit, 20, 20, 20)
    ids = [item.id for item in plan.items]
    said = verdicts_of(audit, wrong, ids)
    again = [replace(one, reader="Bea") for one in said]
    decided = [replace(one, adjudicates=True) for one in said]
    looked = [audit.row_of[name] for name in ids if wrong[audit.row_of[name]]]
    once, _ = recalibrate(audit, plan, said, reader_error=0.1)
    twice, _ = recalibrate(audit, plan, said + again, reader_error=0.1)
    settled, _ = recalibrate(audit, plan, decided, reader_error=0.1)
    assert (twice.probability_wrong[looked] > once.probability_wrong[looked]).all()
    np.testing.assert_allclose(settled.probability_wrong[looked], twice.probability_wrong[looked], atol=1e-12)


def test_a_verdict_counts_once_however_often_it_is_recalibrated(tmp_path: Path) -> None:
    audit, wrong = made()
    plan = draw_plan(audit, 40, 40, 40)
    said = verdicts_of(audit, wrong, [item.id for item in plan.items])
    half, _ = recalibrate(audit, plan, said[:40])
    whole, learnt = recalibrate(audit, plan, said)
    for first in (half, whole):  # forty and then the rest, or all of them and then the same again
        (tmp_path / "findings.npz").write_bytes(to_bytes(first))
        after, again = recalibrate(load(tmp_path / "findings.npz"), plan, said)
        assert again == learnt and to_bytes(after) == to_bytes(whole)


def test_a_plan_is_drawn_from_the_list_before_the_verdicts() -> None:
    audit, wrong = made()
    plan = draw_plan(audit, 20, 20, 20)
    after, _ = recalibrate(audit, plan, verdicts_of(audit, wrong, [item.id for item in plan.items]))
    assert after.fingerprint() != audit.fingerprint()
    assert draw_plan(after, 20, 20, 20) == plan
    gone = after.without({"s3"})
    assert len(gone.as_made) == len(gone) == 299 and gone.as_made.before is None


def test_estimates_and_counts_follow_the_new_probabilities() -> None:
    audit, wrong = made()
    plan = draw_plan(audit, 40, 40, 40)
    after, _ = recalibrate(audit, plan, verdicts_of(audit, wrong, [item.id for item in plan.items]))
    share = after.probability_wrong.mean()
    assert after.rate.estimate == pytest.approx(share, abs=0.5 / 300)  # whole labels of 300
    assert after.rate.low < share < after.rate.high and after.rate != audit.rate
    assert after.finding == audit.finding.settled(CONVICTED) and audit.finding.wrong_labels
    assert after.agreement.sum(1) == pytest.approx(np.bincount(audit.given), abs=1.5)  # three roundings a row
    assert 300 - np.trace(after.agreement) == pytest.approx(300 * share, abs=1.5)
    assert after.notes == (
        "recalibrated: probabilities, list and estimates follow from the audit and from what people said of "
        "120 samples",
    )


@pytest.mark.parametrize("told", [True, False])
def test_a_site_whose_labels_people_confirm_has_no_evidence_and_no_list(told: bool) -> None:
    audit, wrong = made()
    audit = replace(
        audit,
        probability_wrong=audit.probability_wrong * 0.6,
        finding=AuditFinding(told, 0.05),
        rate=WrongShare(0.3, 0.0, 0.4),
    )
    plan = draw_plan(audit, 80, 80, 140)
    nothing = np.zeros_like(wrong)
    right, _ = recalibrate(audit, plan, verdicts_of(audit, nothing, list(audit.ids)), 0.05)
    assert right.finding.review == WITHDRAWN
    assert not right.finding.wrong_labels and not right.flagged.any() and right.rate.low == 0
    some, _ = recalibrate(audit, plan, verdicts_of(audit, wrong, list(audit.ids)), 0.05)
    assert some.finding.review == CONVICTED
    assert some.finding.wrong_labels and some.flagged.tolist() == wrong.tolist()


def test_one_mistaken_verdict_convicts_nobody() -> None:
    audit, wrong = made()
    audit = replace(audit, finding=AuditFinding(False, 0.05), rate=WrongShare(0.05, 0.0, 0.1))
    plan = draw_plan(audit, 0, 10, 10)
    mistaken = np.zeros_like(wrong)
    mistaken[audit.row_of[plan.random[0]]] = True
    after, _ = recalibrate(audit, plan, verdicts_of(audit, mistaken, [item.id for item in plan.items]))
    assert not after.finding.wrong_labels and not after.finding.review


def test_ranks_get_no_interval_by_verdicts() -> None:
    audit, wrong = made()
    audit = replace(audit, rate=WrongShare(0.5, 0.0, 1.0), finding=AuditFinding(True, 1.0))
    plan = draw_plan(audit, 40, 40, 40)
    after, _ = recalibrate(audit, plan, verdicts_of(audit, wrong, [item.id for item in plan.items]))
    assert (after.rate.low, after.rate.high) == (0, 1) and after.finding == audit.finding.settled(CONVICTED)
    assert not after.finding.stated
    assert after.rate.estimate == pytest.approx(after.probability_wrong.mean(), abs=0.5 / 300)


def test_several_labels_are_counted_by_entry() -> None:
    audit = multilabel_audit(200)
    plan = draw_plan(audit, 20, 20, 20)
    said = [
        ReviewVerdict(item.id, "given", audit.names(audit.given, audit.row_of[item.id]), "Ann") for item in plan.items
    ]
    after, _ = recalibrate(audit, plan, said)
    assert after.rate.estimate == pytest.approx(after.probability.mean(), abs=1.5 / 600)
    assert after.agreement.sum(1) == pytest.approx([200] * 3, abs=2)
    assert after.agreement[:, 1:3].sum() == pytest.approx(after.probability.sum(), abs=3)
