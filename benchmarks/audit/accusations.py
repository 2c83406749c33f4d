"""`python -m benchmarks.audit.accusations [FAMILY ...] [--seeds 2000 ...]`: how often sites whose labels are right are
told "wrong labels", and how often noisy ones are.

A cell is a kind of federation: the model that judges, how many sites have wrong labels and of which kind, how many
samples and classes a site has, whether its pictures are harder or other than elsewhere. Every federation is a row of
`results/accusations.csv`; rows that are there are not computed again. Seeds 900 to 911 chose the settings of the
verdict; others are reported.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.audit.federation import Scene, federated_audit, federated_probabilities, standard_features
from benchmarks.audit.files import ACCUSATIONS, ACCUSATIONS_KEY
from benchmarks.audit.pictures import blank, blurred, cifar10_pictures
from benchmarks.audit.scenarios import annotators_doubt, cifar, dealt, flipped, folded, ham, numerals
from benchmarks.files import read_list, write_list
from numpy.typing import NDArray
from scipy.special import ndtri

from fedsift.data.noise.instance import corrupt_by
from fedsift.detection.label_posterior import probability_wrong
from fedsift.detection.label_rates import site_rate
from fedsift.formulas.metrics import average_precision

Labels = NDArray[np.int64]
REPORTED = tuple(range(2000, 2020))
TUNING = range(900, 912)
FARTHEST = 8.0
"""Of z: beyond it the normal distribution's tail is nothing a verdict depends on."""


@dataclass(frozen=True)
class Cell:
    """A kind of federation."""

    family: str
    """Cells that are shown together."""
    name: str
    sites: int = 10
    noisy: int = 0
    kind: str = "uniform"
    level: float = 0.3
    samples: int = 400
    """At a site, on average."""
    skew: float | None = None
    """Dirichlet parameter of the classes over the sites; None: equal parts."""
    model: str = "features"
    """features: a linear head on frozen features; numbers: on rows of a table; otherwise a network from scratch."""
    shift: str = ""
    """What is different at the first `shifted` sites, whose labels are right: disputed, blank, blurred, one class."""
    share: float = 0.0
    """Of such a site's pictures."""
    shifted: int = 3


CELLS = (
    *(Cell("noisy sites of ten", f"{n} of 10", noisy=n) for n in (0, 1, 2, 3, 5, 8)),
    *(Cell("kind of noise", kind, noisy=5, kind=kind) for kind in ("pair", "class", "instance", "people")),
    *(Cell("level of noise", f"{level:.0%}", noisy=5, level=level) for level in (0.1, 0.2, 0.5)),
    *(Cell("number of sites", f"{n} of {s}", sites=s, noisy=n) for s, n in ((5, 2), (20, 10))),
    *(Cell("samples of a site", str(n), noisy=5, samples=n) for n in (40, 100, 1000)),
    *(Cell("skewed classes", f"{n} of 10", noisy=n, skew=1.0) for n in (0, 5)),
    *(Cell("disputed pictures", f"{share:.0%}", shift="disputed", share=share) for share in (0.25, 0.5, 0.75)),
    Cell("disputed pictures", "50%, 3 of 10 noisy", noisy=3, shift="disputed", share=0.5),
    Cell("other pictures", "blank, 25%", shift="blank", share=0.25),
    Cell("other pictures", "blurred", shift="blurred", share=1.0),
    Cell("other pictures", "60% of one class", shift="one class", share=0.6),
    Cell("other pictures", "HAM10000's four places", sites=4, model="skin", samples=2500),
    *(Cell("numbers in a table", f"{n} of 10", noisy=n, model="numbers", samples=170) for n in (0, 5)),
    *(Cell("cnn from scratch", f"{count} pictures", sites=5, model="cnn", samples=count // 5)
      for count in (600, 1500, 3000)),
    Cell("cnn from scratch", "1500 pictures, 2 of 5 noisy", sites=5, noisy=2, model="cnn", samples=300),
    Cell("LeNet-5 from scratch", "1500 pictures", sites=5, model="lenet5", samples=300),
    Cell("LeNet-5 from scratch", "1500 pictures, 2 of 5 noisy", sites=5, noisy=2, model="lenet5", samples=300),
    Cell("nobody can tell who is right", "two classes swapped at 5 of 10", kind="swap", noisy=5),
    Cell("nobody can tell who is right", "all sites miss 20% alike", kind="alike", noisy=10, level=0.2),
)  # fmt: skip


# Federations
# ------------------------------------------------------------------------------


def federation(cell: Cell, seed: int) -> tuple[Scene, Labels, NDArray[np.bool_], Labels]:
    """The pictures at sites, their true labels, which sites are noisy, and each picture's row in the dataset."""
    rng = np.random.default_rng([seed, CELLS.index(cell)])
    if cell.model == "skin":
        skin = ham()
        assert skin.site is not None
        fold = folded(skin.site, skin.group, rng)
        scene = Scene(skin.features, skin.true, skin.site, fold, skin.classes)
        return scene, skin.true, np.zeros(cell.sites, np.bool_), np.arange(len(skin.true))
    held = numerals() if cell.model == "numbers" else cifar()
    rows, site = _dealt(cell, held.true, _disputed() if cell.shift == "disputed" else None, rng)
    true, features = held.true[rows], held.features[rows]
    noisy = np.zeros(cell.sites, np.bool_)
    first = cell.shifted if cell.shift else 0
    noisy[first + rng.permutation(cell.sites - first)[: cell.noisy]] = True
    features = _shifted(cell, features, rows, site, rng)
    given = _given(cell, features, true, rows, site, noisy, rng)
    return Scene(features, given, site, folded(site, None, rng), held.classes), true, noisy, rows


def _dealt(
    cell: Cell, true: Labels, disputed: NDArray[np.bool_] | None, rng: np.random.Generator
) -> tuple[Labels, Labels]:
    """Rows of the dataset, each once, and the site of each."""
    count = min(cell.sites * cell.samples, len(true))
    if disputed is None and cell.shift != "one class":
        rows = rng.permutation(len(true))[:count]
        return rows, dealt(true[rows], cell.sites, cell.skew, rng)
    wanted = disputed if disputed is not None else true == rng.integers(true.max() + 1)
    those, others = (list(rng.permutation(np.flatnonzero(mark))) for mark in (wanted, ~wanted))
    usual = float(wanted.mean())
    parts, site = [], []
    for s in range(cell.sites):
        many = round(cell.samples * (cell.share if s < cell.shifted else min(usual, 0.05)))
        own = [those.pop() for _ in range(min(many, len(those)))]
        own += [others.pop() for _ in range(min(cell.samples - len(own), len(others)))]
        parts += own
        site += [s] * len(own)
    return np.array(parts, np.int64), np.array(site, np.int64)


def _disputed() -> NDArray[np.bool_]:
    """Pictures of which at least one of CIFAR-10N's three annotators said something else."""
    held = cifar()
    assert held.given is not None
    return np.any([held.given[f"random_label{k}"] != held.true for k in (1, 2, 3)], axis=0)


def _shifted(
    cell: Cell, features: NDArray[np.float32], rows: Labels, site: Labels, rng: np.random.Generator
) -> NDArray[np.float32]:
    if cell.shift not in ("blank", "blurred"):
        return features
    there = (site < cell.shifted) & (rng.random(len(site)) < cell.share)
    instead = blurred()[rows] if cell.shift == "blurred" else np.broadcast_to(blank(), features.shape)
    return np.where(there[:, None], instead, features).astype(np.float32)


def _given(
    cell: Cell,
    features: NDArray[np.float32],
    true: Labels,
    rows: Labels,
    site: Labels,
    noisy: NDArray[np.bool_],
    rng: np.random.Generator,
) -> Labels:
    there, classes = noisy[site], int(true.max()) + 1
    wrong = there & (rng.random(len(true)) < cell.level)
    if cell.kind == "uniform":
        return flipped(true, site, np.where(noisy, cell.level, 0.0), classes, rng)
    if cell.kind == "pair":
        return np.where(wrong, (true + 1) % classes, true)
    if cell.kind == "class":  # every class has its own rate, and a class that it is mostly taken for
        own = rng.dirichlet(np.full(classes, 2.0)) * classes * cell.level
        taken = (np.arange(classes) + rng.integers(1, classes, classes)) % classes
        other = np.where(
            rng.random(len(true)) < 0.7, taken[true], (true + rng.integers(1, classes, len(true))) % classes
        )
        return np.where(there & (rng.random(len(true)) < own[true]), other, true)
    if cell.kind == "people":
        held = cifar().given
        assert held is not None
        return np.where(there, held["worse_label"][rows], true)
    if cell.kind == "instance":
        doubt, given = annotators_doubt(features, true, classes, rng), true.copy()
        for s in np.flatnonzero(noisy):
            own = np.flatnonzero(site == s)
            given[own] = corrupt_by(doubt[own], true[own], round(cell.level * len(own)), rng)
        return given
    if cell.kind == "swap":
        first, second = rng.permutation(classes)[:2]
        return np.where(there & (true == first), second, np.where(there & (true == second), first, true))
    first, second = rng.permutation(classes)[:2]  # alike: everywhere the same share of the same class
    return np.where((true == first) & (rng.random(len(true)) < 0.5), second, true)


def probabilities(cell: Cell, scene: Scene, rows: Labels, seed: int) -> NDArray[np.float64]:
    """Out-of-fold probabilities `[n, K]`, of the product's own training."""
    if cell.model in ("features", "numbers", "skin"):
        return federated_probabilities(scene, standard_features(scene), seed)[0]
    import fedsift
    from fedsift.label_audit.at_site import PROBABILITIES
    from fedsift.label_audit.running import notebooks_of
    from fedsift.runs.folder import RunFolder
    from fedsift.study.study import Study

    names = np.array([f"site-{s:02d}" for s in range(cell.sites)])
    source = fedsift.Arrays(cifar10_pictures()[rows], scene.given, site=names[scene.site])
    with tempfile.TemporaryDirectory() as place, _quiet():
        fedsift.audit(source, out=place, model=cell.model, progress=False, seed=seed)
        folder = RunFolder.open(Path(place) / "run")
        pages, _ = notebooks_of(folder, Study.from_file(folder.study_file))
    made = np.zeros((len(rows), scene.classes))
    for s, own in enumerate(scene.rows):
        made[own] = pages[names[s]][PROBABILITIES].numpy()[:, 0]
    return made


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing):
        yield


# What is measured
# ------------------------------------------------------------------------------


def measured(cell: Cell, seed: int) -> dict[str, Any]:
    """One federation: sites told, intervals that hold the truth, how far estimates are off, and the ranking."""
    started = time.process_time()
    scene, true, noisy, rows = federation(cell, seed)
    p = probabilities(cell, scene, rows, seed)
    audit = federated_audit(p, scene.given, scene.rows, scene.classes)
    wrong, score = scene.given != true, np.zeros(len(true))
    found: dict[bool, list[tuple[bool, bool, float, float]]] = {False: [], True: []}
    for s, (fit, own) in enumerate(zip(audit.fits, scene.rows, strict=True)):
        given, truth = scene.given[own], int(wrong[own].sum())
        rate = site_rate(fit, given)
        score[own] = probability_wrong(fit, given)
        z = float(np.clip(ndtri(fit.surely_wrong), -FARTHEST, FARTHEST))
        off = 100 * (rate.wrong - truth) / max(len(own), 1)
        found[bool(noisy[s])].append((rate.evidence, rate.low <= truth <= rate.high, off, z))
    row: dict[str, Any] = {"family": cell.family, "cell": cell.name, "seed": seed}
    for name, mark in (("clean", False), ("noisy", True)):
        sites = found[mark]
        row |= {
            f"{name}_sites": len(sites),
            f"{name}_told": sum(told for told, *_ in sites),
            f"{name}_covered": sum(covered for _, covered, *_ in sites),
            f"{name}_off": round(float(np.mean([off for *_, off, _ in sites])), 3) if sites else None,
            f"{name}_z": " ".join(f"{z:.2f}" for *_, z in sites),
        }
    row["ap"] = round(average_precision(wrong, score), 4) if wrong.any() else None
    row["exponent"] = round(audit.model.tempering, 3)
    row["seconds"] = round(time.process_time() - started, 1)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", help="only cells whose family begins so")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(REPORTED))
    parser.add_argument("--out", type=Path, default=ACCUSATIONS)
    chosen = parser.parse_args()
    cells = [c for c in CELLS if not chosen.families or any(c.family.startswith(f) for f in chosen.families)]
    for seed in chosen.seeds:
        for cell in cells:
            done = read_list(chosen.out)
            if any((row["family"], str(row["cell"]), row["seed"]) == (cell.family, cell.name, seed) for row in done):
                continue
            row = measured(cell, seed)
            write_list(chosen.out, [*done, row], ACCUSATIONS_KEY)
            print(*(row[key] for key in ("family", "cell", "seed", "clean_told", "noisy_told", "seconds")), flush=True)


if __name__ == "__main__":
    main()
