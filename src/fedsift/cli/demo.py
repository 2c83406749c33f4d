"""`fedsift demo`: a noisy federation, sifted, in under two minutes on bundled data."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import typer

from fedsift.cli.output import print_json, stdout


def register(app: typer.Typer) -> None:
    app.command("demo")(demo)


def demo(
    out: Path = typer.Option(Path("runs"), "--out", help="Where the runs' folders are made."),
    seed: int = typer.Option(7, "--seed", help="Another federation."),
    show: bool = typer.Option(False, "--open", help="Open the report in the browser."),
    json: bool = typer.Option(False, "--json", help="Print the summaries as JSON."),
) -> None:
    """Spoil the labels of some sites of a digits federation, train FedAvg and FedNoRo, and show who was noisy."""
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
        with round_progress(study.method_name, study.method.total_rounds, silent=json) as listen:
            summaries.append(run_study(study, folder, listen, spread))
        runs.append(folder.path)
    report = write_report(runs[-1], None, runs[:-1])
    if json:
        print_json({"runs": [{**s, "run": r} for s, r in zip(summaries, runs)], "report": report})
    else:
        print_comparison(runs, report)
    if show:
        webbrowser.open(report.absolute().as_uri())
