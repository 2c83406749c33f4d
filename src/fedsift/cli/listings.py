"""`fedsift methods` and `fedsift models`: what there is, with parameters and defaults."""

from __future__ import annotations

import dataclasses
from typing import Any

import typer

from fedsift.cli.output import print_json, print_table, size_text
from fedsift.contract.disclosure import declared_replies, disclosure_rows
from fedsift.contract.fielddocs import field_docs
from fedsift.contract.method import Method
from fedsift.local.requests import Evaluate
from fedsift.methods import methods
from fedsift.models import describe
from fedsift.models import models as networks


def register(app: typer.Typer) -> None:
    app.command("methods")(list_methods)
    app.command("models")(list_models)


def list_methods(
    name: str = typer.Argument("", help="A method, to see its parameters."),
    json: bool = typer.Option(False, "--json", help="Print as JSON."),
) -> None:
    """List the methods, or one method's parameters with their meaning."""
    if name:
        _show_method(name, methods.get(name), json=json)
        return
    entries = [
        {
            "name": key,
            "for": list(methods.get(key).tasks),
            "paper": methods.get(key).paper,
            "summary": methods.get(key).summary,
        }
        for key in methods
    ]
    if json:
        print_json(entries)
    else:
        cells = [[e["name"], " ".join(e["for"]), e["paper"], e["summary"]] for e in entries]
        print_table("methods", ["name", "labels", "paper", "what it does"], cells)


def _show_method(name: str, cls: type[Method], *, json: bool) -> None:
    """One method: its parameters, its forms, and what it lets out of a site with its defaults."""
    rows = _parameters(cls)
    leaves = disclosure_rows(declared_replies(cls(), (Evaluate,)))
    forms = {form: dict(settings) for form, settings in cls.forms.items()}
    if json:
        disclosures = [dict(zip(("reply", "field", "what"), row)) for row in leaves]
        print_json(
            {
                "name": name,
                "summary": cls.summary,
                "parameters": rows,
                "forms": forms,
                "disclosures": disclosures,
            }
        )
        return
    cells = [[row["name"], row["default"], row["meaning"]] for row in rows]
    print_table(f"{name}: {cls.summary}", ["parameter", "default", "meaning"], cells)
    if forms:
        shown = [[form, ", ".join(f"{k} = {v}" for k, v in own.items())] for form, own in forms.items()]
        print_table("forms", ["form", "settings"], shown)
    print_table("what leaves a site", ["reply", "field", "what it tells"], leaves)


def _parameters(cls: type[Any]) -> list[dict[str, Any]]:
    docs = field_docs(cls)
    rows = []
    for field in dataclasses.fields(cls):
        if field.name == "local":
            continue
        default = None if field.default is dataclasses.MISSING else field.default
        rows.append({"name": field.name, "default": default, "meaning": docs.get(field.name, "")})
    return rows


def list_models(json: bool = typer.Option(False, "--json", help="Print as JSON.")) -> None:
    """List the networks, with their size for the images that their stem is made for."""
    cards = [describe(name) for name in networks]
    if json:
        print_json([dataclasses.asdict(card) for card in cards])
    else:
        cells = [[c.name, c.stem, f"{c.parameters:,}", size_text(c.bytes), c.summary] for c in cards]
        print_table("models", ["name", "stem", "parameters", "message", "what it is"], cells)
