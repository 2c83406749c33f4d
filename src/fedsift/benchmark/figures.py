"""What a table reads off a run: a figure by its name. This module imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsift.core.errors import ConfigError
from fedsift.core.registry import nearest
from fedsift.runs.reading import LAST, targeted_cost

SCORES = ("accuracy", "bacc", "auc", "map", "mean_site_accuracy")
PARTS = ("best", "last", "final")
COUNTS = ("rounds", "participations", "bytes_down", "bytes_up")
VISITS = "visits-to"
"""`visits-to.0.8`: how many times a site took part until the test accuracy first was 0.8 (FedCorr, C.3)."""
SITE = "site"
"""`site.1`: the final accuracy of the first site's own model."""
DETECTION = ("recall", "precision", "exact")
CORRECTIONS = ("noise_before", "noise_after", "fixed", "harmed", "missed")
WORDS = {
    "accuracy": "accuracy",
    "bacc": "balanced accuracy",
    "auc": "AUC",
    "map": "mAP",
    "mean_site_accuracy": "mean accuracy of the sites' models",
    "best": "best round",
    "last": "mean of the last {} rounds",
    "final": "last round",
}


def check_figure(name: str) -> None:
    """Refuse a name that no run can have."""
    head, _, tail = name.partition(".")
    known = [f"{score}.{part}" for score in SCORES for part in PARTS]
    known += [*COUNTS, *(f"detection.{part}" for part in DETECTION)]
    known += [f"corrections.{part}" for part in CORRECTIONS]
    if name in known or (head == VISITS and _share(tail)) or (head == SITE and tail.isdigit() and int(tail) > 0):
        return
    raise ConfigError(f"unknown figure '{name}'.{nearest(name, known)}")


def _share(text: str) -> bool:
    try:
        return 0 < float(text) < 1
    except ValueError:
        return False


def value_of(outcome: Mapping[str, Any], name: str) -> float | None:
    """The figure of one run, in per cent where it is a share; None where the run has none."""
    head, _, tail = name.partition(".")
    if head == VISITS:
        return _visits(outcome, float(tail))
    if head == SITE:
        sites = outcome.get("site_accuracy", [])
        return None if len(sites) < int(tail) else 100.0 * float(sites[int(tail) - 1][1])
    if name in COUNTS:
        return float(outcome[name])
    if head in ("detection", "corrections"):
        found = outcome.get(head, {}).get(tail)
        if name == "detection.recall" and not outcome.get(head, {}).get("truth", True):
            return None  # where no site is noisy there is none to find
        count = tail in ("fixed", "harmed", "missed")
        return None if found is None else float(found) * (1.0 if count else 100.0)
    found = outcome.get("scores", {}).get(head, {}).get(tail)
    return None if found is None else 100.0 * float(found)


def _visits(outcome: Mapping[str, Any], target: float) -> float | None:
    curve = outcome.get("curve", {})
    visits, accuracy = curve.get("visits", []), curve.get("accuracy", [])
    each = [now - before for before, now in zip([0, *visits], visits)]
    known = [float("nan") if value is None else value for value in accuracy]
    found = targeted_cost(known, each, target)
    return None if found is None else float(found)


def is_target(name: str) -> bool:
    """Whether it counts visits until a target, which a run may never reach."""
    return name.partition(".")[0] == VISITS


def visits_made(outcome: Mapping[str, Any]) -> float:
    """How often a site took part in a run."""
    return float(outcome["participations"])


def lower_is_better(name: str) -> bool:
    head, _, tail = name.partition(".")
    return head == VISITS or tail in ("noise_after", "harmed", "missed") or name in COUNTS


def digits(name: str) -> int:
    """Decimals to show: none for counts."""
    head, _, tail = name.partition(".")
    return 0 if head == VISITS or name in COUNTS or tail in ("fixed", "harmed", "missed") else 2


def judged_rounds(outcome: Mapping[str, Any], name: str) -> int:
    """Rounds of a run in which the score of a figure was taken."""
    curve = outcome.get("curve", {}).get(name.partition(".")[0], [])
    return sum(value is not None for value in curve)


def words(name: str, averaged: tuple[int, int] = (LAST, LAST)) -> str:
    """The figure in a person's words; averaged: the fewest and the most rounds over which `last` is the mean."""
    head, _, tail = name.partition(".")
    if head == VISITS:
        return f"visits of sites until {100 * float(tail):g} % test accuracy"
    if head == SITE:
        return f"accuracy of site {tail}'s model, last round"
    if head in SCORES:
        fewest, most = averaged
        rounds = f"{most}" if fewest == most else f"{fewest} to {most}"
        part = WORDS[tail].format(rounds) if most > 1 else WORDS[tail if tail != "last" else "final"]
        return f"{WORDS[head]}, {part}"
    return {"detection": "noisy sites: ", "corrections": "labels: "}.get(head, "") + (tail or head).replace("_", " ")
