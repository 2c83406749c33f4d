"""`fedsift deploy`: a study as a Flower app for real sites."""

from __future__ import annotations

from pathlib import Path

import typer

from fedsift.cli.output import say, with_status


def register(app: typer.Typer) -> None:
    app.command("deploy")(deploy)


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
