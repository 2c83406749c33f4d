"""`fedsift bench` and `fedsift sweep`: tables of runs, the papers' and your own, and one from the command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fedsift.cli.failures import exit_code_of
from fedsift.cli.output import print_json, print_table, say, stderr
from fedsift.core.errors import ConfigError, RunError
from fedsift.core.text import argument

if TYPE_CHECKING:
    from fedsift.benchmark.running import TableOutcome
    from fedsift.benchmark.table import Table

OUT = typer.Option(Path("bench"), "--out", help="The folder of finished runs, shared by all tables, and of the tables.")
PROCESSES = typer.Option(0, "--processes", help="Runs at a time; 0 is one a core.")
SHARD = typer.Option("1/1", "--shard", help="Compute only the i-th of n parts: i/n.")
RAY = typer.Option("", "--ray", help="Compute on a Ray cluster at this address ('auto', 'local', ray://...).")
KEEP = typer.Option(False, "--keep", help="Keep the whole folder of every run.")
ANY = typer.Option(False, "--any-version", help="Use results of other versions too; the table says so.")
JSON = typer.Option(False, "--json", help="Print as JSON.")


def register(app: typer.Typer) -> None:
    app.command("bench")(bench)
    app.command("sweep")(sweep)


def bench(
    table: str = typer.Argument(help="A table by name or file; or `list`: all tables; or `merge`: join folders."),
    more: list[str] | None = typer.Argument(
        None, help="Settings over all runs (method.rounds=20); for `merge` the folders to join into --out."
    ),
    seeds: str = typer.Option("", "--seeds", help="Other seeds than the table's: 1-5 or 1,2,3."),
    out: Path = OUT,
    processes: int = PROCESSES,
    shard: str = SHARD,
    ray: str = RAY,
    keep: bool = KEEP,
    any_version: bool = ANY,
    first: bool = typer.Option(False, "--first", help="merge: of two results of one run take the first."),
    match: str = typer.Option("", "--match", help="list: only names that contain this."),
    json: bool = JSON,
) -> None:
    """Compute a table (rows x columns x seeds), or what is missing of it. Ctrl-C and crashes are safe: run it again."""
    if table == "list":
        list_tables(match, as_json=json)
        return
    if table == "merge":
        merge_folders([Path(folder) for folder in more or []], out, first=first, as_json=json)
        return
    from fedsift.benchmark.table import find_table, read_seeds

    found = find_table(table).changed(seeds=read_seeds(seeds, "--seeds") if seeds else (), settings=more or [])
    go(found, out, BenchOptions(processes, shard, ray, keep, any_version), as_json=json)


@dataclass(frozen=True)
class BenchOptions:
    """How a table is computed, as the options say; shared by `bench` and `sweep`."""

    processes: int
    shard: str
    ray: str
    keep: bool
    any_version: bool


def go(table: Table, out: Path, way: BenchOptions, *, as_json: bool) -> None:
    """Compute with a progress display, then show where the table is and what it says; shared by `bench` and `sweep`."""
    from fedsift.api.benching import table_progress
    from fedsift.benchmark.running import run_table

    try:
        with table_progress(table.name, silent=as_json) as listen:
            outcome = run_table(
                table,
                out,
                processes=way.processes,
                shard=read_shard(way.shard),
                ray=way.ray,
                keep=way.keep,
                any_version=way.any_version,
                listen=listen,
            )
    except KeyboardInterrupt as stop:
        say("stopped; nothing is lost. Go on with the same command", stderr)
        raise typer.Exit(exit_code_of(stop)) from None
    _show(outcome, as_json=as_json)
    if outcome.failures:
        named = "; ".join(f"{label}: {reason}" for label, reason in list(outcome.failures.items())[:5])
        raise RunError(f"{len(outcome.failures)} runs failed ({named}); the same command tries them again")


def _show(outcome: TableOutcome, *, as_json: bool) -> None:
    from fedsift.benchmark.outputs import data
    from fedsift.benchmark.text import markdown

    if as_json:
        print_json({**data(outcome.results), "folder": outcome.folder, "failures": dict(outcome.failures)})
        return
    say(markdown(outcome.results))
    if outcome.other_versions:
        say(
            f"{outcome.other_versions} of its runs were made by another version of fedsift and are not used; "
            "--any-version uses them",
            stderr,
        )
    say(f"table: {outcome.folder / 'table.html'}")


def read_shard(text: str) -> tuple[int, int]:
    number, slash, of = text.partition("/")
    if not (slash and number.isdigit() and of.isdigit() and 1 <= int(number) <= int(of)):
        raise ConfigError(f"--shard {text}: write i/n, e.g. 2/4 for the second of four parts")
    return int(number), int(of)


def list_tables(match: str, *, as_json: bool) -> None:
    from fedsift.benchmark.table import catalogue

    entries = [entry for entry in catalogue() if match in entry["name"]]
    if as_json:
        print_json(entries)
        return
    cells = [[e["name"], e["paper"], e["size"], e["runs"], e["what"]] for e in entries]
    print_table("tables", ["name", "paper", "size", "runs", "what"], cells)


def merge_folders(folders: list[Path], out: Path, *, first: bool, as_json: bool) -> None:
    from fedsift.benchmark.store import RunStore, merge

    if not folders:
        raise ConfigError("fedsift bench merge FOLDER... --out OUT: name the folders to join")
    new = merge(folders, RunStore(out), first=first)
    if as_json:
        print_json({"out": out, "new": new})
    else:
        say(f"{new} runs are new in {out}; `fedsift bench TABLE --out {argument(out)}` shows a table of them")


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
    from fedsift.benchmark.cells import sweep_table
    from fedsift.core.files import write_atomically

    table, text = sweep_table(study, settings, figure or ["accuracy.last"])
    write_atomically(out / table.name / f"{table.name}.toml", text.encode())
    go(table, out, BenchOptions(processes, shard, ray, keep, any_version), as_json=json)
