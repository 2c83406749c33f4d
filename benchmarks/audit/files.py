"""Where the results of the label audit's benchmark are, and in which order the page shows them."""

from __future__ import annotations

from pathlib import Path

RESULTS = Path(__file__).parent / "results"
CAUSES, CHEST, CLEAN = RESULTS / "causes.csv", RESULTS / "chest.csv", RESULTS / "clean.csv"
JOINT, SPEED, VERDICTS = RESULTS / "joint.csv", RESULTS / "speed.csv", RESULTS / "verdicts.csv"
ACCUSATIONS = RESULTS / "accusations.csv"
REVIEWS = RESULTS / "reviews.csv"
REVIEWS_KEY = ("readers", "shared_mistakes", "reader_error", "share_wrong")
ACCUSATIONS_KEY = ("family", "cell", "seed")
CAUSES_KEY = ("number", "seed")
"""`number` is the place of a case on the page."""
JOINT_KEY = ("scenario", "seed", "method")
MOMENTS = (12, 30)
"""Rounds through T after which joint training is judged: as many as the tempered model is trained, and more."""
METHODS = (
    "tempered (ours)",
    *(f"joint, {rounds} rounds{then}" for rounds in MOMENTS for then in ("", ", then tempered")),
    "retrained on posteriors, then tempered",
)
COMPARED = (
    "digits-equal-10",
    "ham10000-instance-natural-4",
    "cifar10n-mixed-skewed-20",
    "cifar10n-worse-equal-20",
)
"""Scenarios in which joint training is compared."""
REVIEWED = ("cifar10n-mixed-skewed-20", "cifar10n-mixed-equal-20")
"""Scenarios in which a hundred verdicts a site are given."""
MISTAKEN = 0.1
"""Share of the verdicts that are wrong."""
