"""`fedsift plan`, `fedsift run` and `fedsift resume`: forecast a study, simulate it, go on with a stopped run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.markup import escape

from fedsift.cli.output import print_json, print_table, say, stdout
from fedsift.core.text import visible

if TYPE_CHECKING:
    from fedsift.study.planning import Forecast

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from fedsift.cli.failures import exit_code_of
from fedsift.cli.output import stderr
from fedsift.core.errors import FedsiftError, Stopped
from fedsift.core.text import argument

if TYPE_CHECKING:
    from fedsift.runs.folder import RunFolder
    from fedsift.study.study import Study


SERVE = typer.Option(False, "--serve", help="Show the run in the browser while it runs: prints the address.")


def register(app: typer.Typer) -> None:
    app.command("run")(run)
    app.command("resume")(resume)
    app.command("plan")(plan)


def run(
    study: Path = typer.Argument(help="The study's TOML file, or a scenario by name."),
    overrides: list[str] = typer.Argument(None, help="Settings over the file's: method.rounds=20 seed=3 ..."),
    out: Path = typer.Option(Path("runs"), "--out", help="Where the run's folder is made."),
    json: bool = typer.Option(False, "--json", help="Print the summary as JSON."),
    serve: bool = SERVE,
    profile: bool = typer.Option(False, "--profile", help="Show where the time of the rounds went."),
) -> None:
    """Simulate a study on this machine. Ctrl-C and crashes are safe: `fedsift resume` goes on."""
    from fedsift.study.running import new_run
    from fedsift.study.study import Study

    plan = Study.from_file(study, overrides or [])
    for note in plan.notes:
        say(f"note: {note}", stderr)
    folder = new_run(plan, out)
    go(plan, folder, as_json=json, serve=serve)
    if profile and not json:
        _print_profile(folder)


def go(study: Study, folder: RunFolder, *, as_json: bool, done: int = 0, serve: bool = False) -> None:
    """Run with a progress display, then write and announce the report; shared by `run` and `resume`."""
    with page_beside(folder, wanted=serve):
        _go(study, folder, as_json=as_json, done=done)


@contextmanager
def page_beside(folder: RunFolder, *, wanted: bool) -> Iterator[None]:
    """The live page of this run while the block lasts; in a terminal it stays until Ctrl-C."""
    if not wanted:
        yield
        return
    from fedsift.live.companion import run_page_beside

    with run_page_beside(folder.path) as address:
        say(f"the live page: {address.url}", stderr)
        yield
        if stderr.is_terminal:
            say("the page is now the report; Ctrl-C ends it", stderr)
            with suppress(KeyboardInterrupt):
                signal.pause()


def _go(study: Study, folder: RunFolder, *, as_json: bool, done: int) -> None:
    from fedsift.api.progress import round_progress
    from fedsift.report.page import write_report
    from fedsift.report.terminal import print_summary
    from fedsift.study.running import run as run_study

    try:
        with round_progress(
            study.method_name, study.method.total_rounds, done=done, silent=as_json, folder=folder.path
        ) as listen:
            summary = run_study(study, folder, listen)
    except (KeyboardInterrupt, Stopped) as stop:
        say(f"stopped; nothing is lost. Go on with: {_resume_line(folder)}", stderr)
        raise typer.Exit(exit_code_of(stop)) from None
    except (FedsiftError, OSError):
        if folder.checkpoint_file.is_file():
            say(f"go on with: {_resume_line(folder)}", stderr)
        raise
    report = write_report(folder.path)
    if as_json:
        print_json({**summary, "run": folder.path, "report": report})
    else:
        print_summary(folder.path, report)


def _resume_line(folder: RunFolder) -> str:
    return f"fedsift resume {argument(folder.path)}"


def _print_profile(folder: RunFolder) -> None:
    rows = folder.read_json("timings.json") or []
    cells = [[row["part"], f"{row['seconds']:.2f} s", f"{100 * row['share']:.1f} %"] for row in rows]
    print_table("where the time went", ["part", "seconds", "share"], cells)


def resume(
    run: Path = typer.Argument(help="The run's folder."),
    changes: list[str] = typer.Argument(None, help="Settings of [gate] or [federation] from now on: gate.against=6"),
    serve: bool = SERVE,
    json: bool = typer.Option(False, "--json", help="Print the summary as JSON."),
) -> None:
    """Go on with a run that was stopped by Ctrl-C, a crash or a lack of replies; the result is the unbroken run's."""
    from fedsift.study.running import change_settings, reopen
    from fedsift.study.toml_tables import read_overrides

    study, folder = reopen(run)
    if changes:
        change_settings(folder, read_overrides(changes))
        study, folder = reopen(run)
    go(study, folder, as_json=json, done=len(folder.rounds()), serve=serve)


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
