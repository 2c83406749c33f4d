"""`fedsift partitions`: the ways to spread samples over sites."""

from __future__ import annotations

import typer

from fedsift.cli.fields import list_or_show


def register(app: typer.Typer) -> None:
    app.command("partitions")(list_partitions)


def list_partitions(
    name: str = typer.Argument("", help="A partition, to see its fields."),
    json: bool = typer.Option(False, "--json", help="Print as JSON."),
) -> None:
    """List the ways to spread samples over sites, or the fields of one."""
    from fedsift.data.partitions.base import partitions

    list_or_show(partitions, name, json)
