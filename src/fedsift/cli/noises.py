"""`fedsift noises`: the ways to spoil labels."""

from __future__ import annotations

import typer

from fedsift.cli.fields import list_or_show


def register(app: typer.Typer) -> None:
    app.command("noises")(list_noises)


def list_noises(
    name: str = typer.Argument("", help="A noise model, to see its fields."),
    json: bool = typer.Option(False, "--json", help="Print as JSON."),
) -> None:
    """List the ways to spoil labels, or the fields of one."""
    from fedsift.data.noise.base import noises

    list_or_show(noises, name, json)
