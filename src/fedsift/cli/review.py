"""`fedsift review`: what to review, importing the verdicts, and what they say about the list."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fedsift.cli.output import print_json, print_table, say, stdout
from fedsift.core.errors import DataError
from fedsift.detection.label_thresholds import BLIND, WITHIN

if TYPE_CHECKING:
    from fedsift.label_audit.review import ReviewPlan, ReviewStatus
    from fedsift.label_audit.site_audit import SiteAudit

FOLDER = typer.Argument(help="A site's folder of an audit: OUT/sites/SITE.")
JSON = typer.Option(False, "--json", help="Print as JSON.")


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Review suspect labels: plan, export, import, status, recalibrate.", no_args_is_help=True)
    group.command("plan")(plan)
    group.command("export")(export)
    group.command("import")(import_verdicts)
    group.command("status")(show_status)
    group.command("recalibrate")(recalibrate_site)
    app.add_typer(group, name="review")


def plan(
    folder: Path = FOLDER,
    worst: int | None = typer.Option(None, "--worst", help="How many of the most suspicious (default 100)."),
    flagged: int | None = typer.Option(
        None, "--flagged", help="How many of the other flagged, at random (default 100)."
    ),
    unflagged: int | None = typer.Option(
        None, "--unflagged", help="How many of the unflagged, at random (default 100)."
    ),
    within: float | None = typer.Option(
        None, "--within", help="Instead of 100: as many as it takes to be within so many points, e.g. 5."
    ),
    blind: float = typer.Option(BLIND, "--blind", help="Share shown without a proposal."),
    until_decided: bool = typer.Option(
        False, "--until-decided", help="Instead: a random sample, read until it says whether labels are wrong."
    ),
    seed: int | None = typer.Option(None, "--seed", help="Of the draw (default: the audit's)."),
    json: bool = JSON,
) -> None:
    """Draw the review queue: the worst, a random part of the other flagged, a random part of the unflagged."""
    from fedsift.core.numbers import plain
    from fedsift.label_audit.ledger import LabelLedger
    from fedsift.label_audit.review import decided, draw_plan
    from fedsift.label_audit.site_audit import OPEN
    from fedsift.label_audit.verdicts import verdicts_on
    from fedsift.label_audit.writing import open_site, write_queue

    place, audit = open_site(folder)
    share = None if within is None else within / 100
    drawn = draw_plan(
        audit, worst, flagged, unflagged, blind=blind, seed=seed, within=share, until_decided=until_decided
    )
    answer = None
    if until_decided:
        verdicts = verdicts_on(audit, LabelLedger(place.ledger).entries())
        answer = decided(audit, drawn, verdicts)
        if answer.answer != OPEN:
            drawn = drawn.stopped(verdicts)
    write_queue(place, audit, drawn)
    arms = [(name, sum(item.arm == name for item in drawn.items), drawn.sizes[name]) for name in drawn.sizes]
    blinded = sum(item.blind for item in drawn.items)
    if json:
        counts = {name: {"planned": count, "of": size} for name, count, size in arms}
        about = {"plan": place.plan, "report": place.report, "arms": counts, "blind": blinded, "seed": drawn.seed}
        print_json({**about, "random": len(drawn.random), "answer": plain(answer)})
        return
    print_table(f"Review of site {audit.site}", ("arm", "samples", "of"), arms)
    stdout.print(f"{len(drawn.items)} samples, {blinded} of them without a proposal", highlight=False)
    if answer is not None:
        stdout.print(answer.words, highlight=False, soft_wrap=True)
        if answer.answer != OPEN:
            return
    stdout.print(f"review them in {place.report}, or with the files in {place.review}", highlight=False, soft_wrap=True)


def export(
    folder: Path = FOLDER,
    to: Path | None = typer.Option(None, "--to", help="Another folder than review/ in the site's."),
    prefix: str = typer.Option(
        "", "--image-prefix", help='Before each path in Label Studio tasks, e.g. "/data/local-files/?d=".'
    ),
    json: bool = JSON,
) -> None:
    """Write the queue for Label Studio, as a CSV to fill in, and the samples for FiftyOne."""
    from fedsift.label_audit.exports import write_review
    from fedsift.label_audit.writing import open_site, stored_thumbnails

    place, audit = open_site(folder)
    drawn = current_plan(place.plan, audit)
    files = write_review(to or place.review, audit, drawn, stored_thumbnails(place, audit), prefix)
    if json:
        print_json({"files": files})
    else:
        for file in files:
            stdout.print(str(file), highlight=False, soft_wrap=True)


def import_verdicts(
    folder: Path = FOLDER,
    files: list[Path] = typer.Argument(help="Verdicts: the page's JSON, a filled CSV queue, or Label Studio's JSON."),
    reader: str = typer.Option("", "--reader", help="Who read, where the file does not say."),
    adjudicate: bool = typer.Option(False, "--adjudicate", help="These verdicts settle what readers left open."),
    json: bool = JSON,
) -> None:
    """Take verdicts over into the ledger; what was imported before is not taken twice."""
    from fedsift.core.numbers import plain, plural
    from fedsift.label_audit.ledger import LabelLedger, LedgerEntry, LedgerNote, effective
    from fedsift.label_audit.verdicts import from_entries, notes, read_verdicts, superseded
    from fedsift.label_audit.writing import enter_decision, open_site

    place, audit = open_site(folder)
    said = [one for file in files for one in read_verdicts(file, audit, reader, adjudicate)]
    older = 0

    def new(entries: list[LedgerEntry]) -> list[LedgerNote]:
        nonlocal older
        known = from_entries(effective(entries))
        older = superseded(said, known)
        return notes(said, audit, known)

    who = ", ".join(sorted({one.reader for one in said})) or "nobody"
    fresh = LabelLedger(place.ledger).append(new, who)
    answer, _ = enter_decision(place, audit, who)
    if json:
        print_json({"verdicts": len(said), "new": len(fresh), "superseded": older, "answer": plain(answer)})
        return
    since = f"; {older:,} older than what the same reader said since, which counts" if older else ""
    say(f"{plural(len(said), 'verdict')}, {len(fresh):,} of them new{since}")
    if answer is not None and answer.labels:
        say(answer.words)


def show_status(
    folder: Path = FOLDER,
    within: float = typer.Option(100 * WITHIN, "--within", help="The wanted precision in points."),
    json: bool = JSON,
) -> None:
    """How good the list is, by what people said: its precision, the share missed, and what to review next."""
    from fedsift.core.numbers import plain
    from fedsift.label_audit.ledger import LabelLedger
    from fedsift.label_audit.review import status
    from fedsift.label_audit.verdicts import verdicts_on
    from fedsift.label_audit.writing import open_site

    place, audit = open_site(folder)
    verdicts = verdicts_on(audit, LabelLedger(place.ledger).entries())
    found = status(audit, current_plan(place.plan, audit), verdicts, within / 100)
    if json:
        print_json(plain(found))
    else:
        _print_status(found)


def recalibrate_site(
    folder: Path = FOLDER,
    reader_error: float | None = typer.Option(
        None,
        "--reader-error",
        min=0.0,
        max=0.49,
        help="Share of verdicts that are mistaken; estimated from them if not given.",
        show_default=False,
    ),
    json: bool = JSON,
) -> None:
    """Let the verdicts set the probabilities: how sure a score is, and what people settled."""
    from fedsift.core.numbers import plural
    from fedsift.label_audit.ledger import LabelLedger
    from fedsift.label_audit.recalibration import recalibrate
    from fedsift.label_audit.verdicts import verdicts_on
    from fedsift.label_audit.writing import enter_decision, open_site, stored_thumbnails, write_site

    place, audit = open_site(folder)
    _, audit = enter_decision(place, audit, "fedsift review recalibrate")
    verdicts = verdicts_on(audit, LabelLedger(place.ledger).entries())
    drawn = current_plan(place.plan, audit)
    after, learnt = recalibrate(audit, drawn, verdicts, reader_error)
    write_site(place.path.parent.parent, after, stored_thumbnails(place, audit), plan=drawn)
    before, now = int(audit.as_made.flagged.sum()), int(after.flagged.sum())
    if json:
        print_json(
            {
                "offset": learnt.curve.offset,
                "slope": learnt.curve.slope,
                "reader_error": learnt.reader_error,
                "listed_before": before,
                "listed": now,
            }
        )
    else:
        stdout.print(
            f"{plural(len(verdicts), 'verdict')}, about {learnt.reader_error:.1%} of them mistaken: "
            f"{plural(before, 'sample')} on the audit's list, {now:,} now",
            highlight=False,
        )


def current_plan(path: Path, audit: SiteAudit) -> ReviewPlan:
    """The plan, which must have been drawn from the audit that is there."""
    from fedsift.label_audit.review import read_plan

    drawn = read_plan(path)
    if drawn.fingerprint != audit.as_made.fingerprint():
        raise DataError(f"{path} was drawn from another audit: draw a new one with `fedsift review plan`")
    return drawn


def _print_status(found: ReviewStatus) -> None:
    from fedsift.core.numbers import plural

    rows = [
        (
            arm.name,
            f"{arm.size:,}",
            f"{arm.reviewed} of {arm.planned}",
            arm.wrong,
            arm.cannot_tell,
            _share(arm.share, arm.low, arm.high),
        )
        for arm in found.arms
    ]
    print_table(
        f"Review of site {found.site}",
        ("arm", "samples", "reviewed", "wrong", "cannot tell", "share wrong (95 %)"),
        rows,
    )
    since = f"; recalibrated since, it has {found.listed_now:,}" if found.recalibrated else ""
    answer = found.answer
    lines = [
        f"wrong labels of the site: {_share(answer.share.share, answer.share.low, answer.share.high)}, by "
        f"{plural(answer.verdicts, 'verdict')} on {plural(answer.labels, 'label')} of a random sample"
        if answer.labels
        else "wrong labels of the site: not known yet: nobody has read the first of the random sample",
        f"answer: {answer.words}",
        f"the list: the audit's own, {plural(found.list_drawn_from, 'sample')}, from which the queue was drawn{since}",
        f"precision of the list: {_share(found.precision.share, found.precision.low, found.precision.high)}",
        f"share of wrong labels missed: {_share(found.missed.share, found.missed.low, found.missed.high)}",
    ]
    if found.blind["reviewed"] and found.shown["reviewed"]:
        lines.append(
            f"flagged and found wrong: {found.blind['wrong']} of {found.blind['reviewed']} without a proposal, "
            f"{found.shown['wrong']} of {found.shown['reviewed']} with one"
        )
    lines += [
        f"{pair.first} and {pair.second} agree on {pair.agreed} of {pair.samples} (kappa {_number(pair.kappa)})"
        for pair in found.agreement
    ]
    if answer.read_again and answer.answer == "open":
        lines.append(f"to be read by another reader: {_few(answer.read_again)}")
    if found.to_adjudicate:
        lines.append(f"to adjudicate: {_few(found.to_adjudicate)}")
    if found.outside_plan:
        lines.append(f"{plural(found.outside_plan, 'verdict')} on samples outside the plan: for corrections only")
    lines += [f"next: {advice}" for advice in found.advice]
    for line in lines:
        stdout.print(line, highlight=False, soft_wrap=True, markup=False)


def _share(share: float, low: float, high: float) -> str:
    if math.isnan(share):
        return "not known yet"
    return f"{100 * share:.0f} % ({100 * low:.0f} to {100 * high:.0f} %)"


def _number(value: float) -> str:
    return "undefined" if math.isnan(value) else f"{value:.2f}"


def _few(names: Sequence[str], most: int = 10) -> str:
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")
