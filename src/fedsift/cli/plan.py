"""`fedsift plan`: forecast what a study costs and what leaves each site, without training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.markup import escape

from fedsift.cli.output import print_json, print_table, say, stdout
from fedsift.core.text import visible

if TYPE_CHECKING:
    from fedsift.study.planning import Forecast


def register(app: typer.Typer) -> None:
    app.command("plan")(plan)


def plan(
    study: Path = typer.Argument(help="The study's TOML file, or a scenario by name."),
    overrides: list[str] = typer.Argument(None, help="Settings over the file's: method.rounds=20 ..."),
    json: bool = typer.Option(False, "--json", help="Print as JSON."),
) -> None:
    """Rounds, messages, bytes, minutes, and what leaves each site. A few steps are timed; no run is made."""
    from fedsift.study.planning import plan_study
    from fedsift.study.study import Study

    print_plan(plan_study(Study.from_file(study, overrides or [])), as_json=json)


def print_plan(forecast: Forecast, *, as_json: bool) -> None:
    """A forecast for people or programs; `fedsift audit --plan` has its own."""
    from fedsift.core.numbers import duration, size

    if as_json:
        print_json(forecast.as_dict())
        return
    stdout.print(f"[bold]{escape(visible(forecast.headline))}[/]", highlight=False)
    rows = [
        [s.name, s.rounds, s.messages, size(s.bytes_down), size(s.bytes_up), duration(s.seconds)]
        for s in forecast.stages
    ]
    print_table("stages", ["stage", "rounds", "messages", "to sites", "from sites", "time"], rows)
    print_table("what leaves a site", ["reply", "field", "what it discloses"], forecast.disclosures)
    stdout.print(
        f"about {duration(forecast.seconds)} in process (a forecast from {forecast.timed_samples} timed samples); "
        f"deployed, each of the {forecast.phases} phases adds 10 s or more",
        highlight=False,
    )
    for note in forecast.notes:
        say(f"note: {note}")
