"""`python -m benchmarks.verdicts.rates`: how often the tested way accuses a clean federation, and whom it finds.

Simulated federations whose truth is known, by the thousand, and small real ones of handwritten digits through FedNoRo.
Their seeds are others than those on which the test's constants were chosen. One line a kind of federation in
results/rates.csv as it comes; docs/detection.md shows the tables and sentences that `page()` makes of them.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.files import read_list, write_list
from benchmarks.section import Section
from tests.detection.loss_tables import federation, papers_split

from fedsift.detection.group_test import tested_split
from fedsift.formulas.intervals import wilson

RESULTS = Path(__file__).parent / "results" / "rates.csv"
KEY = ("sites", "effect", "level", "rate", "rho")
SECTION = Section("detection.md", "python -m benchmarks.verdicts.rates --page", "rates")
SEED = 20261118
SHARE = 0.4
"""Of the sites that are noisy, where some are."""
LEVELS = ((0.3, 0.5), (0.5, 0.7))
RATES = (0.05, 0.1, 0.2)
HARDEST = (10, 0.3, LEVELS[0])
"""Sites, how much they differ, noise: where the choice of the rate is looked at."""
# Simulated federations


def kinds() -> Iterator[dict[str, Any]]:
    """What is simulated: clean federations, and noisy ones at several rates where it is hardest."""
    for sites in (10, 20):
        for effect in (0.1, 0.3, 0.5):
            yield {"sites": sites, "effect": effect, "level": None, "rate": RATES[0]}
        for effect in (0.1, 0.3):
            for level in LEVELS:
                hardest = (sites, effect, level) == HARDEST
                for rate in RATES if hardest else RATES[:1]:
                    yield {"sites": sites, "effect": effect, "level": list(level), "rate": rate}


def simulated(kind: dict[str, Any], federations: int) -> dict[str, Any]:
    """Counts over federations of one kind: sites that are noisy, found and named, by the test and by the paper."""
    sites, level = kind["sites"], kind["level"] or LEVELS[0]
    noisy = int(SHARE * sites) if kind["level"] else 0
    count = dict.fromkeys(("accused", "noisy", "found", "named", "papers_accused", "papers_found", "papers_named"), 0)
    for number in range(federations):
        rng = np.random.default_rng((SEED, sites, number))
        table, bad = federation(rng, sites, noisy, *level, effect=kind["effect"])
        ours = tested_split(table, rng, kind["rate"], shakes=0).noisy
        theirs = papers_split(table)
        count["noisy"] += noisy
        for found, before in ((ours, ""), (theirs, "papers_")):
            count[f"{before}accused"] += len(found) > 0
            count[f"{before}found"] += int(bad[found].sum())
            count[f"{before}named"] += len(found)
    return {**kind, "federations": federations, **count}


def skewed(deviation: float, sites: int, federations: int) -> dict[str, Any]:
    """Clean federations with one value a site, lognormal: more skewed than any group that the test allows for."""
    accused = 0
    for number in range(federations):
        rng = np.random.default_rng((SEED, 1, sites, number))
        values = np.exp(rng.normal(0.0, deviation, sites))[:, None]
        accused += len(tested_split(values, rng, RATES[0], shakes=0).noisy) > 0
    return {"skewed": deviation, "sites": sites, "federations": federations, "accused": accused}


def mostly_noisy(share: float, sites: int, federations: int) -> dict[str, Any]:
    """Federations in which the clean sites are the few."""
    count = {"noisy": 0, "found": 0, "accused": 0}
    for number in range(federations):
        rng = np.random.default_rng((SEED, 2, sites, number))
        table, bad = federation(rng, sites, int(share * sites), 0.3, 0.7)
        found = tested_split(table, rng, RATES[0], shakes=0).noisy
        count["noisy"] += int(bad.sum())
        count["found"] += int(bad[found].sum())
        count["accused"] += len(found) > 0
    return {"share": share, "sites": sites, "federations": federations, **count}


LIMITS = [
    ("skewed", 0.25, skewed),
    ("skewed", 0.5, skewed),
    ("skewed", 1.0, skewed),
    ("share", 0.8, mostly_noisy),
]
"""Where it is not expected to hold."""

# Real ones

REAL = "digits"


def real(sites: int, rho: float, federations: int) -> dict[str, Any]:
    """FedNoRo on handwritten digits, classes spread unevenly, told by the test and by the paper's mixture."""
    from fedsift.protocol.findings import Findings
    from fedsift.study.running import new_run, run
    from fedsift.study.scenarios import preset_table
    from fedsift.study.study import Study
    from fedsift.study.toml_tables import apply_overrides

    count = dict.fromkeys(("accused", "noisy", "found", "named", "papers_accused", "papers_found", "papers_named"), 0)
    for number in range(federations):
        for detection, before in (("tested", ""), ("paper", "papers_")):
            settings = [
                'model.name="mlp"',
                f"partition={{name='bernoulli-dirichlet', sites={sites}, p=0.9, alpha=2.0}}",
                f"noise={{name='fedcorr', rho={rho}, tau=0.3, sites='exact'}}" if rho else "noise={name='clean'}",
                f"method={{name='fednoro', rounds=6, warm_up=6, detection='{detection}'}}",
                f"seed={SEED + number}",
                "evaluate.every=1000",
            ]
            study = Study.from_table(apply_overrides(preset_table("extra/freeloader-small"), settings))
            with tempfile.TemporaryDirectory() as place:
                folder = new_run(study, Path(place))
                run(study, folder)
                rows = folder.rounds()
            federated = study.load_data()
            found, truth = Findings.last(rows), federated.truth
            assert found is not None and truth is not None
            bad = set(truth.noisy)
            count["noisy"] += len(bad) if not before else 0
            count[f"{before}accused"] += len(found.noisy) > 0
            count[f"{before}found"] += len(bad & set(found.noisy))
            count[f"{before}named"] += len(found.noisy)
    return {"real": REAL, "sites": sites, "rho": rho, "federations": federations, **count}


def reals() -> Iterator[tuple[int, float]]:
    for sites in (10, 20):
        for rho in (0.0, SHARE):
            yield sites, rho


# The page


def page(results: list[dict[str, Any]]) -> str:
    """The section of docs/detection.md."""
    clean = [line for line in results if "level" in line and line["level"] is None]
    noisy = [line for line in results if line.get("level") is not None]
    usual = [line for line in noisy if line["rate"] == RATES[0]]
    parts = [_about(clean, usual), _clean_table(clean), _noisy_table(usual), _what_is_lost(usual)]
    loose = [line for line in noisy if (line["sites"], line["effect"], tuple(line["level"])) == HARDEST]
    if len(loose) == len(RATES):
        told = ", ".join(f"{_share(line['found'], line['noisy'])} at {line['rate']:g}" for line in loose)
        parts.append(
            "**A looser rate.** `false_alarm` is a setting of FedNoRo and FedCorr. Recall at "
            f"{HARDEST[0]} sites that differ by {HARDEST[1]:g}, noise {HARDEST[2][0]:g}-{HARDEST[2][1]:g}: {told}. The "
            "probabilities are given whatever the rate."
        )
    own = [line for line in results if "real" in line]
    if own:
        parts += [
            "**Real losses.** FedNoRo's tables of handwritten digits, a network with one hidden layer after 6 rounds, "
            f"classes spread unevenly, {SHARE:.0%} of the sites with 30 % wrong labels or more:",
            _real_table(own),
        ]
    parts += _limits(clean, results)
    return "\n\n".join(parts)


def _limits(clean: list[dict[str, Any]], results: list[dict[str, Any]]) -> list[str]:
    """Where the stated rate is exceeded, or little is found."""
    over = [
        f"clean sites whose difficulty differs by e^(±{line['effect']:g}) ({line['sites']} sites): "
        f"{_rate(line['accused'], line['federations'])} accused"
        for line in clean
        if wilson(line["accused"], line["federations"])[1] > 2 * RATES[0]
    ]
    over += [
        f"one value a site, lognormal with deviation {line['skewed']:g} ({line['sites']} sites): "
        f"{_rate(line['accused'], line['federations'])} of the clean federations accused"
        for line in results
        if "skewed" in line
    ]
    over += [
        f"{line['share']:.0%} of {line['sites']} sites noisy: {_share(line['found'], line['noisy'])} of them found, "
        f"two groups in {_rate(line['accused'], line['federations'])}; the clean few look like the tail of one group"
        for line in results
        if "share" in line
    ]
    return [
        "**Where it is not made for.** Fewer than four sites cannot be tested.",
        "\n".join(f"- {each}." for each in over),
    ]


def _about(clean: list[dict[str, Any]], usual: list[dict[str, Any]]) -> str:
    return (
        "Simulated federations of ten classes, each site lacking a fifth of them and holding the others unevenly; "
        "right labels cost an exponential loss, wrong ones about 2 more. Clean sites differ in difficulty by a factor "
        f"of e^(±0.1) or, harder, e^(±0.3) and e^(±0.5). {clean[0]['federations']} clean federations of each kind, "
        f"{usual[0]['federations']} with {SHARE:.0%} noisy sites, with other seeds than those on which the constants "
        "were chosen; in brackets 95 % intervals (Wilson)."
    )


def _clean_table(clean: list[dict[str, Any]]) -> str:
    lines = [
        "| sites | sites differ by | clean federations accused | by the paper's split |",
        "|---|---|---|---|",
    ]
    for line in clean:
        ours = _rate(line["accused"], line["federations"])
        lines.append(
            f"| {line['sites']} | {line['effect']:g} | {ours} | {line['papers_accused']} of {line['federations']} |"
        )
    return "\n".join(lines)


def _noisy_table(usual: list[dict[str, Any]]) -> str:
    lines = [
        "| sites | sites differ by | noise level | recall | precision | recall, paper's | precision, paper's |",
        "|---|---|---|---|---|---|---|",
    ]
    for line in usual:
        cells = [
            line["sites"],
            f"{line['effect']:g}",
            f"{line['level'][0]:g}-{line['level'][1]:g}",
            _share(line["found"], line["noisy"]),
            _share(line["found"], line["named"]),
            _share(line["papers_found"], line["noisy"]),
            _share(line["papers_found"], line["papers_named"]),
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def _what_is_lost(usual: list[dict[str, Any]]) -> str:
    """Of the federations in which two groups were found, how many of the noisy sites were named."""
    shares = [line["found"] / (line["accused"] * line["noisy"] / line["federations"]) for line in usual]
    below = [line for line in usual if line["found"] < line["papers_found"]]
    lost = (
        f"What is lost is lost by not rejecting: once two groups are found, {min(shares):.0%} to {max(shares):.0%} of "
        "the noisy sites are named."
    )
    if not below:
        return f"{lost} The recall is nowhere below the paper's."
    named = "; ".join(f"{line['sites']} sites, {line['effect']:g}, from {line['level'][0]:g}" for line in below)
    return f"{lost} The recall is below the paper's in: {named}."


def _real_table(own: list[dict[str, Any]]) -> str:
    names = [f"{'noisy' if line['rho'] else 'clean'} federations of {line['sites']} sites" for line in own]
    lines = [f"| | {' | '.join(names)} |", "|---" * (len(own) + 1) + "|"]
    for label, before in (("tested", ""), ("paper's", "papers_")):
        cells = []
        for line in own:
            if line["rho"]:
                right, named = line[f"{before}found"], line[f"{before}named"]
                cells.append(f"{right} of {line['noisy']} noisy sites found, {named - right} others named")
            else:
                cells.append(f"{line[f'{before}accused']} of {line['federations']} accused")
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.3f}" if whole else "–"


def _rate(part: int, whole: int) -> str:
    low, high = wilson(part, whole)
    return f"{part / whole:.1%} ({low:.1%}-{high:.1%})"


def read() -> list[dict[str, Any]]:
    return read_list(RESULTS)


def body() -> str:
    return page(read())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", action="store_true", help="only write the section of docs/detection.md")
    parser.add_argument("--clean", type=int, default=400, help="clean federations of each kind")
    parser.add_argument("--noisy", type=int, default=200, help="noisy federations of each kind")
    parser.add_argument("--real", type=int, default=10, help="federations of digits of each kind")
    options = parser.parse_args()
    if options.page:
        SECTION.write(body())
        return
    results = read()

    def keep(line: dict[str, Any]) -> None:
        results.append(line)
        print(json.dumps(line), flush=True)
        write_list(RESULTS, results, KEY)

    for kind in kinds():
        if not any(kind.items() <= line.items() for line in results):
            keep(simulated(kind, options.noisy if kind["level"] else options.clean))
    for key, value, measure in LIMITS:
        if not any(line.get(key) == value for line in results):
            keep(measure(value, 20, options.noisy))
    for sites, rho in reals():
        if not any((line.get("sites"), line.get("rho")) == (sites, rho) for line in results):
            keep(real(sites, rho, options.real))


if __name__ == "__main__":
    main()
