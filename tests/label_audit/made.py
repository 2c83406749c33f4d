"""Made-up audits: bundled digits with labels corrupted by a known rule and probabilities drawn around the truth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from fedsift.label_audit.site_audit import AuditFinding, SampleEvidence, SiteAudit, Thumbnails, WrongShare
from fedsift.label_audit.writing import array_thumbnails

HOSTILE = (
    '</script><script>alert("x")</script>',
    '=HYPERLINK("http://x","y")',
    'a|b & c\'d "e" <u>',
    "\u202egnp.exe",
    "line\nbreak\ttab",
    "@cmd",
    "-1+1",
    "名前 ñ 🙂",
)


def digits_audit(
    n: int = 400,
    *,
    seed: int = 0,
    wrong: float = 0.15,
    classes: Sequence[str] = (),
    test: int = 0,
    **changes: Any,
) -> tuple[SiteAudit, np.ndarray[Any, Any]]:
    """(the audit, the true labels) of n digits; the last `test` of them are test samples."""
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, 1797, n)
    true = load_digits().target[rows]
    given = true.copy()
    bad = rng.random(n) < wrong
    given[bad] = (true[bad] + rng.choice([1, 3, 5], bad.sum())) % 10
    probability = rng.dirichlet(np.full(10, 0.05), n) * 0.4
    seen = np.where(rng.random(n) < 0.06, rng.integers(0, 10, n), true)  # the model is wrong now and then, too
    probability[np.arange(n), seen] += 0.6
    return make_audit(
        given,
        probability,
        classes=tuple(classes) or tuple(f"digit {k}" for k in range(10)),
        ids=tuple(f"sample-{k:04d}" for k in range(n)),
        paths=tuple(f"pictures/{k:04d}.png" for k in range(n)),
        split=tuple("test" if k >= n - test else "train" for k in range(n)),
        **changes,
    ), true


def make_audit(given: Any, probability: Any, *, classes: Sequence[str], **changes: Any) -> SiteAudit:
    """An audit of one-class labels from posteriors `[n, K]`; the likeliest class is proposed for labels below 1/2."""
    given, probability = np.asarray(given, np.int64), np.asarray(probability, np.float64)
    n, k = len(given), len(classes)
    wrong = 1 - probability[np.arange(n), given] if n else np.zeros(0)
    predicted = probability.argmax(axis=1) if n else np.zeros(0, np.int64)
    flagged = wrong > 0.5
    share = float(flagged.mean()) if n else 0.0
    agreement = np.zeros((k, k), np.int64)
    np.add.at(agreement, (given, predicted), 1)
    fields: dict[str, Any] = {
        "site": "A",
        "classes": tuple(classes),
        "multilabel": False,
        "ids": tuple(str(i) for i in range(n)),
        "given": given,
        "probability": probability,
        "probability_wrong": wrong,
        "predicted": predicted,
        "proposed": np.where(flagged, predicted, given),
        "flagged": flagged,
        "reason": tuple("model disagrees" if flag else "" for flag in flagged),
        "rate": WrongShare(share, max(0.0, share - 0.03), min(1.0, share + 0.03)),
        "finding": AuditFinding(bool(flagged.any()), 0.05),
        "agreement": agreement,
        "evidence": SampleEvidence("5 folds, site-aware posterior", 12, "ab" * 32),
    }
    return SiteAudit(**{**fields, **changes})


def hostile_audit(**changes: Any) -> SiteAudit:
    """Eight samples, every one suspect, whose classes, names and paths are hostile."""
    names: dict[str, Any] = {"classes": HOSTILE, "ids": HOSTILE, "paths": HOSTILE}
    return make_audit([0] * 8, [[0.1, *[0.9 / 7] * 7]] * 8, **{**names, **changes})


def odd_audits() -> list[SiteAudit]:
    """One sample that is fine, one that is not, one class alone, and nothing at all."""
    return [
        make_audit([0], [[0.9, 0.1]], classes=("a", "b")),
        make_audit([0], [[0.1, 0.9]], classes=("a", "b")),
        make_audit([0, 0], [[1.0], [1.0]], classes=("only",)),
        make_audit([], np.zeros((0, 2)), classes=("a", "b")),
    ]


def multilabel_audit(n: int = 120, seed: int = 0, **changes: Any) -> SiteAudit:
    """Chest-like findings: entries with a probability above 1/2 of being wrong are flipped in the proposal."""
    rng = np.random.default_rng(seed)
    classes = ("Effusion", "Mass", "Nodule")
    given = (rng.random((n, 3)) < 0.3).astype(np.int64)
    probability = rng.beta(0.3, 1.5, (n, 3))
    bad = probability > 0.5
    proposed = np.where(bad, 1 - given, given)
    right, one = ~bad, given == 1
    agreement = np.stack([(right & ~one).sum(0), (bad & ~one).sum(0), (bad & one).sum(0), (right & one).sum(0)], 1)
    fields: dict[str, Any] = {
        "site": "chest",
        "classes": classes,
        "multilabel": True,
        "ids": tuple(f"x{k}" for k in range(n)),
        "paths": tuple(f"x/{k}.png" for k in range(n)),
        "given": given,
        "probability": probability,
        "probability_wrong": 1 - np.prod(1 - probability, axis=1),
        "predicted": proposed,
        "proposed": proposed,
        "flagged": bad.any(axis=1),
        "reason": tuple("model disagrees" if row.any() else "" for row in bad),
        "rate": WrongShare(0.2, 0.15, 0.25),
        "finding": AuditFinding(True, 0.05),
        "agreement": agreement,
        "evidence": SampleEvidence("averaged margins", 3, "cd" * 32),
    }
    return SiteAudit(**{**fields, **changes})


def digit_pictures(n: int, seed: int = 0) -> Thumbnails:
    """The pictures that belong to `digits_audit(n, seed=seed)`."""
    rows = np.random.default_rng(seed).integers(0, 1797, n)
    images = (load_digits().images[rows] * 15.9).astype(np.uint8)[:, None]
    thumbnails = array_thumbnails(np.kron(images, np.ones((1, 1, 4, 4), np.uint8)))
    assert thumbnails is not None
    return thumbnails
