"""`fedsift sweep`: a table of runs from the command line."""

from __future__ import annotations

from pathlib import Path

import typer

from fedsift.cli.bench import ANY, JSON, KEEP, OUT, PROCESSES, RAY, SHARD, BenchOptions, go


def register(app: typer.Typer) -> None:
    app.command("sweep")(sweep)


def sweep(
    study: str = typer.Argument(help="The study's TOML file, or a scenario by name."),
    settings: list[str] = typer.Argument(help="key=a,b,c to sweep, key=value to set, seeds=1-5."),
    figure: list[str] | None = typer.Option(None, "--figure", help="What is read off a run, e.g. accuracy.best."),
    out: Path = OUT,
    processes: int = PROCESSES,
    shard: str = SHARD,
    ray: str = RAY,
    keep: bool = KEEP,
    any_version: bool = ANY,
    json: bool = JSON,
) -> None:
    """Compare settings of one study, with seeds: a table from the command line, kept as a file beside its results."""
    from fedsift.benchmark.sweep import sweep_table
    from fedsift.core.files import write_atomically

    table, text = sweep_table(study, settings, figure or ["accuracy.last"])
    write_atomically(out / table.name / f"{table.name}.toml", text.encode())
    go(table, out, BenchOptions(processes, shard, ray, keep, any_version), as_json=json)
