"""`fedsift datasets`: what there is, and where it lies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from fedsift.cli.fields import show_fields
from fedsift.cli.output import print_json, print_table

if TYPE_CHECKING:
    from fedsift.data.sources.base import Source


def register(app: typer.Typer) -> None:
    app.command("datasets")(list_datasets)


def list_datasets(
    name: str = typer.Argument("", help="A dataset, to see its fields."),
    json: bool = typer.Option(False, "--json", help="Print as JSON."),
) -> None:
    """List the datasets and where they are, or one dataset's fields."""
    from fedsift.data.sources.base import sources

    if name:
        show_fields(sources, name, json)
        return
    entries = []
    for key in sources:
        cls = sources.get(key)
        entries.append({"name": key, "labels": cls.kind, "where": _where(key, cls), "licence": cls.licence,
                        "what": cls.about()})  # fmt: skip
    if json:
        print_json(entries)
    else:
        cells = [[e["name"], e["labels"], e["what"], e["where"]] for e in entries]
        print_table("datasets", ["name", "labels", "what it is", "where"], cells)


def _where(name: str, cls: type[Source]) -> str:
    from fedsift.data.download import BY_HAND, REMOTES, data_roots

    if cls.bundled:
        return "bundled"
    if not cls.folder:
        return "your own"
    for root in data_roots():
        if (root / cls.folder).exists():
            return str(root / cls.folder)
    if name in REMOTES or name == "medmnist":
        return f"fedsift data get {name if name in REMOTES else 'dermamnist'}"
    return BY_HAND.get(name, "bring it yourself")
