"""`fedsift models`: the networks, with their size."""

from __future__ import annotations

import typer

from fedsift.cli.output import print_json, print_table


def register(app: typer.Typer) -> None:
    app.command("models")(list_models)


def list_models(json: bool = typer.Option(False, "--json", help="Print as JSON.")) -> None:
    """List the networks, with their size for the images that their stem is made for."""
    from fedsift.cli.catalogue import model_entries
    from fedsift.core.units import size

    cards = model_entries()
    if json:
        print_json(cards)
    else:
        cells = [[c["name"], c["stem"], f"{c['parameters']:,}", size(c["bytes"]), c["summary"]] for c in cards]
        print_table("models", ["name", "stem", "parameters", "message", "what it is"], cells)
