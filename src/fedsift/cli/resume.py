"""`fedsift resume`: go on with a run that was stopped."""

from __future__ import annotations

from pathlib import Path

import typer

from fedsift.cli.run import SERVE, go


def register(app: typer.Typer) -> None:
    app.command("resume")(resume)


def resume(
    run: Path = typer.Argument(help="The run's folder."),
    serve: bool = SERVE,
    json: bool = typer.Option(False, "--json", help="Print the summary as JSON."),
) -> None:
    """Go on with a run that was stopped by Ctrl-C, a crash or a lack of replies; the result is the unbroken run's."""
    from fedsift.study.running import reopen

    study, folder = reopen(run)
    go(study, folder, as_json=json, done=len(folder.rounds()), serve=serve)
