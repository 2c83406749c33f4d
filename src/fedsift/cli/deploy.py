"""`fedsift deploy` and `fedsift consortium`: an app for real sites, and a whole consortium on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.markup import escape

from fedsift.cli.failures import exit_code_of
from fedsift.cli.output import print_json, say, stderr, with_status
from fedsift.core.text import visible

if TYPE_CHECKING:
    from rich.table import Table

    from fedsift.deploy.trial import ConsortiumTrial


def register(app: typer.Typer) -> None:
    app.command("deploy")(deploy)
    app.add_typer(consortium, name="consortium")


def deploy(
    study: Path = typer.Argument(help="The study's TOML file."),
    overrides: list[str] = typer.Argument(None, help="Settings over the file's: method.rounds=20 ..."),
    out: Path = typer.Option(..., "--out", help="The app's folder: letters, digits, hyphens."),
    site: list[str] = typer.Option([], "--site", help="Name of a site that will take part; once for each."),
    trial: Path = typer.Option(None, "--trial", help="Also write the study's own data as site folders here."),
) -> None:
    """Write a ready Flower app, with the commands for the coordinator and for a site in its README."""
    with with_status(f"reading {study}, writing {out}"):
        from fedsift.deploy.app import write_app
        from fedsift.deploy.site.consent import app_fingerprint
        from fedsift.study.study import Study

        files = write_app(Study.from_file(study, overrides or []), out, sites=tuple(site), trial=trial)
        mark = app_fingerprint(out)
    say(f"wrote {out}; read {out / 'README.md'}")
    say(f"the app is {mark}: sites pin it with `fedsift flower pin`")
    for file in files:
        say(f"wrote {file}")


WIDEST = 30
"""Signs of a name or a state that are always shown."""

consortium = typer.Typer(help="A consortium of several sites: try one on this machine.", no_args_is_help=True)


@consortium.command("try")
def try_it(
    study: Path = typer.Argument(help="The study's TOML file."),
    overrides: list[str] = typer.Argument(None, help="Settings over the file's: partition.sites=3 ..."),
    out: Path = typer.Option(None, "--out", help="A new folder for app, sites, run and logs."),
    json: bool = typer.Option(False, "--json", help="Print the summary as JSON."),
) -> None:
    """Run a study across sites that are processes of this machine, to the report; Ctrl-C ends all of them."""
    with with_status(f"reading {study}, writing keys, roster, sites and the app"):
        from fedsift.deploy.trial import prepare_trial, try_consortium
        from fedsift.report.page import write_report
        from fedsift.report.terminal import print_summary
        from fedsift.study.study import Study

        trial = prepare_trial(Study.from_file(study, overrides or []), out)
    try:
        with _display(trial, silent=json) as (listen, show_status):
            summary = try_consortium(trial, listen, show_status)
    except KeyboardInterrupt as stop:
        say(f"stopped; everything that was started has ended. What there is lies in {trial.out}", stderr)
        raise typer.Exit(exit_code_of(stop)) from None
    except Exception:
        say(f"logs of all programs: {trial.out / 'logs'}", stderr)
        raise
    with with_status("writing the report"):
        report = write_report(trial.run)
    if json:
        print_json({**summary, "run": trial.run, "report": report})
    else:
        print_summary(trial.run, report)


@contextmanager
def _display(
    trial: ConsortiumTrial, *, silent: bool
) -> Iterator[tuple[Callable[[dict[str, Any]], None], Callable[[str], None]]]:
    """A table that changes in a terminal, lines elsewhere."""
    from fedsift.api.progress import round_progress

    if silent or not stderr.is_terminal:
        with round_progress(trial.study.method_name, trial.study.method.total_rounds, silent=silent) as show:
            yield show, show.say
        return
    from rich.live import Live

    with Live(get_renderable=lambda: _table(trial), console=stderr, refresh_per_second=2):
        yield (lambda row: None), (lambda words: None)


def _table(trial: ConsortiumTrial) -> Table:
    import time

    from rich.table import Table

    table = Table(title=f"{escape(trial.study.name)}, {time.monotonic() - trial.began:.0f} s", title_justify="left")
    rows = trial.states()
    for number, column in enumerate(("program", "state", "last words")):
        longest = max(len(row[number]) for row in rows)
        least = min(longest, WIDEST) if number < 2 else 10  # the last words give way to names and states
        table.add_column(column, overflow="ellipsis", no_wrap=True, min_width=least)
    for row in rows:
        table.add_row(*(escape(visible(cell)) for cell in row))
    return table
