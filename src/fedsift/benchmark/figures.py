"""Figures that a table can show, by name (`accuracy.best`, `visits-to.0.8`), read from runs. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
REFUSED, CURVE, CONFIDENCE = "refused", "curve.accuracy", "confidence"
KEPT_NOTE = "architecture only"
"""How notes of a run begin that a table repeats."""
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


def figures_of(outcome: Mapping[str, Any]) -> dict[str, Any]:
    """Every figure of a run by its name, shares as shares; `accuracy.rounds` are the rounds in which it was scored.

    `curve.accuracy` has the points at which the accuracy rose above all before, as `visits:accuracy visits:accuracy`;
    `confidence.clean` and `confidence.noisy` the share of the weights that each such site had at the end.
    """
    found = {name: outcome[name] for name in (*COUNTS, REFUSED) if name in outcome}
    curve = outcome.get("curve", {})
    for score in SCORES:
        parts = outcome.get("scores", {}).get(score, {})
        found.update({f"{score}.{part}": parts[part] for part in PARTS if part in parts})
        if score in curve:
            found[f"{score}.rounds"] = sum(value is not None for value in curve[score])
    if "detection" in outcome:
        parts = outcome["detection"]
        found.update({f"detection.{part}": parts[part] for part in DETECTION if part in parts})
        if "truth" in parts:
            found["detection.noisy"] = len(parts["truth"])
    if "corrections" in outcome:
        parts = outcome["corrections"]
        found.update({f"corrections.{part}": parts[part] for part in CORRECTIONS if part in parts})
    found.update({f"{SITE}.{n}": value for n, (_, value) in enumerate(outcome.get("site_accuracy", ()), 1)})
    found.update(_confidence(outcome.get("sites", ())))
    if "accuracy" in curve:
        found[CURVE] = _rises(curve["visits"], curve["accuracy"])
    if outcome.get("oracle"):
        found["oracle"] = outcome["oracle"]
    if notes := [note for note in outcome.get("notes", ()) if note.startswith(KEPT_NOTE)]:
        found["notes"] = notes
    return found


def _confidence(sites: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Each site's share of the confidence weights, noisy sites and clean ones apart."""
    known = [site for site in sites if site.get("confidence_weight") is not None]
    total = sum(site["confidence_weight"] for site in known)
    shares: dict[str, list[float]] = {}
    for site in known:
        kind = "noisy" if site["truth_noisy"] else "clean"
        shares.setdefault(f"{CONFIDENCE}.{kind}", []).append(site["confidence_weight"] / total)
    return shares


def _rises(visits: Sequence[int], values: Sequence[float | None]) -> str:
    points: list[str] = []
    top = -1.0
    for visit, value in zip(visits, values):
        if value is not None and value > top:
            top = value
            points.append(f"{visit}:{value!r}")
    return " ".join(points)


def value_of(figures: Mapping[str, Any], name: str) -> float | None:
    """The figure of one run, in per cent where it is a share; None where the run has none."""
    head, _, tail = name.partition(".")
    if head == VISITS:
        return _visits(figures.get(CURVE, ""), float(tail))
    if name in COUNTS:
        return float(figures[name])
    found = figures.get(name)
    if found is None or (name == "detection.recall" and not figures.get("detection.noisy", True)):
        return None  # where no site is noisy there is none to find
    return float(found) * (1.0 if tail in ("fixed", "harmed", "missed") else 100.0)


def _visits(curve: str, target: float) -> float | None:
    """The visits until the accuracy first was the target."""
    points = [point.partition(":") for point in curve.split()]
    visits = [int(before) for before, _, _ in points]
    each = [now - before for before, now in zip([0, *visits], visits)]
    found = targeted_cost([float(value) for _, _, value in points], each, target)
    return None if found is None else float(found)


def is_target(name: str) -> bool:
    """Whether it counts visits until a target, which a run may never reach."""
    return name.partition(".")[0] == VISITS


def visits_made(figures: Mapping[str, Any]) -> float:
    """How often a site took part in a run."""
    return float(figures["participations"])


def lower_is_better(name: str) -> bool:
    head, _, tail = name.partition(".")
    return head == VISITS or tail in ("noise_after", "harmed", "missed") or name in COUNTS


def digits(name: str) -> int:
    """Decimals to show: none for counts."""
    head, _, tail = name.partition(".")
    return 0 if head == VISITS or name in COUNTS or tail in ("fixed", "harmed", "missed") else 2


def judged_rounds(figures: Mapping[str, Any], name: str) -> int:
    """Rounds of a run in which the score of a figure was taken."""
    return int(figures.get(f"{name.partition('.')[0]}.rounds", 0))


def words(name: str, averaged: tuple[int, int] = (LAST, LAST)) -> str:
    """The figure in words; averaged: the fewest and the most rounds over which `last` is the mean."""
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
