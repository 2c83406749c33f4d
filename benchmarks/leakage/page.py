"""`python -m benchmarks.leakage.page`: docs/leakage.md from results/ and, for secure aggregation, from what methods
declare."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchmarks.attacks.page import table
from benchmarks.files import read_tree
from benchmarks.leakage.__main__ import FILE, KEY
from benchmarks.leakage.by_method import section
from benchmarks.leakage.differences import CLIP, LINEAR, NOISE, NOW, PEOPLE
from benchmarks.leakage.differences import FILE as DIFFERENCES
from benchmarks.leakage.differences import POLICIES as DIFFERENCE_POLICIES
from benchmarks.leakage.measure import MIN_COUNT
from benchmarks.leakage.secure import verdict
from benchmarks.section import Page
from benchmarks.section import paragraph as filled

from fedsift.benchmark.rows import read_rows
from fedsift.methods._base import methods

CERTAIN = 0.1
"""Advantage from which on a field under the narrowest policy counts as told."""
AUDITED = (
    "LabelsCounted.sums",
    "LabelsCounted.cells",
    "FoldsFitted.models",
    "FoldsFitted.likelihoods",
    "GridJudged.nats",
)
PAGE = Page("leakage.md", "python -m benchmarks.leakage.page")
KINDS = ("model", "public predictions", "per-class losses", "prototypes")
PROTECTIONS = ("none", f"floor {MIN_COUNT}", "clipped", "clipped, noise 0.1", "clipped, noise 1")
TOP = """What leaves a site says something about its data. This page measures how much a curious coordinator can
read off one exchange: the mix of labels at a site, and whether a given sample is there. It is made by
`python -m benchmarks.leakage.page`; `benchmarks/leakage/measure.py` has the attacks."""
LABELS = """**Label mix**: 1 - TV(guess, truth) / TV(equal shares, truth), the mean over the sites of {seeds}
federations of digits with uneven classes; 0 is what anybody knows, 1 is everything, below 0 a wrong guess. From
a model and from public predictions: which classes it predicts more often than the global model. From per-class
losses and prototypes: which classes are reported at all, and how well they are learnt. **Member**: AUC of recognising a
site's samples from strangers, 0.5 is a coin; from a model by how the sample's loss fell, from public
predictions by their confidence, should the sample be among the public ones. Clipping is at the median length of
the sites' updates; noise is in units of that bound. A minimum count withholds means over fewer samples; that a
class is withheld says that it is small, so it protects single samples and not the mix."""
ONE = """Two honest sites differ by one sample: another person stands in its place. Both answer the first request of
each kind that a method sends, for {people} persons in turn, and the answers are compared field by field
(`benchmarks/leakage/differences.py`). **Advantage**: of the best attacker who knows both answers and asks which of them
it got, P(right) - P(wrong), with the half of its 95 % interval over the persons: 1 wherever the answers differ at all
and nothing is noised. **Recovered**: of an optimal linear attacker, the share of the sample's variance that a
difference holds, read off or by a map that it learned at the other persons. The default policy has the minimum count;
the narrowest has clip {clip:g} and noise {noise:g} besides and leaves out what can be spared. The table has the field
of each method that discloses most without noise, and the most of all fields that are noised under the narrowest
policy. Labels released by randomised response are left out: their epsilon is their bound."""
EXACT = """Counts leave exactly, above the minimum count: with one person replaced a cell changes by one, and who knows
the rest learns the label. Under the narrowest policy this is what is left: {fields}."""
AUDIT = """**The label audit with one linear layer, before and after** sums of features were taken out of its first
exchange, likelihoods bounded, and every field given a last step of the policy:"""
SECURE = """Secure aggregation hides single replies from the coordinator and shows it their sum. Which methods
would survive it follows from what the coordinator makes of their declared replies:"""
FLOWER = """It is not offered, for Flower 1.41 has none for the API that fedsift speaks. Its SecAgg+ consists of
`flwr.client.mod.secaggplus_mod`, which takes messages of type `train` apart as legacy fit results, and
`flwr.server.workflow.SecAggPlusWorkflow`, which raises a TypeError for any context but a `LegacyContext`; the
mods of the current API, `flwr.clientapp.mod`, have clipping, local noise and message sizes alone.
`tests/docs/test_leakage.py` looks whether that is still so."""


def page() -> str:
    found = read_tree(FILE, KEY)
    known = {key: row["value"] for key, row in found.items()}
    seeds = next(iter(found.values()))["seeds"]
    pairs = sorted({tuple(key.rsplit(", ", 1)[0].split(", ", 1)) for key in known}, key=_place)
    body = [
        [
            kind,
            protection,
            *(_cell(known.get(f"{kind}, {protection}, {what}")) for what in ("labels", "member")),
        ]
        for kind, protection in pairs
    ]
    parts = [
        "# Leakage", filled(TOP), filled(LABELS.format(seeds=seeds)),
        table(["what leaves", "protection", "label mix", "member"], body),
        "## One sample", *_one_sample(),
        "## By method", *section(),
        "## Secure aggregation", filled(SECURE), _secure(), filled(FLOWER),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _one_sample() -> list[str]:
    rows = read_rows(DIFFERENCES)
    now = [row for row in rows if row["state"] == NOW]
    body, exact = [], {}
    for name in dict.fromkeys(row["method"] for row in now):
        own = [row for row in now if row["method"] == name]
        worst = {policy: _most(row for row in own if row["policy"] == policy) for policy in DIFFERENCE_POLICIES}
        last = [row for row in own if row["policy"] == "narrowest"]
        hidden = _most(row for row in last if row["advantage"] < CERTAIN)
        told = [row["field"] for row in last if row["advantage"] >= CERTAIN]
        exact |= dict.fromkeys(told)
        first = worst["none"]
        cells = [_told(worst[policy]) for policy in ("none", "default")]
        body.append([name, first["field"] if first else "–", *cells, _told(hidden)])
    heads = ["method", "most by", "no policy", "default policy", "narrowest, where noised"]
    fields = ", ".join(sorted(exact)) or "nothing"
    audit = [
        [row["field"], row["policy"], *(_told(_same(rows, row, state)) for state in ("before", NOW))]
        for row in {(r["field"], r["policy"]): r for r in rows if r["method"] == LINEAR}.values()
        if row["policy"] != "none" and row["field"] in AUDITED
    ]
    return [
        filled(ONE.format(people=PEOPLE, clip=CLIP, noise=NOISE)),
        table(heads, body),
        filled(EXACT.format(fields=fields)),
        filled(AUDIT),
        table(["field", "policy", "before", "after"], audit),
    ]


def _most(rows: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
    return max(rows, key=lambda row: (row["recovered"], row["advantage"]), default=None)


def _same(rows: list[dict[str, Any]], row: dict[str, Any], state: str) -> dict[str, Any] | None:
    keys = {**{key: row[key] for key in ("method", "field", "policy")}, "state": state}
    return next((each for each in rows if all(each[key] == value for key, value in keys.items())), None)


def _told(row: dict[str, Any] | None) -> str:
    if row is None:
        return "does not leave"
    return f"{row['advantage']:.2f} ± {row['plus_minus']:.2f}; {row['recovered']:.2f}"


def _place(pair: tuple[str, ...]) -> tuple[int, int]:
    """What tells most first; of one kind what is not protected first."""
    kind, protection = pair
    return KINDS.index(kind), PROTECTIONS.index(protection)


def _cell(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _secure() -> str:
    rows = [(name, *verdict(name)) for name in methods.names()]
    return table(
        ["method", "survives", "why"], [[name, "yes" if yes else "no", why] for name, yes, why in rows]
    ).replace("---:", "---")


if __name__ == "__main__":
    PAGE.write(page())
