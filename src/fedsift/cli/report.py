"""`fedsift report`: one offline HTML file from a run folder."""

from __future__ import annotations

from pathlib import Path

import typer

from fedsift.cli.output import print_json, say


def register(app: typer.Typer) -> None:
    app.command("report")(report)


def report(
    run: Path = typer.Argument(help="The run's folder."),
    compare: list[Path] = typer.Option([], "--compare", help="Other runs on the same data, drawn beside it."),
    out: Path = typer.Option(None, "--out", help="Where to write it; report.html in the run's folder by default."),
    json: bool = typer.Option(False, "--json", help="Print the file's path as JSON."),
) -> None:
    """Write the run's report: one HTML file that needs no network."""
    from fedsift.report.page import write_report

    path = write_report(run, out, compare)
    if json:
        print_json({"report": path})
    else:
        say(f"report: {path}")
