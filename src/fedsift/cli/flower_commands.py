"""`fedsift deploy` and `fedsift flower ...`: the same study across real sites."""

from __future__ import annotations

from pathlib import Path

import typer

from fedsift.cli.failures import exit_code_of
from fedsift.cli.output import print_json, say, stderr
from fedsift.contract.errors import FedsiftError

flower = typer.Typer(
    help="Run a deployed study: the meeting point, a site, the run itself. Everything stays offline.",
    no_args_is_help=True,
)

SUPERLINK = typer.Option(
    "127.0.0.1:8000", "--superlink", help="Address of the SuperLink on this machine, host:port."
)
INSECURE = typer.Option(False, "--insecure", help="No encryption: for a trial.")
CA = typer.Option(None, "--ca", help="Certificate of the federation's own authority (PEM).")
HOME = typer.Option(None, "--home", help="Where Flower keeps its own files.")


def register(app: typer.Typer) -> None:
    app.command("deploy")(deploy)
    app.add_typer(flower, name="flower")


def deploy(
    study: Path = typer.Argument(help="The study's TOML file."),
    overrides: list[str] = typer.Argument(None, help="Settings over the file's: method.rounds=20 ..."),
    out: Path = typer.Option(..., "--out", help="The app's folder: letters, digits, hyphens."),
    site: list[str] = typer.Option([], "--site", help="Name of a site that will take part; once for each."),
    trial: Path = typer.Option(None, "--trial", help="Also write the study's own data as site folders here."),
) -> None:
    """Write a ready Flower app, with the commands for the coordinator and for a site in its README."""
    from fedsift.deploy.app import write_app
    from fedsift.study import Study

    files = write_app(Study.from_file(study, overrides or []), out, sites=tuple(site), trial=trial)
    say(f"wrote {out}; read {out / 'README.md'}")
    for file in files:
        say(f"wrote {file}")


@flower.command()
def superlink(
    host: str = typer.Option("127.0.0.1", "--host", help="Address to listen on: this machine's own only."),
    port: int = typer.Option(8000, "--port", help="Port to listen on."),
    insecure: bool = INSECURE,
    ca: Path = CA,
    certificate: Path = typer.Option(None, "--certificate", help="This machine's certificate (PEM)."),
    key: Path = typer.Option(None, "--key", help="The certificate's private key."),
    database: Path = typer.Option(
        None, "--database", help="A file that remembers sites and keys over restarts."
    ),
    home: Path = HOME,
) -> None:
    """Start the meeting point; the coordinator's machine runs it."""
    from fedsift.deploy import commands

    command = commands.superlink_command(
        host, port, insecure=insecure, ca=ca, certificate=certificate, key=key, database=database
    )
    commands.become(command, home or Path(".flower-superlink"))


@flower.command()
def site(
    site_file: Path = typer.Argument(help="The site's site.toml."),
    superlink: str = SUPERLINK,
    insecure: bool = INSECURE,
    ca: Path = CA,
    key: Path = typer.Option(None, "--key", help="This site's private key."),
    home: Path = HOME,
) -> None:
    """Check this site's data, then join and answer requests until stopped."""
    from fedsift.deploy import commands

    place = commands.new_socket()
    command = commands.site_command(site_file, superlink, insecure=insecure, ca=ca, key=key, worker=place)
    commands.start_worker(site_file, place)
    commands.become(command, home or site_file.resolve().parent / ".flower")


@flower.command("audit")
def site_audit(
    site_file: Path = typer.Argument(help="The site's site.toml."),
    out: Path = typer.Option(None, "--out", help="Where the files are written; beside site.toml by default."),
    show: bool = typer.Option(False, "--open", help="Open the page in the browser."),
) -> None:
    """Write what the last run said of this site's labels: list, page, review queue. Nothing of it leaves the site."""
    from fedsift.deploy.audited import write_own_audit

    folder = write_own_audit(site_file, out or site_file.resolve().parent / "audit")
    say(f"the list: {folder.labels}")
    say(f"the page: {folder.report}")
    if show:
        import webbrowser

        webbrowser.open(folder.report.absolute().as_uri())


@flower.command("register")
def register_site(
    public_key: Path = typer.Argument(help="The site's public key, node.pub."),
    superlink: str = SUPERLINK,
    ca: Path = CA,
    home: Path = HOME,
) -> None:
    """Let a site's key join; the coordinator does this once for each site."""
    from fedsift.deploy import starting

    starting.register(public_key, superlink, ca=ca, home=home or Path(".flower-coordinator"))


@flower.command()
def start(
    app: Path = typer.Argument(help="The app's folder, made by `fedsift deploy`."),
    run_folder: Path = typer.Option(
        ..., "--run-folder", help="The run's folder; an unfinished one is gone on with."
    ),
    superlink: str = SUPERLINK,
    insecure: bool = INSECURE,
    ca: Path = CA,
    json: bool = typer.Option(False, "--json", help="Print the summary as JSON."),
) -> None:
    """Start the run, or go on with it, and follow it to its end."""
    from fedsift.api.progress import round_progress
    from fedsift.deploy import starting
    from fedsift.engines.flower.processes import LOG_FILE
    from fedsift.report import print_summary, write_report
    from fedsift.study import Study

    folder = starting.prepare_run(app, run_folder, superlink)
    study = Study.from_file(folder.study_file)
    try:
        with round_progress(study.method_name, study.method.total_rounds, silent=json) as listen:
            summary = starting.start(app, folder, superlink, insecure=insecure, ca=ca, listen=listen)
    except KeyboardInterrupt as stop:
        say("stopped; nothing is lost. The same command goes on", stderr)
        raise typer.Exit(exit_code_of(stop)) from None
    except FedsiftError:
        say(
            f"the same command goes on from the last finished round; log: {folder.path / LOG_FILE}",
            stderr,
        )
        raise
    report = write_report(folder.path)
    if json:
        print_json({**summary, "run": folder.path, "report": report})
    else:
        print_summary(folder.path, report)
