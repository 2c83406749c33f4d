"""`python -m benchmarks.attacks.page`: docs/attacks.md from results/; every figure on it is read from there."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.attacks.__main__ import ACCURACY, ACCURACY_KEY, HONEST, HONEST_KEY
from benchmarks.attacks.accuracy import KINDS, averaging
from benchmarks.attacks.alone import EARLY, MISSED, WAYS
from benchmarks.attacks.alone import FILE as ALONE
from benchmarks.attacks.alone import FIRST as VISITED
from benchmarks.attacks.alone import KEY as ALONE_KEY
from benchmarks.attacks.back import FILE as BACK
from benchmarks.attacks.back import FINDINGS
from benchmarks.attacks.back import KEY as BACK_KEY
from benchmarks.attacks.files import SOURCE
from benchmarks.attacks.lying import CHECKS
from benchmarks.attacks.lying import FILE as LYING
from benchmarks.attacks.lying import KEY as LYING_KEY
from benchmarks.attacks.presets import FILE as PRESETS
from benchmarks.attacks.presets import KEY as PRESETS_KEY
from benchmarks.attacks.presets import small_presets
from benchmarks.attacks.rates import ALWAYS, DEFAULT, LEARNING_RATES, OTHER, REASONS, SMALL_RATES
from benchmarks.attacks.rates import FILE as RATES_FILE
from benchmarks.attacks.rates import KEY as RATES_KEY
from benchmarks.attacks.sizes import BEFORE, DECLARED, GATES, NOBODY, TRUE
from benchmarks.attacks.sizes import FILE as SIZES_FILE
from benchmarks.attacks.sizes import KEY as SIZES_KEY
from benchmarks.attacks.turned import FILE as TURNED
from benchmarks.attacks.turned import KEY as TURNED_KEY
from benchmarks.attacks.turned import SEED
from benchmarks.files import read_list, read_tree
from benchmarks.section import Page
from benchmarks.section import paragraph as filled
from tests.promises.attacks import FORM, MODEL

from fedsift.formulas.intervals import wilson
from fedsift.runtime.gate import protection as gate
from fedsift.runtime.gate.protection import GateLimits

AGREEMENT = Path(__file__).parent / "results" / "agreement.csv"
AGREEMENT_KEY = ("method", "exchange")
PAGE = Page("attacks.md", "python -m benchmarks.attacks.page")
ONE, TWO = 0.03, 0.05
"""What one hostile site may cost by default, and two with a robust rule."""
TOP = """One bad site cannot break or own a run: every reply passes a gate, and among real sites every update is judged
beside the other sites' before anything is made of it. What judges updates are heuristics, which refuse an honest site
now and then; how often is measured below. In a simulation, in process or on Flower, they do not judge: there the gate
looks at form alone, so that no figure of a method is one of the gate. `gate.heuristics = "always"` asks for them, as
all measurements on this page do. This page is made by `python -m benchmarks.attacks.page` from
`benchmarks/attacks/results`."""
FIRST = """**The form.** Every field of a reply is checked against the type, shape and range that its class
declares; counts are bounded by what the site declared on joining, which the roster bounds. All of these are
refused in every exchange of every method, which the normal tests try one by one:"""
THEN = """**The update.** What has the right form is measured beside the round's other updates. Lengths are relative
to the model that was sent, and to the steps that a site of so many samples can take: a site that trains on three
times the samples may go three times as far. A size is what a site says of itself, so it stretches no limit by more
than the site may count for (min(1/2, 3/n) of n sites), and directions are judged by lengths as they are. Where fewer
than three sites answer, the stage's accepted updates are the measure, and where these are of fewer than three sites,
the model that was sent. A site may go on as far as it went before, in this stage or the last, while others went as
far: honest sites with wrong labels keep moving when the others have learnt. The keys of `[gate]` in a study:"""
FLIPS = """**Going back.** A site that sends its update with the sign turned cannot be distinguished from an honest one
by any
single round: an honest site with wrong labels is pulled back as well when the others have learnt. Two things tell it
all the same. One is the first exchange. Nothing is learnt yet, and of K classes wrong labels pull a model back by about
1 / (K - 1) of what right ones pull it on, in the mean; a turned sign pulls it back by all of it. So a site that goes
back by more than {opposed:g} of the others' way in the run's first exchange is left out. With fewer than five classes,
with several labels a sample, with a model that was given, or where sites have no common direction (median cosine up to
one half), nobody is left out: a site that has two classes swapped sends just what an attacker sends. The way of one
site of ten along the others' direction, as a share of theirs, in the first exchanges:"""
TURNS = """The other is the site's own past. An honest site with wrong labels goes back, but it never went along as the
others did; an attacker that began honestly did. With a site's cosine with the others as a share of the cohort's median
one, before and now, its turn is the smaller of the share that it went along by and the share that it now goes back by:
about 1 for a sign that is turned. Beyond {turned:g} the site is left out until it is tried again. It is asked of two
exchanges of one stage that follow each other, where the cohort has a direction (median cosine above {common:g}), with
at least five classes, or four findings of a sample. {updates} updates of honest sites in {runs} federations, over every
kind of skew and wrong labels and from little to much training in a round (`python -m benchmarks.attacks.turned`, FedAvg
on digits, seed {seed}): the largest turn of an honest site from one exchange to the next, how far one turns within four
and more, and how many of the same updates would have been found had their sign been turned."""
UNTOLD = """Of two classes a model without a hidden layer has one direction, and an honest site with some wrong labels
goes along it first and back later, as an attacker does: nobody is judged there. An attacker is not found either where
it turns by and by, where sites have no common direction, where it is alone in its exchange, or where it goes back from
the start and the first exchange shows nothing, as with several labels a sample."""
AGAIN = """**Back again.** No refusal is for ever. A site that was asked {after} times in a row without a model of its
being used, because it was away or because the gate refused it, is measured anew: its model may go as far as models went
when sites began, and it counts for half of a fair share at most until three of them were used. A site that was refused
must besides be one of at least {cohort} in the exchange and not go against the others; else it is tried again after
twice as many exchanges, then four times. So is a site measured whose very first model comes late. A site that was not
asked was not away. Without this rule a site of five with half of its labels wrong that came back after 33 rounds was
refused in each of the rest: the others had learnt and hardly moved."""
WHY = """Why these are missed: a random direction of three usual lengths and models within the honest ones' own spread
(`a little is enough`) are within what honest sites send, who went up to {longest:.1f} usual lengths in the federations
below. `sign flip x1` goes back from the start, which is a sign of an attack
only with one label a sample and where sites answer together; `later sign flip` is found where the cohort has a
direction
in two exchanges that follow each other. Without an attacker, in the first exchanges of the methods above (`python -m
benchmarks.attacks.agreement`):"""
SAME = """Of several findings a sample, a site that took yes for no throughout, which is honest and can be mended,
sends nearly what an attacker sends: in the table of first exchanges above it goes {wrong:.2f} of the others' way
along, and the turned sign {flip:.2f}. Of sites that come one by one the same is true from the first visits on, for
the model has learnt from those before. FedCorr's first stage, a site whose labels are all wrong and one that turns
its sign, each the cosine of its lone update with the others' of the same stage (`python -m
benchmarks.attacks.alone`):"""
EARLIEST = """**The first visited.** In the tables above the hostile sites are `site-09` and `site-08`, whom FedCorr and
FedDiv may visit late, when others have shown how far sites go. A hostile site that is among the first three visited is
measured by nothing but the model that was sent, and **can corrupt the model by itself**: FedDiv's row with two hostile
sites shows it, for `site-08` is the second visited there. With `first_together = true` all sites train in the very
first visit, for the gate alone, and then go on one by one. `fedsift deploy` writes it into an app's study unless the
study says otherwise. In simulations it is off: models that are trained beside others differ in their last bits, and
every site sends one model more. FedCorr, one hostile site, by when it is visited ({seeds}):"""
REMEDY = """What the last sites cost in the same two ways, one of them by default and two against the trimmed mean
(accuracy, and in brackets what is lost):"""
MISSING = "None."
FEW_NAMES = 3
"""Rows of one version that are named."""
SIZES = """Five sites of {true} samples, FedAvg (`python -m benchmarks.attacks.sizes`, mean of {seeds} seeds). The last
one turns the sign of its update from the first round on and declares more samples than it has, on joining and in every
reply. Final accuracy, and how many of its updates were set aside. `before` is the version in which declared sizes
stretched every guard and no share was bounded by default; `no heuristics` is what a simulation does unless it asks for
more; `always` is what real sites get. The roster bounds what a site may declare at all (`samples`); "ended" is a run
that had no quorum any more:"""
HONEST_LARGE = """The price is paid by an honest site that is much larger than the others: it counts for half of a
round at most, is refused for its length where it is some fifty times as large, and of K classes one that has more
than {opposed:g} (K - 1) times the others' samples, all with wrong labels, goes as far back in the first exchange as
a turned sign does. A coordinator that knows its sites says `largest_share = 1` in `[gate]`, and bounds single sites
in the roster."""
COST = """Final accuracy of averaging methods on ten equal sites of digits with clean labels (with several labels a
sample where a method needs them), one of them hostile, and what the worst attack costs in points. `absent` never
answers, which is what a refused attack comes to."""
ROBUST = """Two hostile sites of ten against `aggregate = "trimmed"`, `hostile = 0.2`; methods without that key
run with their own rule."""
SHARED = """An attack whose models are all refused needs no run of its own: each is tried on every exchange of the run
in which the hostile site sends no model. Of {proven} such cells the run was made all the same, at least one a
method, and ended in the same model to the last bit."""
NEAR = """How near honest federations come to the limits, in shares of each limit: 1 would be a refusal (opposed:
negative where everybody goes along). Digits over ten sites unless said otherwise; `python -m benchmarks.attacks
--honest` measures those that are not in the table yet, over every kind of skew and wrong labels, and presets on real
data cut to their first rounds. Sites of given sizes are measured with `largest_share = 1`: without it one of 1,000
samples beside sites of 20 is refused for its length, since a size that nobody has confirmed does not stretch the limit
fifty times. No figure for `opposed`: the first exchange showed nothing."""
RATES = """How often an honest site is refused, in federations that differ in everything that a study may choose
(`python -m benchmarks.attacks.rates`): {federations:,} of one to three rounds of FedAvg on digits, {updates:,}
updates of honest sites. Networks without a hidden layer, with two, with convolutions, with group norm, and LeNet-5;
labels that are clean or FedCorr's (0.6, 0.5); usual steps (5 or 10 sites of 300 or 600 samples together, one or
four epochs, batches of 32, learning rates from {low:g} to {high:g}) or many small ones (10 to 40 sites, one epoch
of all samples, batches of 8, {least:g} or {less:g}), with which a network of several layers has hardly begun to
learn after a round; sites that are all there, that miss three rounds of ten, or of which one comes in the last
round. Each ran twice. In brackets the 95 % interval of the share (Wilson)."""
RATE_LINES = """**In a simulation**, as it is by default, a site was refused in {default} of {federations:,} federations
({default_interval}). **Among real sites** (`always`) a site was refused in {always} ({always_interval}): {sites}
updates of {attended:,} ({site_interval}); {reasons}. By what differs:"""
UNSEEN = """An interval holds for federations such as these: small, of digits, in their first rounds; the seeds are the
same in every configuration, so that two federations may share their data, and the interval is a little wider in truth.
What happens later
is in the table above, over up to forty rounds. A refusal among real sites costs the site a round, or until it is tried
again; the run's events and the round's line give the reason, and the coordinator can widen the limit or switch
the heuristic off without a new run (see [deployment](deployment.md#start))."""
EQUAL = """Every preset that has a small form, cut to a few rounds of every stage and to 600 to 1,500 samples, with
heuristics that judge and without, shares unbounded in both (`python -m benchmarks.attacks.presets`):
{equal} of {runs} ended in the same state to the last bit, {refused} updates were refused."""
LIES = """Sites that lie about their scores cannot be found by their form. F1 of finding the noisy sites among {sites}
(40 % are noisy, half to all of their labels wrong), against the share of sites that lie: a noisy one claims the
scores of the cleanest, a clean one those of the noisiest ({seeds} federations of digits, {draws} draws of liars
each). The first check takes the loss of each site's model on {own} labelled samples of the coordinator's own;
the second the median of what the other sites, liars among them, say of it."""
ADVICE = """A claim is worth what the claimant is worth. A coordinator with labelled samples of its own should
compare: a site whose claim and whose model disagree is one to call. Asking the other sites is no substitute
where many of them are noisy: their labels make them bad judges before anybody lies."""


def points(value: float | None) -> str:
    return "ended" if value is None else f"{100 * value:.1f}"


def share(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def table(head: list[str], body: list[list[str]]) -> str:
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, rule, *body])


def results() -> dict[str, dict[str, Any]]:
    found = read_tree(ACCURACY, ACCURACY_KEY)
    return {name: found.get(name, {}) for name in averaging()}


def mean_of(cells: Sequence[Mapping[str, Any]]) -> float | None:
    """The mean accuracy over seeds; None where a run was ended."""
    values = [cell["accuracy"] for cell in cells]
    return None if None in values else round(statistics.mean(values), 4)


def rows_of(found: Mapping[str, Any], kind: str) -> list[dict[str, Any]]:
    """A method's rows, one a seed."""
    return [row for key, row in sorted(found.items()) if key.startswith(f"{kind}, ")]


def rows_by_seed(found: Mapping[str, Mapping[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    """Every row's measure, by method and seed."""
    return {
        f"{name}, {key.partition(', ')[2]}": row["none"]
        for name, cells in found.items()
        for key, row in sorted(cells.items())
        if key.startswith(f"{kind}, ")
    }


def block(found: dict[str, dict[str, Any]], kind: str, most: float, extra: list[str]) -> str:
    """A table of accuracies, then the cells that cost more than they may, then what was not run and why."""
    attacks = [*extra, *MODEL]
    body, missed, unmeasured, proven = [], [], [], 0
    for name, cells in found.items():
        rows = rows_of(cells, kind)
        if not rows:
            unmeasured.append(name)
            continue
        means = {attack: mean_of([row[attack] for row in rows]) for attack in ["none", *attacks]}
        base = means["none"]
        assert base is not None
        lost = {attack: None if (value := means[attack]) is None else base - value for attack in attacks}
        worst = max((value for value in lost.values() if value is not None), default=0.0)
        body.append([name, str(len(rows)), *(points(value) for value in means.values()), points(worst)])
        missed += [
            f"{name} under {attack} ({'the run ended' if value is None else f'{100 * value:.1f} points'})"
            for attack, value in lost.items()
            if value is None or round(value, 4) > most
        ]
        proven += sum(bool(row[attack].get("proven")) for row in rows for attack in attacks)
    text = table(["method", "seeds", "nobody", *attacks, "worst"], body)
    text += f"\n\nCells that cost more than {100 * most:.0f} points:\n\n"
    text += "\n".join(f"- {each}" for each in missed) if missed else f"- {MISSING.lower().rstrip('.')}"
    text += "\n\n" + filled(f"{SHARED.format(proven=proven)} {versions(rows_by_seed(found, kind))}")
    if unmeasured:
        text += "\n\n" + filled(f"Not measured: {', '.join(unmeasured)}.")
    return text


def missed_methods() -> list[str]:
    """Methods with a cell that costs more than it may."""
    bounds = {"one": ONE, "two": TWO}
    return [
        name
        for name, cells in results().items()
        if any(
            cell["accuracy"] is None or round(row["none"]["accuracy"] - cell["accuracy"], 4) > bound
            for kind, bound in bounds.items()
            for row in rows_of(cells, kind)
            for cell in row.values()
        )
    ]


def why() -> str:
    found = read_tree(AGREEMENT, AGREEMENT_KEY)
    rounds = max((len(rows) for rows in found.values()), default=0)
    head = ["method", *(f"exchange {number + 1}: models, median cosine" for number in range(rounds))]
    body = [
        [name, *(f"{row['models']}, {share(row['cosine'])}" for row in rows.values())] for name, rows in found.items()
    ]
    longest = GateLimits().norm_factor * max(row["length"] for row in read_tree(HONEST, HONEST_KEY).values())
    return f"{filled(WHY.format(longest=longest))}\n\n{table(head, body)}\n\n{alone()}"


def measured_everywhere(found: Mapping[str, Any], seed: str) -> bool:
    """Whether all ways of visiting can be compared at this seed."""
    return all(f"{kind}, {way}, {seed}" in found for kind in ("early", *KINDS) for way in WAYS)


def alone() -> str:
    """Sites that cannot be told from attackers, by figures; then what a study can do about it."""
    found, ways = read_tree(ALONE, ALONE_KEY), read_tree(BACK, BACK_KEY)[FINDINGS]
    wrong, flip = (ways[who][0] for who in ("honest, every label wrong", "sign flip"))
    seeds = sorted(key for key in found if key.startswith("seed "))
    lone = [[who, *(f"{found[key][who]:.2f}" for key in seeds)] for who in ("every label wrong", "sign flip")]
    early = [
        [f"`{way}`" if WAYS[way] else way, str(number + 1), points(mean_of([row["none"] for row in rows]))]
        + [points(mean_of([row[f"{name}, visited {number + 1}"] for row in rows])) for name in EARLY]
        for way in WAYS
        if (rows := rows_of(found, f"early, {way}"))
        for number in range(VISITED)
    ]
    late = []
    for way, kind in itertools.product(WAYS, KINDS):
        rows = [found[f"{kind}, {way}, {seed}"] for seed in seeds if measured_everywhere(found, seed)]
        if rows:
            means = [mean_of([row[name] for row in rows]) or 0.0 for name in ("none", *MISSED)]
            lost = [f"{points(value)} ({100 * (means[0] - value):.1f})" for value in means[1:]]
            name = f"`{way}`" if WAYS[way] else way
            late.append([name, kind, str(len(rows)), points(means[0]), *lost])
    counted = {len(rows_of(found, f"early, {way}")) for way in WAYS}
    words = " to ".join(map(str, sorted(counted))) + (" seed" if counted == {1} else " seeds")
    parts = [
        filled(SAME.format(wrong=wrong, flip=flip)),
        table(["site", *seeds], lone),
        filled(EARLIEST.format(seeds=words)),
        table(["visits", "visited as number", "nobody", *EARLY], early),
        filled(REMEDY),
        table(["visits", "hostile", "seeds", "nobody", *MISSED], late),
    ]
    return "\n\n".join(parts)


def versions(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Which rows of a table are of which version of the source."""
    of: dict[str, list[str]] = {}
    for name, row in rows.items():
        of.setdefault(row.get(SOURCE, ""), []).append(name)
    told = [
        f"{len(names)} {f'by `{one}`' if one else 'before this was written down'}"
        + (f" ({'; '.join(names)})" if len(names) <= FEW_NAMES else "")
        for one, names in of.items()
    ]
    return f"Rows by the version of the source that measured them: {', '.join(told)}."


def sizes() -> str:
    """What a turned sign costs by what its site declares."""
    found = read_tree(SIZES_FILE, SIZES_KEY)
    body = []
    for name in (BEFORE, *GATES):
        rows = found[name]
        cells = []
        for declared in (NOBODY, *DECLARED):
            of_seeds = [row[declared] for row in rows.values()]
            refused = sum(row.get("refused") or 0 for row in of_seeds) / len(of_seeds)
            accuracy = points(mean_of(of_seeds))
            cells.append(accuracy if accuracy == "ended" else f"{accuracy} ({refused:.0f})")
        body.append([name, *cells])
    head = ["gate", "nobody", *(f"declares {declared:,}" for declared in DECLARED)]
    words = SIZES.format(true=TRUE, seeds=len(found[BEFORE]))
    return f"{filled(words)}\n\n{table(head, body)}\n\n{filled(HONEST_LARGE.format(opposed=GateLimits().opposed))}"


def limits() -> str:
    from fedsift.cli.listings import field_docs

    docs = field_docs(GateLimits)
    return table(
        ["key", "default", "what it does"],
        [[f"`{e.name}`", f"{e.default}", " ".join(docs[e.name].split())] for e in dataclasses.fields(GateLimits)],
    ).replace("---:", "---")


def back() -> str:
    found = read_tree(BACK, BACK_KEY)
    if not found:
        return ""
    rounds = len(next(iter(found[10].values())))
    head = ["classes", "site", *(f"exchange {number + 1}" for number in range(rounds))]
    body = [
        [str(classes), who, *(f"{way:.2f}" for way in ways)]
        for classes, rows in found.items()
        for who, ways in rows.items()
    ]
    return table(head, body)


def turned() -> str:
    """By skew or by kind of labels: the largest honest turn, and the share of attackers that are told."""
    found = read_tree(TURNED, TURNED_KEY)
    groups: dict[str, list[dict[str, Any]]] = {}
    for key, row in found.items():
        groups.setdefault(key.split("; ")[0], []).append(row)
    body = [
        [
            name,
            str(len(rows)),
            f"{sum(row['updates'] for row in rows):,}",
            f"{max(row['honest'] for row in rows):.2f}",
            f"{max(row['by and by'] for row in rows):.2f}",
            f"{100 * sum(row['told'] for row in rows) / max(1, sum(row['updates'] for row in rows)):.0f} %",
        ]
        for name, rows in groups.items()
    ]
    judged = [row for key, row in found.items() if not key.startswith("2 classes")]
    words = TURNS.format(
        turned=GateLimits().turned,
        common=gate.COMMON,
        updates=f"{sum(row['updates'] for row in judged):,}",
        runs=len(judged),
        seed=SEED,
    )
    head = [
        "federations",
        "runs",
        "updates judged",
        "honest turn",
        "honest turn in four and more",
        "attackers found",
    ]
    return f"{filled(words)}\n\n{table(head, body)}\n\n{filled(UNTOLD)}"


def presets() -> str:
    """One line a preset: whether both runs ended alike."""
    found = read_tree(PRESETS, PRESETS_KEY)
    equal = sum(row["equal"] for row in found.values())
    missing = [name for name in small_presets() if name not in found]
    words = filled(EQUAL.format(runs=len(found), equal=equal, refused=sum(row["refused on"] for row in found.values())))
    body = [
        [f"`{name}`", str(row["rounds"]), f"`{row['on'][:12]}`", "yes" if row["equal"] else "**no**"]
        for name, row in sorted(found.items())
    ]
    text = f"{words}\n\n{table(['preset', 'rounds', 'state', 'equal'], body)}\n\n{filled(versions(found))}"
    return text + (f"\n\n{filled('Not run: ' + ', '.join(missing) + '.')}" if missing else "")


def honest() -> str:
    found = read_tree(HONEST, HONEST_KEY)
    names = ["length", "statistics", "against", "opposed", "turned"]
    body = [
        [name, *(share(row.get(key)) for key in names), str(len(row["refused"]))] for name, row in sorted(found.items())
    ]
    return f"{table(['federation', *names, 'refused'], body)}\n\n{filled(versions(found))}"


def interval(k: int, n: int) -> str:
    low, high = wilson(k, n)
    return f"{100 * low:.2f} to {100 * high:.2f} %"


def rates() -> str:
    """Refusals of honest sites: in all, and by network, partition, labels and attendance."""
    rows = read_list(RATES_FILE)

    def total(name: str, of: Sequence[Mapping[str, Any]], gate: str = "") -> int:
        return sum((row[gate] if gate else row)[name] for row in of)

    federations, attended = total("federations", rows), total("updates", rows)
    always, sites = total("federations", rows, ALWAYS), total("updates", rows, ALWAYS)
    reasons = [f"{name} {count}" for name in (*REASONS, OTHER) if (count := total(name, rows, ALWAYS))]
    default = total("federations", rows, DEFAULT)
    body = []
    for key in RATES_KEY:
        for value in dict.fromkeys(row[key] for row in rows):
            own = [row for row in rows if row[key] == value]
            n, k = total("federations", own), total("federations", own, ALWAYS)
            by_default = total("federations", own, DEFAULT)
            body.append([f"{key}: {value}", f"{n:,}", str(by_default), f"{k} ({interval(k, n)})"])
    words = RATES.format(
        federations=federations,
        updates=attended,
        low=min(LEARNING_RATES),
        high=max(LEARNING_RATES),
        least=min(SMALL_RATES),
        less=max(SMALL_RATES),
    )
    lines = RATE_LINES.format(
        default=default,
        federations=federations,
        default_interval=interval(default, federations),
        always=always,
        always_interval=interval(always, federations),
        sites=sites,
        attended=attended,
        site_interval=interval(sites, attended),
        reasons=f"by reason: {', '.join(reasons)}" if reasons else "no reason was given",
    )
    head = ["federations", "number", "refused in a simulation", "refused among real sites"]
    return f"{filled(words)}\n\n{filled(lines)}\n\n{table(head, body)}\n\n{filled(UNSEEN)}"


def lying() -> str:
    found = read_tree(LYING, LYING_KEY)
    body = [[kind, *(f"{rows[kind]['f1']:.2f}" for rows in found.values())] for kind in CHECKS]
    words = LIES.format(**found[0][CHECKS[0]])
    head = ["", *(f"{100 * share:.0f} % lie" for share in found)]
    return f"{filled(words)}\n\n{table(head, body)}\n\n{filled(ADVICE)}"


def page() -> str:
    found = results()
    parts = [
        "# Attacks", filled(TOP), "## What is refused", filled(FIRST),
        filled(", ".join(FORM) + "."), filled(THEN), limits(),
        filled(FLIPS.format(opposed=GateLimits().opposed)), back(), turned(),
        filled(AGAIN.format(after=GateLimits().readmit_after, cohort=GateLimits().norm_cohort)),
        "## Lying about size", sizes(),
        "## One hostile site of ten", filled(COST), block(found, "one", ONE, ["absent"]),
        "## Two hostile sites of ten", filled(ROBUST), block(found, "two", TWO, []), why(),
        "## Honest federations", filled(NEAR), honest(), rates(),
        "## Presets with and without protection", presets(),
        "## Lying scores", lying(),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write(page())
