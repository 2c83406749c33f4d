"""`fedsift scenarios`: list and show the preset studies, one for each column of the papers' tables, and small
versions."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.markup import escape

from fedsift.cli.output import print_json, print_table, say, stderr, stdout

if TYPE_CHECKING:
    from fedsift.data.dataset import FederatedDataset
    from fedsift.data.overview import FederationOverview

JSON = typer.Option(False, "--json", help="Print as JSON.")


def register(app: typer.Typer) -> None:
    scenarios = typer.Typer(help="Scenario presets: every column of the papers' tables, and small twins.")
    scenarios.callback(invoke_without_command=True)(list_scenarios)
    scenarios.command("show")(show_scenario)
    app.add_typer(scenarios, name="scenarios")


def list_scenarios(
    context: typer.Context,
    match: str = typer.Option("", "--match", help="Only names that contain this."),
    json: bool = JSON,
) -> None:
    """List the scenarios."""
    if context.invoked_subcommand is not None:
        return
    from fedsift.study.scenarios import preset_names, preset_summary

    entries = [{"name": name, "what": preset_summary(name)} for name in preset_names() if match in name]
    if json:
        print_json(entries)
    else:
        print_table("scenarios", ["name", "what it is"], [[e["name"], e["what"]] for e in entries])


def show_scenario(
    name: str = typer.Argument(help="A scenario, e.g. fedcorr/cifar10-iid-0.6-0.5, or a study.toml."),
    overrides: list[str] | None = typer.Argument(None, help="Changes, e.g. noise.rho=0.4 seed=2."),
    html: Path | None = typer.Option(None, "--html", help="Also draw it into this HTML file, which needs no network."),
    save: Path | None = typer.Option(None, "--save", help="Write the scenario to this file, to change and run it."),
    json: bool = JSON,
) -> None:
    """Show a scenario: its settings, and the picture of its federation when the data are at hand."""
    from rich.syntax import Syntax

    from fedsift.core.errors import ConfigError, DataError
    from fedsift.data.overview import portrait_of, text_of
    from fedsift.study.scenarios import preset_table, preset_text, write_preset
    from fedsift.study.study import Study
    from fedsift.study.toml_tables import apply_overrides

    if name.endswith(".toml"):
        study = Study.from_file(Path(name), overrides or [])
    else:
        study = Study.from_table(apply_overrides(preset_table(name), overrides or []))
    if save is not None:
        if name.endswith(".toml"):
            raise ConfigError("--save copies a preset; this is a file already")
        write_preset(name, save)
    if not json:
        text = Path(name).read_text("utf-8") if name.endswith(".toml") else preset_text(name)
        stdout.print(Syntax(text.rstrip(), "toml", background_color="default"))
        for note in study.model.notes:
            say(f"note: {note}")
    try:
        federated = study.load_data()
    except DataError as error:
        if json:
            print_json({"name": name, "study": study.to_table(), "federation": None, "reason": str(error)})
        else:
            stderr.print(f"[yellow]no picture:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        if html is not None:
            raise
        return
    portrait = portrait_of(federated)
    if json:
        print_json({"name": name, "study": study.to_table(), "federation": _numbers(portrait, federated)})
    else:
        stdout.print(text_of(portrait, name))
        for note in federated.notes[len(study.model.notes) :]:
            say(f"note: {note}")
    if html is not None:
        from fedsift.core.files import write_atomically
        from fedsift.report.federation import federation_page

        page = federation_page(portrait, name, study.to_toml(), federated.notes)
        write_atomically(html, page.encode("utf-8"))
        say(f"picture: {html}", stderr)


def _numbers(portrait: FederationOverview, federated: FederatedDataset) -> dict[str, Any]:
    fields = {field.name: getattr(portrait, field.name) for field in dataclasses.fields(portrait)}
    lists = {key: value.tolist() if hasattr(value, "tolist") else value for key, value in fields.items()}
    return {**lists, "overall_rate": portrait.overall_rate, "notes": list(federated.notes)}
