"""`fedsift data get`: fetch a public dataset."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fedsift.cli.output import print_json, say, stderr

if TYPE_CHECKING:
    from fedsift.data.download import Progress


def register(app: typer.Typer) -> None:
    data = typer.Typer(help="Fetch public datasets.", no_args_is_help=True)
    data.callback()(_data)
    data.command("get")(get_data)
    app.add_typer(data, name="data")


def _data() -> None:
    """A group with one command keeps its name."""


def get_data(
    name: str = typer.Argument(help="A dataset, e.g. cifar10."),
    to: Path | None = typer.Option(None, "--to", help="The data folder (default: the user's cache folder)."),
    json: bool = typer.Option(False, "--json", help="Print as JSON."),
) -> None:
    """Fetch a public dataset: resumes where it stopped, and checks the hash."""
    from fedsift.data.download import REMOTES, fetch

    with _download_bar(silent=json) as progress:
        folder = fetch(name, to, progress=progress)
    if json:
        print_json({"name": name, "folder": str(folder), "licence": REMOTES[name].licence})
    else:
        say(f"{name} is in {folder} ({REMOTES[name].licence})")


@contextmanager
def _download_bar(silent: bool) -> Iterator[Progress | None]:
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

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
