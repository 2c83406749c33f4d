"""`python -m benchmarks.leakage.page`: docs/leakage.md from results/ and, for secure aggregation, from what methods
declare."""

from __future__ import annotations

from benchmarks.attacks.page import table
from benchmarks.files import read_tree
from benchmarks.leakage.__main__ import FILE, KEY
from benchmarks.leakage.by_method import section
from benchmarks.leakage.measure import MIN_COUNT
from benchmarks.leakage.secure import verdict
from benchmarks.section import Page
from benchmarks.section import paragraph as filled

from fedsift.methods._base import methods

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
        "## By method", *section(),
        "## Secure aggregation", filled(SECURE), _secure(), filled(FLOWER),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


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
