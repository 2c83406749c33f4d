"""`fedsift trackers`: where a run's figures can be copied to."""

from __future__ import annotations

import typer

from fedsift.cli.fields import list_or_show


def register(app: typer.Typer) -> None:
    app.command("trackers")(list_trackers)


def list_trackers(
    name: str = typer.Argument("", help="A tracker, to see its fields."),
    json: bool = typer.Option(False, "--json", help="Print as JSON."),
) -> None:
    """List the trackers of the table `track`, or the fields of one."""
    from fedsift.tracking.base import trackers

    list_or_show(trackers, name, json)
