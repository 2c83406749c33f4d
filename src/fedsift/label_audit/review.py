"""Review of labels by people: draws the queue before anybody looks, evaluates the verdicts, and decides by them.

Three arms: the most suspicious find errors fastest; a random part of the other flagged samples gives the precision of
the whole list; a random part of the unflagged ones gives the share that the list misses. Both random parts follow one
random order of all the site's training samples. The longest beginning of that order that lies in the queue is a random
sample of the site: its verdicts, and no others, decide whether the site has wrong labels (`decided`).
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations, takewhile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedsift.core.errors import ConfigError, DataError
from fedsift.core.randomness import derive, numpy_generator
from fedsift.core.text import argument
from fedsift.detection.label_thresholds import BLIND, WITHIN
from fedsift.formulas.intervals import (
    EVIDENCE,
    MOST_READERS,
    CountedPart,
    ExpectedEnd,
    ShareEstimate,
    WrongShareRead,
    cohen_kappa,
    combined_share,
    conviction,
    expected_end,
    needed,
    share_missed,
    share_read,
    withdrawal,
    wrong_of_all,
)
from fedsift.label_audit.ledger import DECISION, LedgerEntry, LedgerNote, effective
from fedsift.label_audit.site_audit import CONVICTED, OPEN, WITHDRAWN, SiteAudit
from fedsift.label_audit.verdicts import CANNOT_TELL, ReviewVerdict

WORST, FLAGGED, UNFLAGGED = "worst", "flagged", "unflagged"
ARMS = (WORST, FLAGGED, UNFLAGGED)
ARM_SIZE = 100
"""Samples an arm by default, as in the study of 300 X-rays that this design is taken from."""
MOST_TO_DECIDE = 400
"""Samples of a queue that is read until the answer is decided. What takes longer lies between the two answers."""


@dataclass(frozen=True)
class ReviewItem:
    """One sample of the queue."""

    id: str
    arm: str
    blind: bool


@dataclass(frozen=True)
class ReviewPlan:
    """items: the queue in its (shuffled) order, so that the part that is read first is random within each arm."""

    site: str
    fingerprint: str
    """Of the audit that it was drawn from, before any verdict."""
    seed: int
    blind: float
    sizes: Mapping[str, int]
    """How many samples each arm was drawn from."""
    items: tuple[ReviewItem, ...]
    random: tuple[str, ...]
    """Of these, a random sample of all the site's training samples, in the order in which they count."""
    until_decided: bool = False
    """Whether the queue ends where the answer is decided."""

    def stopped(self, verdicts: Iterable[ReviewVerdict]) -> ReviewPlan:
        """Without the samples that nobody has looked at: what is decided needs no more."""
        seen = {one.id for one in verdicts}
        items = tuple(item for item in self.items if item.id in seen)
        return replace(self, items=items, random=tuple(name for name in self.random if name in seen))

    def without(self, name: str) -> ReviewPlan:
        """Without a sample."""
        items = tuple(item for item in self.items if item.id != name)
        return replace(self, items=items, random=tuple(one for one in self.random if one != name))

    def arm_of(self) -> dict[str, str]:
        return {item.id: item.arm for item in self.items}

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"


def read_plan(path: Path) -> ReviewPlan:
    try:
        stored = json.loads(path.read_text("utf-8"))
        items = tuple(ReviewItem(**item) for item in stored.pop("items"))
        return ReviewPlan(items=items, random=tuple(stored.pop("random")), **stored)
    except FileNotFoundError:
        raise DataError(
            f"{path} is missing: draw a plan with `fedsift review plan {argument(path.parent.parent)}`"
        ) from None
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(f"{path} cannot be read as a review plan: {error!r}") from error


def orders(audit: SiteAudit, seed: int) -> dict[str, list[int]]:
    """Row numbers of each arm's samples in the order in which a plan takes them; a longer plan only takes more.

    worst: all flagged, worst first. flagged, unflagged: the same samples whatever the sizes, in a random order.
    Test samples are in no arm: cleaning them changes what is measured.
    """
    train, order = ~audit.is_test, random_order(audit, seed)
    return {
        WORST: [int(k) for k in audit.worst_first() if train[k] and audit.flagged[k]],
        FLAGGED: [k for k in order if audit.flagged[k]],
        UNFLAGGED: [k for k in order if not audit.flagged[k]],
    }


def random_order(audit: SiteAudit, seed: int) -> list[int]:
    """Row numbers of all training samples in a random order.

    It is another once labels have changed: those that were read may be corrected by then, so that the beginning of the
    former order would be better than the rest.
    """
    rows = [int(k) for k in np.argsort(np.array(audit.ids, object), kind="stable") if not audit.is_test[k]]
    return [rows[k] for k in numpy_generator(seed, "review", audit.labels_digest()).permutation(len(rows))]


def draw_plan(
    audit: SiteAudit,
    worst: int | None = None,
    flagged: int | None = None,
    unflagged: int | None = None,
    *,
    blind: float = BLIND,
    seed: int | None = None,
    within: float | None = None,
    until_decided: bool = False,
) -> ReviewPlan:
    """The queue. None: 100 an arm, or as many as the wanted precision (`within`, e.g. 0.05) needs.

    until_decided: the beginning of the random order and nothing else, blind: readers have to err on their own, and who
    is shown the same proposal does not.

    It is drawn from the list as the models made it: one that verdicts have moved holds what they found wrong, and the
    share wrong of its samples would say nothing of the others.
    """
    audit = audit.as_made
    if not 0 <= blind <= 1:
        raise ConfigError(f"the blind share must lie between 0 and 1, not {blind}")
    for name, count in (("worst", worst), ("flagged", flagged), ("unflagged", unflagged)):
        if count is not None and count < 0:
            raise ConfigError(f"--{name} cannot be negative: {count}")
    seed = audit.seed if seed is None else seed
    order, shuffled = orders(audit, seed), random_order(audit, seed)
    if until_decided:
        if (worst, flagged, unflagged, within) != (None,) * 4:
            raise ConfigError("a queue that is read until decided is as long as that takes: leave the numbers out")
        blind, first = 1.0, shuffled[:MOST_TO_DECIDE]
        worst, flagged = 0, sum(bool(audit.flagged[k]) for k in first)
        unflagged = len(first) - flagged
    top = order[WORST][: ARM_SIZE if worst is None else worst]
    at_top = set(top)
    others = [k for k in order[FLAGGED] if k not in at_top]
    chosen = {
        WORST: top,
        FLAGGED: others[: _count(audit, others, flagged, within)],
        UNFLAGGED: order[UNFLAGGED][: _count(audit, order[UNFLAGGED], unflagged, within)],
    }
    items = [
        ReviewItem(audit.ids[k], arm, _unit(seed, "blind", audit.ids[k]) < blind) for arm in ARMS for k in chosen[arm]
    ]
    items.sort(key=lambda item: _unit(seed, "queue", item.id))
    drawn = {item.id: item for item in items}
    random = tuple(takewhile(drawn.__contains__, (audit.ids[k] for k in shuffled)))
    in_turn, sampled = iter(random), set(random)  # where the queue has one of the random part, the next one of it comes
    queue = tuple(drawn[next(in_turn)] if item.id in sampled else item for item in items)
    sizes = {WORST: len(top), FLAGGED: len(others), UNFLAGGED: len(order[UNFLAGGED])}
    return ReviewPlan(audit.site, audit.fingerprint(), seed, blind, sizes, queue, random, until_decided)


def _count(audit: SiteAudit, rows: Sequence[int], wanted: int | None, within: float | None) -> int:
    if wanted is not None:
        return wanted
    if within is None or not rows:
        return ARM_SIZE
    return needed(float(audit.probability_wrong[np.array(rows)].mean()), checked_precision(within))


def checked_precision(within: float) -> float:
    if not 0 < within < 0.5:
        raise ConfigError(f"the wanted precision must lie between 0 and 0.5 (50 points), not {within:g}")
    return within


def _unit(seed: int, purpose: str, name: str) -> float:
    """A number in 0..1 for a sample: the same in every plan, so that a longer plan keeps what the shorter one said."""
    return derive(seed, "review", purpose, name) / 2**63


@dataclass(frozen=True)
class SettledLabels:
    """final: one verdict a sample. open: samples on which readers differ and nobody has decided."""

    final: Mapping[str, ReviewVerdict]
    open: tuple[str, ...]


def settle(verdicts: Iterable[ReviewVerdict]) -> SettledLabels:
    """The last word on each sample: an adjudication, or what all its readers agree on."""
    readings: dict[str, dict[str, ReviewVerdict]] = {}
    decided: dict[str, ReviewVerdict] = {}
    for one in verdicts:
        if one.adjudicates:
            decided[one.id] = one
        else:
            readings.setdefault(one.id, {})[one.reader] = one
    final, differ = dict(decided), []
    for name, by_reader in readings.items():
        if name in decided:
            continue
        if len({_said(one) for one in by_reader.values()}) == 1:
            final[name] = next(iter(by_reader.values()))
        else:
            differ.append(name)
    return SettledLabels(final, tuple(differ))


def _said(one: ReviewVerdict) -> tuple[str, ...]:
    """What two readers must have in common to agree: the labels, or that it cannot be decided."""
    return (CANNOT_TELL,) if one.decision == CANNOT_TELL else ("labels", *one.labels)


@dataclass(frozen=True)
class ReviewArm:
    """One arm's counts; share, low, high: wrong among those that a reader could decide, as readers call it, with a
    confidence sequence (`wrong_of_all`)."""

    name: str
    size: int
    planned: int
    reviewed: int
    wrong: int
    cannot_tell: int
    share: float
    low: float
    high: float

    @property
    def counted(self) -> CountedPart:
        return CountedPart(self.size, self.reviewed, self.wrong)


@dataclass(frozen=True)
class ReaderAgreement:
    """Two readers on the samples that both read."""

    first: str
    second: str
    samples: int
    agreed: int
    kappa: float


@dataclass(frozen=True)
class ReviewAnswer:
    """Whether the site has wrong labels, by the verdicts on its random sample; it may be looked at at any time."""

    answer: str
    """`CONVICTED`, `WITHDRAWN` or `OPEN`. What the ledger says already stands, whatever was read since."""
    convicted: float
    """The e-value against "at most 2 % are wrong"; 20 decides."""
    withdrawn: float
    """The e-value against "12 % or more are wrong"."""
    labels: int
    """Labels of the random order that were read and could be decided, up to the first that nobody has read."""
    verdicts: int
    """Readings of them."""
    planned: int
    """Labels of the random order in the queue."""
    share: WrongShareRead
    """Wrong labels of the site, readers' mistakes taken into account."""
    read_again: tuple[str, ...]
    """Labels that everybody called wrong so far, fewer than three: another reader tells more than another label."""
    expected: ExpectedEnd | None
    """What is left to read at the present rate; None where it is decided, or where no plan of this site would do."""

    @property
    def words(self) -> str:
        """What to do next."""
        if self.answer != OPEN:
            return f"{self.answer}: nothing more is to be read for this answer"
        if self.expected is None:
            return "open: at the present rate no further reading would decide; the share lies between the two answers"
        aim = "convict" if self.expected.convicted else "clear"
        again = f", {len(self.read_again)} of them by another reader" if self.read_again else ""
        return f"open: read {self.expected.verdicts:,} more to {aim} this site, at the present rate{again}"


def decided(audit: SiteAudit, plan: ReviewPlan, verdicts: Sequence[ReviewVerdict]) -> ReviewAnswer:
    """The answer by the random part of the queue, taken in its order up to the first sample that nobody has read.

    Verdicts beyond it, and on samples that were chosen, do not enter: who picks what to read picks the share. Each
    reader counts once a label, an adjudicator as another; "cannot tell" counts for nothing.
    """
    said: dict[str, dict[str, bool | None]] = {}
    for one in verdicts:
        said.setdefault(one.id, {})[one.reader] = one.wrong
    counts: Counter[tuple[int, int]] = Counter()
    again = []
    for name in takewhile(said.__contains__, plan.random):
        told = [wrong for wrong in said[name].values() if wrong is not None]
        if told:
            counts[sum(told), len(told)] += 1
            if all(told) and len(told) < MOST_READERS:
                again.append(name)
    readings: dict[tuple[int, int], float] = dict(counts)
    logs = {CONVICTED: conviction(readings), WITHDRAWN: withdrawal(readings)}
    reached = [name for name, log_e in logs.items() if log_e >= math.log(EVIDENCE)]
    answer = audit.finding.review or (reached[0] if reached else OPEN)
    labels = sum(counts.values())
    left = max(min(int((~audit.is_test).sum()), MOST_TO_DECIDE) - labels, 0)
    return ReviewAnswer(
        answer=answer,
        convicted=_e_value(logs[CONVICTED]),
        withdrawn=_e_value(logs[WITHDRAWN]),
        labels=labels,
        verdicts=sum(n * count for (_, n), count in counts.items()),
        planned=len(plan.random),
        share=share_read(readings),
        read_again=tuple(again),
        expected=expected_end(readings, left) if answer == OPEN else None,
    )


def _e_value(log_e: float) -> float:
    return math.exp(min(log_e, 700.0))


def decision_note(audit: SiteAudit, found: ReviewAnswer) -> LedgerNote:
    """The ledger's entry of an answer, for the labels that the site has now."""
    body = {
        "answer": found.answer,
        "labels": audit.labels_digest(),
        "read": found.labels,
        "verdicts": found.verdicts,
        "share": asdict(found.share),
    }
    return LedgerNote(DECISION, body)


def standing(audit: SiteAudit, entries: Sequence[LedgerEntry]) -> LedgerEntry | None:
    """The first decision on the labels as they are: later verdicts do not change it, changed labels end it."""
    now = audit.labels_digest()
    held = effective(entries, (DECISION,))
    return next((entry for entry in held if entry.body is not None and entry.body["labels"] == now), None)


@dataclass(frozen=True)
class ReviewStatus:
    """What the verdicts say so far."""

    site: str
    answer: ReviewAnswer
    """Whether the site has wrong labels."""
    list_drawn_from: int
    """Training samples on the list that the plan was drawn from, the audit's own: all shares here are of it."""
    listed_now: int
    """On the list as it is now."""
    recalibrated: bool
    """Whether verdicts have made another list since."""
    arms: tuple[ReviewArm, ...]
    precision: ShareEstimate
    """Share of the list that is wrong."""
    missed: ShareEstimate
    """Of all wrong labels, the share that is not on the list."""
    outside_plan: int
    """Verdicts on samples that no arm drew; they count for corrections only."""
    blind: Mapping[str, int]
    shown: Mapping[str, int]
    """Flagged samples of the queue without and with a proposal: how many were reviewed, how many were wrong."""
    readers: Mapping[str, int]
    agreement: tuple[ReaderAgreement, ...]
    to_adjudicate: tuple[str, ...]
    within: float
    advice: tuple[str, ...]


def status(
    audit: SiteAudit, plan: ReviewPlan, verdicts: Sequence[ReviewVerdict], within: float = WITHIN
) -> ReviewStatus:
    """Precision of the list and share missed, with intervals, agreement of readers, and what to do next."""
    checked_precision(within)
    settled = settle(verdicts)
    arms = tuple(_arm(name, plan, settled.final) for name in ARMS)
    listed, unlisted = [arm.counted for arm in arms[:2]], arms[2].counted
    in_plan = plan.arm_of()
    blind = {item.id: item.blind for item in plan.items if item.arm != UNFLAGGED}
    readers: dict[str, int] = {}
    for key in {(one.id, one.reader) for one in verdicts}:
        readers[key[1]] = readers.get(key[1], 0) + 1
    return ReviewStatus(
        site=audit.site,
        answer=decided(audit, plan, verdicts),
        list_drawn_from=plan.sizes[WORST] + plan.sizes[FLAGGED],
        listed_now=int((audit.flagged & ~audit.is_test).sum()),
        recalibrated=audit.before is not None,
        arms=arms,
        precision=combined_share(listed, numpy_generator(plan.seed, "review", "precision")),
        missed=share_missed(listed, unlisted, numpy_generator(plan.seed, "review", "missed")),
        outside_plan=sum(name not in in_plan for name in settled.final),
        blind=_tally(settled.final, [name for name, hidden in blind.items() if hidden]),
        shown=_tally(settled.final, [name for name, hidden in blind.items() if not hidden]),
        readers=dict(sorted(readers.items())),
        agreement=_agreements(verdicts),
        to_adjudicate=settled.open,
        within=within,
        advice=tuple(_advice(arms, within, settled)),
    )


def _arm(name: str, plan: ReviewPlan, final: Mapping[str, ReviewVerdict]) -> ReviewArm:
    ids = [item.id for item in plan.items if item.arm == name]
    verdicts = [final[k].wrong for k in ids if k in final]
    wrong, reviewed = sum(w is True for w in verdicts), sum(w is not None for w in verdicts)
    low, high = wrong_of_all(wrong, reviewed, plan.sizes[name] - (len(verdicts) - reviewed))
    return ReviewArm(
        name,
        plan.sizes[name],
        len(ids),
        reviewed,
        wrong,
        len(verdicts) - reviewed,
        wrong / reviewed if reviewed else math.nan,
        low,
        high,
    )


def _tally(final: Mapping[str, ReviewVerdict], ids: Sequence[str]) -> dict[str, int]:
    verdicts = [final[name].wrong for name in ids if name in final]
    return {"reviewed": sum(w is not None for w in verdicts), "wrong": sum(w is True for w in verdicts)}


def _agreements(verdicts: Sequence[ReviewVerdict]) -> tuple[ReaderAgreement, ...]:
    by_reader: dict[str, dict[str, tuple[str, ...]]] = {}
    for one in verdicts:
        if not one.adjudicates:
            by_reader.setdefault(one.reader, {})[one.id] = _said(one)
    found = []
    for first, second in combinations(sorted(by_reader), 2):
        shared = sorted(set(by_reader[first]) & set(by_reader[second]))
        if shared:
            a, b = ([by_reader[who][name] for name in shared] for who in (first, second))
            found.append(
                ReaderAgreement(first, second, len(shared), sum(x == y for x, y in zip(a, b)), cohen_kappa(a, b))
            )
    return tuple(found)


def _advice(arms: Sequence[ReviewArm], within: float, settled: SettledLabels) -> Iterable[str]:
    """What to do next, in words."""
    worst, flagged, unflagged = arms
    points = f"±{100 * within:g} points"
    if settled.open:
        several = len(settled.open) > 1
        yield (
            f"{len(settled.open)} {'samples are' if several else 'sample is'} read differently: let a third reader "
            f"adjudicate {'them' if several else 'it'}"
        )
    if flagged.size:
        if flagged.reviewed:
            yield _more(flagged, needed(flagged.share, within), f"the precision of the list within {points}")
        else:
            yield "nobody has looked at the random part of the list: its precision is not known yet"
    elif worst.size > worst.reviewed + worst.cannot_tell:
        yield f"{worst.size - worst.reviewed - worst.cannot_tell} of the list are still to review"
    if unflagged.size:
        if unflagged.reviewed and not math.isnan(found := _listed_wrong(worst, flagged)):
            missed = unflagged.size * unflagged.share
            total = found + missed
            # d/dq of U q / (F p + U q) turns a precision of the share missed into one of q
            slope = unflagged.size * found / total**2 if total > 0 else math.inf
            q_within = min(0.49, within / slope) if 0 < slope < math.inf else within
            wanted = needed(unflagged.share, max(q_within, 1e-4))
            yield _more(unflagged, wanted, f"the share missed within about {points}")
        else:
            yield "the share of wrong labels that the list misses is not known before unflagged samples are reviewed"


def _listed_wrong(worst: ReviewArm, flagged: ReviewArm) -> float:
    return sum(arm.size * arm.share for arm in (worst, flagged) if arm.size)


def _more(arm: ReviewArm, wanted: int, what: str) -> str:
    more = min(wanted, arm.size) - arm.reviewed
    name = "flagged" if arm.name == FLAGGED else "unflagged"
    if more <= 0:
        return f"enough {name} samples are reviewed to know {what}"
    return f"review {more:,} more of the {name} samples to know {what}"


def outcomes(
    audit: SiteAudit, plan: ReviewPlan, verdicts: Iterable[ReviewVerdict]
) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.float64]]:
    """(row numbers, whether the given label is wrong, weights) of the plan's settled verdicts, for recalibration.

    Arms were drawn by score, so each verdict counts by the number of labels that it stands for: size / reviewed of its
    arm. Verdicts outside the plan were picked by people and are left out.
    """
    final, arm_of = settle(verdicts).final, plan.arm_of()
    judged = sorted(
        (audit.row_of[k], bool(one.wrong), arm_of[k])
        for k, one in final.items()
        if k in audit.row_of and k in arm_of and one.wrong is not None
    )
    reviewed = Counter(arm for _, _, arm in judged)
    weights = [plan.sizes[arm] / reviewed[arm] for _, _, arm in judged]
    rows, wrong = [k for k, _, _ in judged], [w for _, w, _ in judged]
    return np.array(rows, np.int64), np.array(wrong, np.bool_), np.array(weights, np.float64)


def known_labels(audit: SiteAudit, verdicts: Iterable[ReviewVerdict]) -> dict[str, tuple[str, ...]]:
    """Sample to class names that people settled on, for an audit that takes them as known. "both" settles nothing."""
    final = settle(verdicts).final
    return {k: one.labels for k, one in final.items() if one.wrong is not None and one.decision != "both"}
