"""`python -m benchmarks.audit.page`: docs/audit-results.md from results/; every figure on it is read from there."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

from benchmarks.audit import files
from benchmarks.audit.accusations import CELLS
from benchmarks.audit.clean import summary as clean_federations
from benchmarks.audit.summary import difference, ratio, read, summary
from benchmarks.files import read_list, read_tree
from benchmarks.section import Page
from benchmarks.section import paragraph as filled
from scipy.stats import beta

from fedsift.formulas.intervals import ALLOWED, CLEARED, wilson
from fedsift.label_audit.review import MOST_TO_DECIDE

MOST_VERDICTS = 40
"""How many a median review may take to clear a site without wrong labels, or to convict one with a fifth."""
HERE = Path(__file__).parent
PAGE = Page("audit-results.md", "python -m benchmarks.audit.page")
BOUNDS = {"cifar10n-mixed-skewed-20": (1.10, 1.25), "cifar10n-mixed-equal-20": (1.05, None)}
"""What AP must reach over pooled and local cleanlab, by the lower end of the interval; elsewhere 0.98 of pooled."""
TOP = (
    "Made by `python -m benchmarks.audit.page` from `benchmarks/audit/results`; `benchmarks/audit/README.md` says how "
    "it was measured and how settings were chosen. AP: average precision of ranking the wrong labels first. The "
    "interval is Student's over seeds of the paired ratio; with one seed there is none, and nothing is claimed. Ours "
    "runs with the default minimum count."
)
RATES = (
    "Rate error: mean absolute error of a site's estimated share of wrong labels, in points. Coverage: share of sites "
    "whose 95 % interval holds the truth. Fixed: share of the wrong labels that applying by the default rule mends, "
    "and how many for each right label that it breaks."
)


EXPERIMENTS = (
    "`python -m benchmarks.audit.causes`, tuning seeds ({seeds}): one thing changed at a time, on HAM10000 unless a "
    'case names the made X-rays. Lines that begin with "told" give the fit a part of the truth, '
    "each more than the line before, "
    "but for the last, whose model was trained on right labels. Bias: of the rate, where labels are wrong. A lost "
    "class is one that a noisy place gives as another class more often than as itself, which the assumption that "
    "breaks the model's tie excludes."
)
JOINT = (
    "`python -m benchmarks.audit.joint`, tuning seeds. The model is trained through T, begun with three rounds on the "
    "given labels and the tempered fit's T, which is fitted anew after every round; judged after as many rounds as the "
    'tempered model is trained, and after 30. "Then tempered": the audit as always, on the joint model\'s '
    'probabilities. "Retrained": a second training on the tempered audit\'s posteriors. Rates here are means of '
    "P(wrong)."
)
SOURCES = (
    "AP of the same posterior on other probabilities, with parts left out, and of others' scores on the same features "
    "and folds. Pooled: all data in one place, which nobody is allowed to do. A dash: not measured with this model."
)
CHEST = (
    "Ten sites, eight findings; every site leaves two out, half of the sites miss 30 % of the positives and mark 3 % "
    "of the negatives. Pooled and local: cleanlab's self-confidence of every label. The last column audits the NIH's "
    "own labels against the pictures that radiologists read: few labels, no bound."
)
VERDICTS = (
    "No worse: AP and calibration error in the mean over seeds. Where the error rises but the 95 % interval of the "
    "paired difference over seeds (Student's) holds zero, these seeds cannot tell it from no change; that is said with "
    "the interval, and is no proof of none."
)
ACCUSED = (
    "`python -m benchmarks.audit.accusations`, seeds that chose nothing. A cell is a kind of federation: unless it "
    "says otherwise ten sites of 400 pictures of CIFAR-10, frozen features, and where there are noisy sites 30 % "
    'random errors at five. Accused: sites whose labels are all right that were told "wrong labels", with the 95 % '
    "interval of the share (Clopper and Pearson's; sites of one federation are not independent, so it is somewhat too "
    "narrow). Found: noisy sites that were told. Coverage: sites whose 95 % interval of the share of wrong labels "
    "holds the truth. Off: the estimate less the truth, in points, in the mean. Disputed: pictures of which one of "
    "three annotators said something else, a share of three sites; their labels are right. Not measured: several "
    "findings a picture, noise or contrast of a scanner, hostile sites."
)
SETTLED = (
    "`python -m benchmarks.audit.reviews`: sites of 200 to 2,000 labels, read in random order until an e-value "
    "decides, or {most} labels are read; looked at after every verdict, and drawn without replacement. A label that "
    "every reader called wrong so far is read by the next, of three. Verdicts: readings, the second and third ones "
    "too; the median is over all reviews, open ones at their end. Convicted says that more than 2 % are wrong, "
    "withdrawn that fewer than 12 % are; between them neither is an error. Brackets: 95 % intervals (Wilson)."
)
SHARED = (
    "Where readers are not as assumed. With one reader, errors of 15 % are allowed and cannot be told from wrong "
    "labels. With shared mistakes, half of the readers' mistakes are on labels that all of them mistake: such labels "
    "count as wrong, and a right site whose labels look wrong to everybody is convicted."
)
ROWS = {
    "ours": "ours",
    "ours without the floor": "without minimum count",
    "ours without class shares": "without class shares",
    "posterior on pooled": "posterior on pooled",
    "posterior on local": "posterior on local",
    "cleanlab at each site on pooled": "cleanlab a site on pooled",
    "self-confidence, federated": "federated self-confidence",
    "final model's loss": "final loss",
    "margins averaged over rounds": "averaged margins",
    "FedCorr's flags": "FedCorr's flags",
}
"""Column of the second table: the score's name in a cell's file."""


def _number(value: float | None, places: int = 3) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:.{places}f}"


def _ratio(pair: tuple[float, float]) -> str:
    mean, low = pair
    return _number(mean) if math.isnan(low) else f"{mean:.3f} (from {low:.3f})"


def _verdict(name: str, line: dict[str, Any]) -> str:
    """Whether the stated bounds hold, by the lower end."""
    low = line["over_pooled"][1]
    if math.isnan(low):
        return "one seed: open"
    pooled, local = BOUNDS.get(name, (0.98, None))
    holds = low >= pooled and (local is None or line["over_local"][1] >= local)
    said = "holds" if holds else "missed"
    return said if line["current"] else f"{said} (earlier model)"


def _missed(cells: dict[str, dict[str, Any]]) -> list[str]:
    """The bounds on rates, calibration and corrections, with the scenarios that miss them."""
    mixed = {name: line for name, line in cells.items() if name in BOUNDS}
    checks = {
        "Rate error at most 4 points": [n for n, x in cells.items() if x["rate_error_points"] > 4],
        "Intervals cover the truth at 90 % of the sites": [n for n, x in cells.items() if x["coverage"] < 0.9],
        "Calibration error at most 0.04": [n for n, x in cells.items() if x["calibration_error"] > 0.04],
        "40 % of the wrong labels fixed (mixed CIFAR-10N)": [n for n, x in mixed.items() if x["fixed_share"] < 0.4],
        "Four fixed for each harmed (mixed CIFAR-10N)": [n for n, x in mixed.items() if x["fixed_per_harmed"] < 4],
    }
    model = (
        "" if all(line["current"] for line in cells.values()) else " (figures above, earlier model where it says so)"
    )
    lines = ["", f"| bound | missed by{model} |", "|---|---|"]
    return lines + [f"| {name} | {', '.join(by) or 'none'} |" for name, by in checks.items()]


def _earlier(cells: dict[str, dict[str, Any]]) -> list[str]:
    """Says which scenarios were measured before the posterior's settings were last changed."""
    old = [name for name, line in cells.items() if not line["current"]]
    if not old:
        return []
    return [
        "",
        filled(
            f"Not measured again since the model changed ({len(old)} of {len(cells)} scenarios): their figures, and "
            "those of verdicts and NIH, are the earlier model's, and the present one claims "
            f"no bound by them. They are {', '.join(old)}."
        ),
    ]


def _chest() -> list[str]:
    """Several findings a picture, with two findings left out at every site; and what radiologists read."""
    told = read_list(files.CHEST)
    pooled = ratio([x["ap"] for x in told], [x["ap_pooled"] for x in told])
    local = ratio([x["ap"] for x in told], [x["ap_local"] for x in told])
    lines = [
        "",
        "## Several findings a picture: NIH X-rays with missing annotation",
        "",
        filled(CHEST),
        "",
        "| seed | wrong | ours | pooled | local | federated self-confidence | calibration error | "
        "noisy sites reported | "
        "clean sites reported | clean federation: sites reported | radiologists: AUROC (95 %) |",
        "|---" * 11 + "|",
    ]
    for x in told:
        noisy, evidence = x["noisy_sites"], x["noisy_sites_told"]
        right = sum(a and b for a, b in zip(noisy, evidence, strict=True))
        falsely = sum(b and not a for a, b in zip(noisy, evidence, strict=True))
        low, high = x["radiologists"]["auroc_interval"]
        lines.append(
            f"| {x['seed']} | {x['wrong']} | {x['ap']:.3f} | {x['ap_pooled']:.3f} | {x['ap_local']:.3f} | "
            f"{x['ap_self_confidence']:.3f} | {x['calibration_error']:.3f} | {right} of {sum(noisy)} | "
            f"{falsely} of {len(noisy) - sum(noisy)} | {x['clean_sites_told']} of {len(noisy)} | "
            f"{x['radiologists']['auroc']:.2f} ({low:.2f}-{high:.2f}) |"
        )
    verdict = "holds" if pooled[1] >= 0.98 else "missed"
    return [
        *lines,
        "",
        filled(f"Ours over pooled {_ratio(pooled)}, over local {_ratio(local)}: at least 0.98 of pooled {verdict}."),
    ]


def _no_worse(own: list[dict[str, Any]]) -> str:
    """Whether verdicts leave AP and calibration no worse in the mean; a rise of the calibration error that the seeds do
    not tell from none is called that, with its interval."""
    if sum(x["after"]["all"]["ap"] - x["before"]["all"]["ap"] for x in own) < 0:
        return "missed"
    rise = [x["after"]["all"]["calibration_error"] - x["before"]["all"]["calibration_error"] for x in own]
    mean, half = difference(rise)
    if mean <= 0:
        return "holds"
    if math.isnan(half) or mean > half:
        return "missed"
    return f"no significant difference: {mean:+.4f} ({mean - half:+.4f} to {mean + half:+.4f})"


def _verdicts() -> list[str]:
    """What 100 verdicts a site change, with readers' mistakes estimated, and given (`--reader-error`)."""
    told = read_list(files.VERDICTS)
    lines = [
        "",
        "## A hundred verdicts a site, a tenth of them mistaken",
        "",
        filled(VERDICTS),
        "",
        "| scenario | seeds | mistaken verdicts | AP before | AP after | calibration error before | after | no worse |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, error in itertools.product(files.REVIEWED, (None, files.MISTAKEN)):
        own = [x for x in told if (x["scenario"], x["reader_error"]) == (name, error)]

        def mean(moment: str, key: str, own: list[dict[str, Any]] = own) -> float:
            return sum(x[moment]["all"][key] for x in own) / len(own)

        used = sum(x["mean_reader_error_used"] for x in own) / len(own)
        verdict = _no_worse(own)
        lines.append(
            f"| {name} | {len(own)} | {'estimated' if error is None else 'given'} as {used:.1%} | "
            f"{mean('before', 'ap'):.3f} | {mean('after', 'ap'):.3f} | {mean('before', 'calibration_error'):.3f} | "
            f"{mean('after', 'calibration_error'):.3f} | {verdict} |"
        )
    return lines


def _accusations() -> list[str]:
    """By kind of federation (`accusations.py`)."""
    rows = read_list(files.ACCUSATIONS)
    lines = ["", "## Accusations", "", filled(ACCUSED), ""]
    lines += [
        "| kind | cell | federations | accused | 95 % interval | coverage, right | off | found | coverage, noisy | off "
        "| AP |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for cell in CELLS:
        own = [row for row in rows if (row["family"], str(row["cell"])) == (cell.family, cell.name)]
        if not own:
            continue
        clean, told, noisy, found = (
            sum(row[key] for row in own) for key in ("clean_sites", "clean_told", "noisy_sites", "noisy_told")
        )
        low, high = exact_interval(told, clean)
        lines.append(
            f"| {cell.family} | {cell.name} | {len(own)} | "
            + (f"{told} of {clean} | {low:.1%} to {high:.1%}" if clean else "– | –")
            + f" | {_covered(own, 'clean')} | {_number(_mean(own, 'clean_off'), 1)} | "
            + (f"{found} of {noisy}" if noisy else "–")
            + f" | {_covered(own, 'noisy')} | {_number(_mean(own, 'noisy_off'), 1)} | {_number(_mean(own, 'ap'))} |"
        )
    return lines


def exact_interval(found: int, of: int) -> tuple[float, float]:
    """Clopper and Pearson's 95 % interval of a share."""
    if of == 0:
        return 0.0, 1.0
    low = float(beta.ppf(0.025, found, of - found + 1)) if found else 0.0
    return low, float(beta.ppf(0.975, found + 1, of - found)) if found < of else 1.0


def _covered(rows: list[dict[str, Any]], which: str) -> str:
    sites = sum(row[f"{which}_sites"] for row in rows)
    return f"{sum(row[f'{which}_covered'] for row in rows) / sites:.2f}" if sites else "–"


def _settled() -> list[str]:
    """Simulated reviews, looked at after every verdict (`reviews.py`)."""
    told = read_list(files.REVIEWS)
    usual = [x for x in told if x["readers"] == 3 and not x["shared_mistakes"]]
    lines = ["", "## Simulated reviews", "", filled(SETTLED.format(most=MOST_TO_DECIDE)), ""]
    lines += _reviews(usual)
    null = [x for x in usual if x["share_wrong"] <= ALLOWED]
    many = [x for x in usual if x["share_wrong"] >= CLEARED]
    lines += [
        "",
        f"- Convicted where 2 % or fewer are wrong: {_errors(null)}; most in one line {_worst(null)}.",
        f"- Withdrawn where 12 % or more are wrong: {_errors(many)}; most in one line {_worst(many)}.",
        f"- The confidence sequence missed the share at some look: {_part(usual, 'share_missed', 'watched')}.",
        f"- {_target([x for x in usual if (x['share_wrong'], x['reader_error']) == (0, 0.1)], 'withdrawn')}",
        f"- {_target([x for x in usual if x['share_wrong'] == 0.2], 'convicted')}",
        "",
        filled(SHARED),
        "",
    ]
    return lines + _reviews([x for x in told if x not in usual])


def _reviews(told: list[dict[str, Any]]) -> list[str]:
    lines = [
        "| readers | readers' error | shared | wrong | reviews | convicted | withdrawn | open | median verdicts |",
        "|---" * 9 + "|",
    ]
    for x in told:
        parts = " | ".join(f"{x[name] / x['reviews']:.1%}" for name in ("convicted", "withdrawn", "open"))
        lines.append(
            f"| {x['readers']} | {x['reader_error']:.0%} | {x['shared_mistakes']:.0%} | {x['share_wrong']:.0%} | "
            f"{x['reviews']:,} | {parts} | {x['median_verdicts']:g} |"
        )
    return lines


def _part(told: list[dict[str, Any]], hits: str, of: str) -> str:
    k, n = sum(x[hits] for x in told), sum(x[of] for x in told)
    low, high = wilson(k, n)
    return f"{k:,} of {n:,} ({k / n:.2%}, {low:.2%} to {high:.2%})"


def _errors(told: list[dict[str, Any]]) -> str:
    return _part(told, "errors", "reviews")


def _worst(told: list[dict[str, Any]]) -> str:
    worst = max(told, key=lambda x: x["errors"] / x["reviews"])
    return f"{_errors([worst])}, {worst['share_wrong']:.0%} wrong and readers erring in {worst['reader_error']:.0%}"


def _target(told: list[dict[str, Any]], answer: str) -> str:
    """Whether a median review takes at most `MOST_VERDICTS`, in the worst of these lines."""
    worst = max(told, key=lambda x: x["median_verdicts"])
    right = min(x[answer] / x["reviews"] for x in told)
    return (
        f"A site with {worst['share_wrong']:.0%} wrong labels is {answer} after a median of at most "
        f"{worst['median_verdicts']:g} verdicts, readers erring in "
        f"{_errors_of_readers(told)} (in {right:.1%} of reviews or more); asked for: "
        f"{MOST_VERDICTS}: {'holds' if worst['median_verdicts'] <= MOST_VERDICTS else 'missed'}."
    )


def _errors_of_readers(told: list[dict[str, Any]]) -> str:
    return " / ".join(f"{x['reader_error']:.0%}" for x in told)


def _mean(lines: list[dict[str, Any]], key: str) -> float | None:
    values = [x[key] for x in lines if x[key] is not None]
    return sum(values) / len(values) if values else None


def _causes() -> list[str]:
    """Why bounds are missed, by experiment (`causes.py`)."""
    told = read_list(files.CAUSES)
    seeds = sorted({x["seed"] for x in told})
    lines = ["", "## Why bounds are missed: controlled experiments", ""]
    lines += [filled(EXPERIMENTS.format(seeds=", ".join(map(str, seeds)))), ""]
    lines += [
        "| case | AP | rate error | bias where noisy | coverage | clean sites reported | noisy sites reported | "
        "calibration error | wrong labels of lost classes |",
        "|---" * 9 + "|",
    ]
    for case in dict.fromkeys(x["case"] for x in told):
        own = [x for x in told if x["case"] == case]
        sites, clean = sum(x["sites"] for x in own), sum(x["clean_sites"] for x in own)
        wrong = sum(x["wrong"] for x in own)
        lost = f"{sum(x['wrong_of_lost_classes'] for x in own) / wrong:.0%}" if wrong else "none"
        bias = _mean(own, "bias_where_noisy")
        ap = _mean(own, "ap")
        asked = case.startswith("told")
        lines.append(
            f"| {case} | {'none wrong' if ap is None else f'{ap:.3f}'} | {_mean(own, 'rate_error'):.1f} | "
            f"{'none noisy' if bias is None else f'{bias:+.1f}'} | "
            f"{sum(x['covered'] for x in own) / sites:.2f} | "
            f"{'given' if asked else str(sum(x['clean_told'] for x in own)) + f' of {clean}'} | "
            f"{'given' if asked else str(sum(x['noisy_told'] for x in own)) + f' of {sites - clean}'} | "
            f"{_mean(own, 'calibration_error'):.3f} | {lost} |"
        )
    return lines


def _joint() -> list[str]:
    """Joint EM beside tempering (`joint.py`)."""
    told = read_tree(files.JOINT, files.JOINT_KEY)
    lines = ["", "## Joint EM, the rival", "", filled(JOINT), ""]
    lines += ["| scenario | seeds | method | AP | rate error | bias | calibration error |", "|---" * 7 + "|"]
    for name, own in sorted(told.items(), key=lambda item: files.COMPARED.index(item[0])):
        for method in files.METHODS:
            each = [methods[method] for methods in own.values()]
            lines.append(
                f"| {name} | {len(own)} | {method} | {_mean(each, 'ap'):.3f} | {_mean(each, 'rate_error'):.1f} | "
                f"{_mean(each, 'bias'):+.1f} | {_mean(each, 'calibration_error'):.3f} |"
            )
    return lines


def page() -> str:
    cells = {name: summary(own) for name, own in read(files.RESULTS).items()}
    ranked = {name: line for name, line in cells.items() if "ap" in line}
    parts = ["# The label audit, measured", "", filled(TOP), *_accusations(), *_earlier(cells), "", "## Ranking", ""]
    parts += [
        "| scenario | seeds | wrong | ours | pooled | local | ours / pooled | ours / local | bound |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, line in ranked.items():
        ap = line["ap"]
        parts.append(
            f"| {name} | {line['seeds']} | {line['wrong']:.1%} | {ap['ours']:.3f} | {ap['cleanlab, pooled']:.3f} | "
            f"{ap['cleanlab, each site alone']:.3f} | {_ratio(line['over_pooled'])} | {_ratio(line['over_local'])} | "
            f"{_verdict(name, line)} |"
        )
    parts += ["", "## Where the gain comes from", "", filled(SOURCES), ""]
    parts += ["| scenario | " + " | ".join(ROWS.values()) + " |", "|---" * (len(ROWS) + 1) + "|"]
    for name, line in ranked.items():
        parts.append(f"| {name} | " + " | ".join(_number(line["ap"].get(key)) for key in ROWS) + " |")
    parts += ["", "## Rates, calibration, corrections", ""]
    parts += [
        filled(RATES),
        "",
        "| scenario | rate error | coverage | calibration error | recall at budget | flagged | fixed | "
        "for each harmed |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, line in cells.items():
        parts.append(
            f"| {name} | {line['rate_error_points']:.1f} | {line['coverage']:.2f} | {line['calibration_error']:.3f} | "
            f"{_number(line.get('recall_at_budget'))} | {line['flagged_share']:.1%} | {line['fixed_share']:.0%} | "
            f"{line['fixed_per_harmed']:.1f} |"
        )
    parts += _missed(cells)
    parts += _causes()
    parts += _joint()
    parts += _chest()
    clean = clean_federations(read_list(files.CLEAN))
    [speed] = read_list(files.SPEED)
    parts += _verdicts()
    parts += _settled()
    parts += [
        "",
        "## Clean federations, and speed",
        "",
        filled(
            f"{clean['clean_federations']} simulated federations without a wrong label: "
            f"{clean['clean_sites_told_share']:.2%} of the sites were reported to have wrong labels (stated: at most "
            f"{clean['stated_false_alarm']:.0%}), {clean['clean_flagged_share']:.3%} of the labels were flagged."
        ),
        "",
        filled(
            f"{speed['samples']:,} samples, {speed['sites']} sites, {speed['folds']} folds on frozen features: "
            f"{speed['wall_seconds']:.0f} s, {speed['cpu_seconds']:.0f} s of processor, {speed['peak_megabytes']:,} MB "
            "at most."
        ),
        "",
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write(page())
