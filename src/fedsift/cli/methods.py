"""`fedsift methods`: what there is, with parameters and defaults."""

from __future__ import annotations

import typer

from fedsift.cli.output import print_json, print_table


def register(app: typer.Typer) -> None:
    app.command("methods")(list_methods)


def list_methods(
    name: str = typer.Argument("", help="A method, to see its parameters; or package.module:Name."),
    json: bool = typer.Option(False, "--json", help="Print as JSON."),
) -> None:
    """List the methods, or one method's parameters with their meaning."""
    if name:
        _one(name, json)
        return
    from fedsift.cli.catalogue import method_entries

    entries = method_entries()
    if json:
        print_json(entries)
    else:
        cells = [[e["name"], " ".join(e["for"]), e["paper"], e["summary"]] for e in entries]
        print_table("methods", ["name", "labels", "paper", "what it does"], cells)


def _one(name: str, json: bool) -> None:
    """One method: its parameters, its forms, and what it lets out of a site with its defaults."""
    from fedsift.cli.fields import field_rows
    from fedsift.methods._base import methods
    from fedsift.protocol.disclosure import declared_replies, disclosure_rows
    from fedsift.training.requests import Evaluate

    method = methods.get(name)
    rows = [
        {key: row[key] for key in ("name", "default", "meaning")}
        for row in field_rows(method)
        if row["name"] != "local"
    ]
    leaves = disclosure_rows(declared_replies(method(), (Evaluate,)))
    forms = {form: dict(settings) for form, settings in method.forms.items()}
    if json:
        disclosures = [dict(zip(("reply", "field", "what"), row)) for row in leaves]
        about = {"name": name, "summary": method.summary, "parameters": rows}
        print_json({**about, "forms": forms, "disclosures": disclosures})
        return
    cells = [[row["name"], row["default"], row["meaning"]] for row in rows]
    print_table(f"{name}: {method.summary}", ["parameter", "default", "meaning"], cells)
    if forms:
        shown = [[form, ", ".join(f"{k} = {v}" for k, v in own.items())] for form, own in forms.items()]
        print_table("forms", ["form", "settings"], shown)
    print_table("what leaves a site", ["reply", "field", "what it tells"], leaves)
