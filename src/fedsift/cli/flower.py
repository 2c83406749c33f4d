"""`fedsift flower ...`: a deployed study across real sites."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from json import loads
from pathlib import Path

import typer

from fedsift.cli.failures import exit_code_of
from fedsift.cli.output import print_json, say, stderr, with_status
from fedsift.cli.run import SERVE, page_beside
from fedsift.core.errors import FedsiftError, Stopped

flower = typer.Typer(
    help="Run a deployed study: the meeting point, a site, the run itself. Everything stays offline.",
    no_args_is_help=True,
)

INSECURE = typer.Option(False, "--insecure", help="No encryption, no door: for a trial on this machine.")
CA = typer.Option(None, "--ca", help="Certificate of the federation's own authority (PEM).")
HOME = typer.Option(None, "--home", help="Where Flower keeps its own files.")


def register(app: typer.Typer) -> None:
    app.add_typer(flower, name="flower")


@flower.callback()
def make_private_by_default() -> None:
    """Whatever a command of this group writes is for its own account alone."""
    from fedsift.core.files import make_files_private

    make_files_private()


@flower.command()
def superlink(
    host: str = typer.Option("127.0.0.1", "--host", help="Address that sites reach; the door listens there."),
    port: int = typer.Option(8000, "--port", help="Port that sites reach."),
    insecure: bool = INSECURE,
    certificate: Path = typer.Option(None, "--certificate", help="This machine's certificate (PEM)."),
    key: Path = typer.Option(None, "--key", help="The certificate's private key."),
    roster: Path = typer.Option(None, "--roster", help="federation.toml: which key speaks for which site."),
    database: Path = typer.Option(None, "--database", help="A file that remembers sites and keys over restarts."),
    home: Path = HOME,
) -> None:
    """Start the meeting point: Flower's SuperLink, on this machine only, and our door, which sites reach."""
    from fedsift.core.errors import ConfigError
    from fedsift.deploy import flower_commands as commands
    from fedsift.deploy.certificates import CertificatePair
    from fedsift.deploy.coordinator import hosting

    place = home or hosting.HOME
    if insecure:
        commands.become(commands.superlink_command(host, port, own=None, database=database), place)
    if certificate is None or key is None or roster is None:
        raise ConfigError(
            "the door needs --certificate, --key and --roster (docs/deployment.md), or --insecure for a trial on "
            "127.0.0.1"
        )
    pair = CertificatePair(certificate, key)
    raise typer.Exit(hosting.host(host, port, pair, roster, home=place, database=database, say=say))


@flower.command()
def site(
    site_file: Path = typer.Argument(help="The site's site.toml."),
    superlink: str = typer.Option(
        "127.0.0.1:8000", "--superlink", help="The coordinator's door, host:port; a SuperLink in a trial."
    ),
    insecure: bool = INSECURE,
    ca: Path = CA,
    key: Path = typer.Option(None, "--key", help="This site's private key."),
    home: Path = HOME,
    serve: bool = typer.Option(
        False, "--serve", help="Show this site, on this machine alone, what it answered and what left it."
    ),
) -> None:
    """Check this site's data, then join and answer requests until stopped."""
    say(f"reading {site_file}")
    with _site_page(site_file, wanted=serve):
        raise typer.Exit(_attend(site_file, superlink, insecure=insecure, ca=ca, key=key, home=home))


@contextmanager
def _site_page(site_file: Path, *, wanted: bool) -> Iterator[None]:
    if not wanted:
        yield
        return
    from fedsift.deploy.site.site_file_head import read_head
    from fedsift.label_audit.site_files import SiteFolder
    from fedsift.live.companion import site_page_beside

    head = read_head(site_file)
    audit = SiteFolder.of(head.path.parent / "audit", head.name).report
    with site_page_beside(head.name, head.egress, audit) as address:
        say(f"this site's own page: {address.url}")
        yield


def _attend(
    site_file: Path, superlink: str, *, insecure: bool, ca: Path | None, key: Path | None, home: Path | None
) -> int:
    from fedsift.deploy import flower_commands as commands
    from fedsift.deploy.site import session as attending
    from fedsift.deploy.temporary import new_socket

    place = home or attending.flower_home(site_file)
    if not insecure:
        return attending.attend(site_file, superlink, ca=ca, key=key, home=place, say=say)
    worker = commands.SiteProcess(site_file, new_socket())
    command = commands.site_command(superlink, insecure=True, ca=None, key=None, worker=worker.place)
    return commands.run_trial_site(command, worker, place, say)


@flower.command("audit")
def site_audit(
    site_file: Path = typer.Argument(help="The site's site.toml."),
    out: Path = typer.Option(None, "--out", help="Where the files are written; beside site.toml by default."),
    show: bool = typer.Option(False, "--open", help="Open the page in the browser."),
    json: bool = typer.Option(False, "--json", help="Print the figures as JSON."),
) -> None:
    """Write what the last run said of this site's labels: list, page, review queue. Nothing of it leaves the site."""
    with with_status(f"reading {site_file}, writing its audit"):
        from fedsift.deploy.site.audit import write_own_audit

        place = out or site_file.resolve().parent / "audit"
        folder, _ = write_own_audit(site_file, place, tell=lambda line: say(line, stderr))
    if json:
        figures = loads(folder.summary.read_text("utf-8"))
        print_json({**figures, "folder": folder.path, "list": folder.labels, "page": folder.report})
    else:
        say(f"the list: {folder.labels}")
        say(f"the page: {folder.report}")
    if show:
        import webbrowser

        webbrowser.open(folder.report.absolute().as_uri())


@flower.command()
def start(
    app: Path = typer.Argument(help="The app's folder, made by `fedsift deploy`."),
    run_folder: Path = typer.Option(..., "--run-folder", help="The run's folder; an unfinished one is gone on with."),
    superlink: str = typer.Option(
        "127.0.0.1:8000", "--superlink", help="In a trial: the SuperLink's address on this machine."
    ),
    insecure: bool = INSECURE,
    home: Path = typer.Option(None, "--home", help="The --home of the running `fedsift flower superlink`."),
    serve: bool = SERVE,
    json: bool = typer.Option(False, "--json", help="Print the summary as JSON."),
) -> None:
    """Start the run, or go on with it, and follow it to its end."""
    from fedsift.deploy.waiting import meanwhile

    def quietly(words: str) -> None:
        if not json:
            say(words)

    with meanwhile(f"reading {app}", quietly):
        from fedsift.api.progress import round_progress
        from fedsift.deploy.coordinator import hosting, starting
        from fedsift.deploy.site.pins import app_fingerprint
        from fedsift.report.page import write_report
        from fedsift.report.terminal import print_summary
        from fedsift.study.study import Study
        from fedsift.transports.flower.processes import LOG_FILE

        link = None if insecure else hosting.read_link(home or hosting.HOME)
        address, ca = (superlink, None) if link is None else (link.address, Path(link.ca))
        unreported = starting.unreported(run_folder)
        if not unreported:
            folder = starting.prepare_run(app, run_folder, address, link)
            study, mark = Study.from_file(folder.study_file), app_fingerprint(app)
    if unreported:
        say("this run had finished while nobody followed it; its report is written now")
        print_summary(run_folder, write_report(run_folder))
        return
    if link is not None and not json:
        say(f"the app is {mark}: a site that has not pinned it does not answer")
    try:
        with (
            page_beside(folder, wanted=serve),
            round_progress(study.method_name, study.method.total_rounds, silent=json, folder=folder.path) as listen,
        ):
            summary = starting.start(app, folder, address, insecure=insecure, ca=ca, listen=listen, say=listen.tell)
    except (KeyboardInterrupt, Stopped) as stop:
        say("stopped; nothing is lost. The same command goes on", stderr)
        raise typer.Exit(exit_code_of(stop)) from None
    except FedsiftError:
        how = "goes on from the last finished round" if folder.rounds() else "begins anew once that is mended"
        say(f"the same command {how}; log: {folder.path / LOG_FILE}", stderr)
        raise
    with meanwhile("writing the report", quietly):
        report = write_report(folder.path)
    if json:
        print_json({**summary, "run": folder.path, "report": report})
    else:
        print_summary(folder.path, report)
