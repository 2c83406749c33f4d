"""The part of docs/leakage.md that goes method by method, from results/methods.csv and results/fields.csv alone."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.attacks.page import table
from benchmarks.leakage.measure import MIN_COUNT
from benchmarks.leakage.methods import NOISE, POLICIES, SEEDS, SHOWN, SITES, read_results
from benchmarks.leakage.replies import LEAST
from benchmarks.section import paragraph as filled

from fedsift.deploy.site.site_file import SiteFile
from fedsift.formulas.privacy import update_zcdp
from fedsift.methods._base import methods

AGAIN = ("fedavg", "cbafed", "fednoro", "local")
"""Methods that the slow tests measure anew: a model, counts, losses by class, and counts of held-out samples."""
MARGIN = {"labels": 0.1, "member": 0.05}
"""How far a figure that is measured anew may lie above the kept one."""
BLIND = {"labels": 0.0, "member": 0.5}
"""What anybody knows: less is nothing less to know."""
HEADS = ("no policy", f"min. count {MIN_COUNT}", "and clipped", f"and noise {NOISE:g}")

HOW = """Each method runs a few rounds with {sites} sites of digits that have uneven classes ({seeds} seeds; methods
for several labels: four findings a digit). The sites answer as deployed ones do, from a site.toml and by the code of
a site's own process, which applies their policy: none; a minimum count of {min_count}; that and updates clipped at
the median length of the method's updates without a policy; that and noise of {noise:g} times this bound, which costs
{rho:g} of zCDP an update. Without a policy a label audit still has the minimum count of {audit} that a site.toml has
by itself. Whatever left is attacked field by field, by the attacks above and, where counts by class leave, by reading
them; of several exchanges the coordinator takes the first, the last or all together. The table has the best of all
these, the mean over sites and seeds; which is best was chosen by the truth, column by column, so it is what a lucky
coordinator reads. Of a method with public samples {shown} of each site's samples are public, too, so that their
predictions really leave. Of several labels the sites are more uneven, the mix is that of the yes among the findings
that a site says it annotates, and a site whose mix is within {least:g} of equal shares has nothing to be known.
`benchmarks/leakage/replies.py` has the attacks, `benchmarks/leakage/results/fields.csv` the figure of each."""
AGAIN_TEXT = """The slow tests measure {names} anew with seed {seed}: no figure may lie above the kept one by more than
{labels:g} (label mix) or {member:g} (member)."""
COST = """What that costs: accuracy of the method's model on the coordinator's own test set after these few rounds; –
where a method makes no model of the federation, "ended" where too few replies passed the coordinator's gate."""


def figure(rows: Sequence[Mapping[str, Any]], what: str) -> tuple[str, float] | None:
    """The best attack over these seeds and its mean figure; None where nothing could be attacked."""
    shared = [key for key in rows[0][what] if all(key in row[what] for row in rows)]
    means = {key: statistics.mean(row[what][key] for row in rows) for key in shared}
    if not means:
        return None
    best = max(means, key=lambda key: means[key])
    return best, means[best]


def grown(found: Mapping[str, Any], kept: Mapping[str, Any]) -> list[str]:
    """Figures of one seed that lie too far above the kept ones of the same seed, by policy."""
    wrong = []
    for policy in POLICIES:
        for what, margin in MARGIN.items():
            new, old = figure([found[policy]], what), figure([kept[policy]], what)
            bound = BLIND[what] if old is None else max(old[1], BLIND[what])
            if new is not None and new[1] > bound + margin:
                wrong.append(f"{policy}, {what}: {new[1]:.3f} by {new[0]}, kept {bound:.3f}")
    return wrong


def section() -> list[str]:
    """Paragraphs and tables."""
    found = read_results()
    names = [name for name in methods.names() if name in found]
    how = HOW.format(
        seeds=len(SEEDS), sites=SITES, min_count=MIN_COUNT, noise=NOISE, rho=update_zcdp(NOISE), shown=SHOWN,
        least=LEAST, audit=SiteFile.audit_min_count,
    )  # fmt: skip
    again = AGAIN_TEXT.format(names=", ".join(AGAIN), seed=SEEDS[0], **MARGIN)
    return [
        filled(how),
        *_unmeasured(found),
        "**Label mix**",
        _figures(found, names, "labels"),
        *_still(found, names, "labels", "more than half of what they disclose without a policy"),
        "**Member**",
        _figures(found, names, "member"),
        *_withheld(found, names),
        filled(COST),
        _accuracies(found, names),
        filled(again),
    ]


def _unmeasured(found: Mapping[str, Any]) -> list[str]:
    """Methods that a stopped run has not come to."""
    missing = [name for name in methods.names() if name not in found]
    return [filled(f"Not measured yet: {', '.join(missing)}.")] if missing else []


def _figures(found: Mapping[str, Any], names: Sequence[str], what: str) -> str:
    body = []
    for name in names:
        best = [figure(found[name][policy], what) for policy in POLICIES]
        first = best[0]
        source = _unread(found[name][POLICIES[0]]) if first is None else first[0].partition(",")[0]
        body.append([name, source, *("–" if one is None else f"{one[1] + 0.0:.2f}" for one in best)])
    return table(["method", "most is disclosed by", *HEADS], body)


def _unread(rows: Sequence[Mapping[str, Any]]) -> str:
    fields = sorted({field for row in rows for field in row["fields"]})
    return f"nothing to attack in {', '.join(fields)}"


def _still(found: Mapping[str, Any], names: Sequence[str], what: str, words: str) -> list[str]:
    """Methods of which the last policy leaves most of what there was to know, and by which field."""
    left = []
    for name in names:
        first, last = (figure(found[name][policy], what) for policy in (POLICIES[0], POLICIES[-1]))
        if first is not None and last is not None and last[1] > max(0.5 * first[1], 0.1):
            left.append(f"{name} ({last[0].partition(',')[0]})")
    if not left:
        return []
    return [filled(f"With minimum count, clipping and noise these methods still disclose {words}: {', '.join(left)}.")]


def _withheld(found: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """How many replies did not leave under a policy, where any did not."""
    parts = []
    for name in names:
        for policy, head in zip(POLICIES, HEADS, strict=True):
            missing = sum(sum(row["failures"].values()) for row in found[name][policy])
            if missing:
                asked = missing + sum(row["replies"] for row in found[name][policy])
                parts.append(f"{name}, {head}: {missing} of {asked}")
    return [filled(f"Replies that sites withheld altogether: {'; '.join(parts)}.")] if parts else []


def _accuracies(found: Mapping[str, Any], names: Sequence[str]) -> str:
    return table(
        ["method", *HEADS],
        [[name, *(_accuracy(found[name][policy]) for policy in POLICIES)] for name in names],
    )


def _accuracy(rows: Sequence[Mapping[str, Any]]) -> str:
    if any("ended" in row for row in rows):
        return "ended"
    values = [row["accuracy"] for row in rows]
    return "–" if None in values else f"{statistics.mean(values):.2f}"
