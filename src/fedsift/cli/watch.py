"""`fedsift watch`: a run in the terminal while it runs."""

from __future__ import annotations

from pathlib import Path

import typer

from fedsift.cli.output import print_json, stdout


def register(app: typer.Typer) -> None:
    app.command("watch")(watch)


def watch(
    run: Path = typer.Argument(help="The run's folder, also one on another machine's shared disk."),
    once: bool = typer.Option(False, "--once", help="Show how it stands now, and stop."),
    json: bool = typer.Option(False, "--json", help="Print how it stands now as JSON, and stop."),
) -> None:
    """Follow a run in the terminal: stages, sites, scores, findings, time left. Ctrl-C stops looking, not the run."""
    from fedsift.report.watching import RunScreen, follow

    view = RunScreen(run)
    if json:
        state = {"run": view.folder.path, "state": view.state.word, "why": view.state.why}
        print_json({**state, **view.story.snapshot(view.at)})
    elif once:
        for line in view.lines(stdout.width, max(stdout.height, 20)):
            stdout.print(line)
    else:
        follow(view, stdout)
