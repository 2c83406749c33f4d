"""`python -m benchmarks.attacks.page`: docs/attacks.md from results/; every figure on it is read from there."""

from __future__ import annotations

import dataclasses
import textwrap
from pathlib import Path
from typing import Any

from benchmarks.attacks.__main__ import ACCURACY, HONEST, read
from benchmarks.attacks.accuracy import averaging
from benchmarks.attacks.attacks import FORM, MODEL
from benchmarks.attacks.lying import FILE as LYING

from fedsift.engines.protection import GateLimits

PAGE = Path(__file__).parents[2] / "docs" / "attacks.md"
WIDTH = 118
ONE, TWO = 0.03, 0.05
"""What one hostile site may cost by default, and two with a robust rule."""
TOP = """One bad site cannot break or own a run: every reply passes a gate, and every update is judged beside
the other sites' before anything is made of it. Nothing of this changes a run without an attacker, to the last
bit. This page is made by `python -m benchmarks.attacks.page` from `benchmarks/attacks/results`."""
FIRST = """**The form.** Every field of a reply is checked against the type, shape and range that its class
declares; counts are bounded by what the site declared on joining, which the roster bounds. All of these are
refused in every exchange of every method, which the normal tests try one by one:"""
THEN = """**The update.** What has the right form is measured beside the round's other updates. Lengths are
relative to the model that was sent; where fewer than three sites answer, the stage's accepted updates are the
measure. A site may go on as far as it went before, while others went as far: honest sites with wrong labels
keep moving when the others have learnt. The keys of `[gate]` in a study:"""
MISSING = "None."
COST = """Final accuracy of averaging methods on ten equal sites of digits with clean labels, one of them
hostile, and what the worst attack costs in points. `malformed` sends all wrong forms one after another;
`absent` never answers, which is what a refused attack comes to."""
ROBUST = """Two hostile sites of ten against `aggregate = "trimmed"`, `hostile = 0.2`; methods without that key
run with their own rule."""
NEAR = """How near honest federations come to the limits, in shares of each limit: 1 would be a refusal. Digits
over ten sites; `python -m benchmarks.attacks --honest` measures those that are not in the table yet, over every kind
of skew and wrong labels, and presets on real data cut to their first rounds."""
LIES = """Sites that lie about their scores cannot be told by form. F1 of finding the noisy sites among {sites}
(40 % are noisy, half to all of their labels wrong), against the share of sites that lie: a noisy one claims the
scores of the cleanest, a clean one those of the noisiest ({seeds} federations of digits, {draws} draws of liars
each). The first check takes the loss of each site's model on {own} labelled samples of the coordinator's own;
the second the median of what the other sites, liars among them, say of it."""
ADVICE = """A claim is worth what the claimant is worth. A coordinator with labelled samples of its own should
compare: a site whose claim and whose model disagree is one to call. Asking the other sites is no substitute
where many of them are noisy: their labels make them bad judges before anybody lies."""


def filled(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), WIDTH, break_long_words=False, break_on_hyphens=False)


def points(value: float | None) -> str:
    return "ended" if value is None else f"{100 * value:.1f}"


def table(head: list[str], body: list[list[str]]) -> str:
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, rule, *body])


def results() -> dict[str, dict[str, Any]]:
    return {name: read(ACCURACY / f"{name}.json") for name in averaging()}


def loss_of(cells: dict[str, Any], key: str, base: str) -> float | None:
    """Points lost, as a share; None for a run that was ended."""
    found = cells[key]["accuracy"]
    return None if found is None else round(cells[base]["accuracy"] - found, 4)


def block(found: dict[str, dict[str, Any]], hostile: int, rule: str, most: float, extra: list[str]) -> str:
    """A table of accuracies, then the cells that cost more than they may."""
    attacks = [*extra, *MODEL]
    body, missed, unmeasured = [], [], []
    base = f"none, 0, {rule}"
    for name, cells in found.items():
        keys = {attack: f"{attack}, {hostile}, {rule}" for attack in attacks}
        if base not in cells or any(key not in cells for key in keys.values()):
            unmeasured.append(name)
            continue
        lost = {attack: loss_of(cells, key, base) for attack, key in keys.items()}
        numbers = [value for value in lost.values() if value is not None]
        worst = max(numbers, default=0.0)
        body.append(
            [
                name,
                points(cells[base]["accuracy"]),
                *(points(cells[key]["accuracy"]) for key in keys.values()),
                points(worst),
            ]
        )
        missed += [
            f"{name} under {attack} ({'the run ended' if value is None else f'{100 * value:.1f} points'})"
            for attack, value in lost.items()
            if value is None or value > most
        ]
    text = table(["method", "nobody", *attacks, "worst"], body)
    text += f"\n\nCells that cost more than {100 * most:.0f} points:\n"
    text += "\n".join(f"- {each}" for each in missed) if missed else f"- {MISSING.lower().rstrip('.')}"
    if unmeasured:
        text += "\n\n" + filled(f"Not measured: {', '.join(unmeasured)}.")
    return text


def limits() -> str:
    from fedsift.contract.fielddocs import field_docs

    docs = field_docs(GateLimits)
    return table(
        ["key", "default", "what it does"],
        [
            [f"`{e.name}`", f"{e.default}", " ".join(docs[e.name].split())]
            for e in dataclasses.fields(GateLimits)
        ],
    ).replace("---:", "---")


def honest() -> str:
    found = read(HONEST)
    names = ["length", "statistics", "against", "opposed"]
    body = [
        [name, *(f"{row[key]:.2f}" for key in names), str(len(row["refused"]))]
        for name, row in sorted(found.items())
    ]
    return table(["federation", *names, "refused"], body)


def lying() -> str:
    found = read(LYING)
    shares = list(found["f1"])
    kinds = list(found["f1"][shares[0]])
    body = [[kind, *(f"{found['f1'][share][kind]:.2f}" for share in shares)] for kind in kinds]
    words = LIES.format(**{key: found[key] for key in ("sites", "seeds", "draws", "own")})
    head = ["", *(f"{100 * float(share):.0f} % lie" for share in shares)]
    return f"{filled(words)}\n\n{table(head, body)}\n\n{filled(ADVICE)}"


def page() -> str:
    found = results()
    parts = [
        "# Attacks", filled(TOP), "## What is refused", filled(FIRST),
        filled(", ".join(FORM) + "."), filled(THEN), limits(),
        "## One hostile site of ten", filled(COST), block(found, 1, "mean", ONE, ["absent", "malformed"]),
        "## Two hostile sites of ten", filled(ROBUST), block(found, 2, "trimmed", TWO, []),
        "## Honest federations", filled(NEAR), honest(),
        "## Lying scores", lying(),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
