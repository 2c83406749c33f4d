"""`fedsift demo`: a noisy federation, sifted, in under two minutes on bundled data."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fedsift.cli.audit import tell_audit
from fedsift.cli.output import print_json, say, stdout

if TYPE_CHECKING:
    from fedsift.audits.studies import Audit
    from fedsift.study import Study

AUDIT_FOLDS, AUDIT_ROUNDS = 4, 8
"""Fewer than `fedsift audit` takes by itself: the whole demo is to end within two minutes."""


def register(app: typer.Typer) -> None:
    app.command("demo")(demo)


def demo(
    out: Path = typer.Option(Path("runs"), "--out", help="Where the runs' folders are made."),
    seed: int = typer.Option(7, "--seed", help="Another federation."),
    show: bool = typer.Option(False, "--open", help="Open the report in the browser."),
    json: bool = typer.Option(False, "--json", help="Print the summaries as JSON."),
) -> None:
    """Spoil the labels of some sites of a digits federation, show who was noisy, and audit every site's labels."""
    from fedsift.api.progress import round_progress
    from fedsift.report import print_comparison, write_report
    from fedsift.study.demo import demo_studies
    from fedsift.study.running import new_run
    from fedsift.study.running import run as run_study

    studies = demo_studies(seed)
    spread = studies[0].spread()
    if not json:
        noisy = len(spread.truth.noisy) if spread.truth else 0
        stdout.print(
            f"{len(spread.dataset.train)} handwritten digits at {len(spread.sites)} sites; "
            f"{noisy} of the sites have wrong labels, and the methods are not told which.",
            highlight=False,
        )
    runs, summaries = [], []
    for study in studies:
        folder = new_run(study, out)
        with round_progress(
            study.method_name, study.method.total_rounds, silent=json, folder=folder.path
        ) as listen:
            summaries.append(run_study(study, folder, listen, spread))
        runs.append(folder.path)
    report = write_report(runs[-1], None, runs[:-1])
    if not json:
        print_comparison(runs, report)
        say(
            "\nNow every site learns which of its labels are wrong: each is judged by a model that never saw it."
        )
    found = _audited(studies[0], Path(f"{runs[-1]}-audit"), silent=json)
    if json:
        of_runs = [{**s, "run": r} for s, r in zip(summaries, runs)]
        print_json({"runs": of_runs, "report": report, "audit": {**found.summary, "out": found.out}})
    else:
        tell_audit(found)
    if show:
        worst = max(found.folders, key=lambda site: found.summary["sites"][site]["flagged"])
        for page in (report, found.folders[worst].report):
            webbrowser.open(page.absolute().as_uri())


def _audited(study: Study, out: Path, *, silent: bool) -> Audit:
    from fedsift.api.progress import round_progress
    from fedsift.audits.studies import audit, audit_study

    made, _ = audit_study(study, folds=AUDIT_FOLDS, rounds=AUDIT_ROUNDS)
    with round_progress("audit", made.method.total_rounds, silent=silent) as listen:
        return audit(made, out, listen=listen)
