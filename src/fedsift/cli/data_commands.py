"""`fedsift doctor`, `scenarios`, `data get`, `datasets`, `partitions`, `noises`: what there is, and what is
wrong with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn
from rich.progress import Progress as Bar
from rich.syntax import Syntax

from fedsift.cli.output import print_json, print_table, say, size_text, stderr, stdout, time_text
from fedsift.contract.errors import ConfigError, DataError
from fedsift.contract.fielddocs import field_docs
from fedsift.contract.plaintext import visible
from fedsift.contract.registry import Registry
from fedsift.data import Spread, noises, partitions, sources
from fedsift.data.doctor import Fit, Report, examine, fitting, kind_at
from fedsift.data.download import BY_HAND, REMOTES, Progress, fetch
from fedsift.data.pictures import Portrait, figure_of, portrait_of, text_of, write_html
from fedsift.data.places import data_roots
from fedsift.data.presets import preset_names, preset_summary, preset_table, preset_text, write_preset
from fedsift.data.sources import Source
from fedsift.methods import methods
from fedsift.study.study import Study
from fedsift.study.tables import apply_overrides, build

JSON = typer.Option(False, "--json", help="Print as JSON.")
SHOWN = 5
COLOURS = {"error": "bold red", "warning": "yellow", "note": "dim"}


def register(app: typer.Typer) -> None:
    app.command("doctor")(doctor)
    app.command("datasets")(list_datasets)
    app.command("partitions")(list_partitions)
    app.command("noises")(list_noises)
    scenarios = typer.Typer(help="Scenario presets: every column of the papers' tables, and small twins.")
    scenarios.callback(invoke_without_command=True)(list_scenarios)
    scenarios.command("show")(show_scenario)
    app.add_typer(scenarios, name="scenarios")
    data = typer.Typer(help="Fetch public datasets.", no_args_is_help=True)
    data.callback()(_data)
    data.command("get")(get_data)
    app.add_typer(data, name="data")


def _data() -> None:
    """A group with one command keeps its name."""


# doctor


def doctor(
    path: Path = typer.Argument(
        help="A folder or zip of pictures, a folder of sites, an .npz, or a study.toml."
    ),
    options: list[str] | None = typer.Argument(
        None, help="Fields of the source, e.g. label_column=dx size=64."
    ),
    json: bool = JSON,
) -> None:
    """Look at data before any training. Exits with 0 (nothing to mend), 7 (look at the findings) or 3 (unusable)."""
    report = examine(_source(path, options or []))
    fits = fitting(report, {name: methods.get(name)() for name in methods})
    if json:
        print_json({**dataclasses.asdict(report), "exit_code": report.exit_code,
                    "methods": [dataclasses.asdict(fit) for fit in fits]})  # fmt: skip
    else:
        _print_report(report, fits)
    raise typer.Exit(report.exit_code)


def _source(path: Path, options: list[str]) -> Source:
    if path.suffix == ".toml":
        return Study.from_file(path, [f"data.{option}" for option in options]).source
    table = apply_overrides({"path": str(path)}, options)
    return build(kind_at(path), table, "")


def _print_report(report: Report, fits: list[Fit]) -> None:
    counts = ", ".join(f"{visible(name)} {count}" for name, count in report.counts.items())
    name = escape(visible(report.name))
    stdout.print(f"[bold]{name}[/]: {report.train} training and {report.test} test samples of shape "
                 f"{'x'.join(map(str, report.shape))}, {report.kind}", highlight=False)  # fmt: skip
    say(f"classes: {counts}")
    if report.sites:
        cells = [[s.name, s.train, s.test, ", ".join(s.absent) or "-"] for s in report.sites]
        print_table("sites", ["site", "train", "test", "classes it lacks"], cells)
    for finding in report.findings:
        colour = COLOURS[finding.severity]
        text, fix = escape(visible(finding.text)), escape(visible(finding.fix))
        stdout.print(f"[{colour}]{finding.severity}[/] {text}. [dim]{fix}.[/]", highlight=False,
                     soft_wrap=True)  # fmt: skip
        for example in finding.examples[:SHOWN] if finding.severity != "note" else ():
            say(f"    {visible(example)}")
        if len(finding.examples) > SHOWN and finding.severity != "note":
            stdout.print(
                f"    ... and {len(finding.examples) - SHOWN} more (--json lists all)", highlight=False
            )
    cost = report.estimate
    stdout.print(f"images need {size_text(cost.image_bytes)} of memory; loading took "
                 f"{time_text(cost.first_load_seconds)}; a pass of a small network takes about "
                 f"{time_text(cost.epoch_seconds)}", highlight=False)  # fmt: skip
    print_table(
        "methods", ["method", "fits", "why"], [[f.method, "yes" if f.fits else "no", f.reason] for f in fits]
    )


# scenarios


def list_scenarios(
    context: typer.Context,
    match: str = typer.Option("", "--match", help="Only names that contain this."),
    json: bool = JSON,
) -> None:
    """List the scenarios."""
    if context.invoked_subcommand is not None:
        return
    entries = [{"name": name, "what": preset_summary(name)} for name in preset_names() if match in name]
    if json:
        print_json(entries)
    else:
        print_table("scenarios", ["name", "what it is"], [[e["name"], e["what"]] for e in entries])


def show_scenario(
    name: str = typer.Argument(help="A scenario, e.g. fedcorr/cifar10-iid-0.6-0.5, or a study.toml."),
    overrides: list[str] | None = typer.Argument(None, help="Changes, e.g. noise.rho=0.4 seed=2."),
    html: Path | None = typer.Option(
        None, "--html", help="Also draw it into this HTML file, which needs no network."
    ),
    save: Path | None = typer.Option(
        None, "--save", help="Write the scenario to this file, to change and run it."
    ),
    json: bool = JSON,
) -> None:
    """Show a scenario: its settings, and the picture of its federation when the data are at hand."""
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
    try:
        spread = study.spread()
    except DataError as error:
        if json:
            print_json({"name": name, "study": study.to_table(), "federation": None, "reason": str(error)})
        else:
            stderr.print(f"[yellow]no picture:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        if html is not None:
            raise
        return
    portrait = portrait_of(spread)
    if json:
        print_json({"name": name, "study": study.to_table(), "federation": _numbers(portrait, spread)})
    else:
        stdout.print(text_of(portrait, name))
        for note in spread.notes:
            say(f"note: {note}")
    if html is not None:
        write_html(figure_of(portrait, name), html)
        say(f"picture: {html}", stderr)


def _numbers(portrait: Portrait, spread: Spread) -> dict[str, Any]:
    fields = {field.name: getattr(portrait, field.name) for field in dataclasses.fields(portrait)}
    lists = {key: value.tolist() if hasattr(value, "tolist") else value for key, value in fields.items()}
    return {**lists, "overall_rate": portrait.overall_rate, "notes": list(spread.notes)}


# datasets


def get_data(
    name: str = typer.Argument(help="A dataset, e.g. cifar10."),
    to: Path | None = typer.Option(None, "--to", help="The data folder (default: the user's cache folder)."),
    json: bool = JSON,
) -> None:
    """Fetch a public dataset: resumes where it stopped, and checks the hash."""
    with _download_bar(silent=json) as progress:
        folder = fetch(name, to, progress=progress)
    if json:
        print_json({"name": name, "folder": str(folder), "licence": REMOTES[name].licence})
    else:
        say(f"{name} is in {folder} ({REMOTES[name].licence})")


@contextmanager
def _download_bar(silent: bool) -> Iterator[Progress | None]:
    if silent or not stderr.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Bar(*columns, console=stderr) as bar:
        tasks: dict[str, Any] = {}

        def progress(file: str, have: int, total: int) -> None:
            if file not in tasks:
                tasks[file] = bar.add_task(file, total=total or None)
            bar.update(tasks[file], completed=have)

        yield progress


def list_datasets(
    name: str = typer.Argument("", help="A dataset, to see its fields."), json: bool = JSON
) -> None:
    """List the datasets and where they are, or one dataset's fields."""
    if name:
        _show_fields(sources, name, json)
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


def list_partitions(
    name: str = typer.Argument("", help="A partition, to see its fields."), json: bool = JSON
) -> None:
    """List the ways to spread samples over sites, or the fields of one."""
    _list(partitions, name, json)


def list_noises(
    name: str = typer.Argument("", help="A noise model, to see its fields."), json: bool = JSON
) -> None:
    """List the ways to spoil labels, or the fields of one."""
    _list(noises, name, json)


def _list(registry: Registry[Any], name: str, json: bool) -> None:
    if name:
        _show_fields(registry, name, json)
        return
    entries = [{"name": key, "what": registry.get(key).summary} for key in registry]
    if json:
        print_json(entries)
    else:
        print_table(f"{registry.kind}s", ["name", "what it does"], [[e["name"], e["what"]] for e in entries])


def _show_fields(registry: Registry[Any], name: str, json: bool) -> None:
    cls = registry.get(name)
    docs = field_docs(cls)
    rows = [
        {
            "name": field.name,
            "default": None if field.default is dataclasses.MISSING else field.default,
            "required": field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING,
            "meaning": docs.get(field.name, ""),
        }
        for field in dataclasses.fields(cls)
    ]
    if json:
        print_json({"name": name, "what": cls.summary, "fields": rows})
    else:
        cells = [[r["name"], "required" if r["required"] else r["default"], r["meaning"]] for r in rows]
        print_table(f"{name}: {cls.summary}", ["field", "default", "meaning"], cells)
