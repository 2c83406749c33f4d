"""`fedsift flower`: superlink, start and roster for the coordinator; site, pin, allow, budget, forget, withdraw for a
site.
"""

from __future__ import annotations

import getpass
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from json import loads
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fedsift.cli.failures import exit_code_of
from fedsift.cli.output import print_json, print_table, say, stderr, with_status
from fedsift.cli.run import SERVE, page_beside
from fedsift.core.errors import FedsiftError, Stopped
from fedsift.core.text import visible

if TYPE_CHECKING:
    from fedsift.deploy.site.policy import Policy

flower = typer.Typer(
    help="Run a deployed study: the meeting point, a site, the run itself. Everything stays offline.",
    no_args_is_help=True,
)

INSECURE = typer.Option(False, "--insecure", help="No encryption, no gateway: for a trial on this machine.")
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
    host: str = typer.Option("127.0.0.1", "--host", help="Address that sites reach; the gateway listens there."),
    port: int = typer.Option(8000, "--port", help="Port that sites reach."),
    insecure: bool = INSECURE,
    certificate: Path = typer.Option(None, "--certificate", help="This machine's certificate (PEM)."),
    key: Path = typer.Option(None, "--key", help="The certificate's private key."),
    roster: Path = typer.Option(None, "--roster", help="federation.toml: which key speaks for which site."),
    database: Path = typer.Option(None, "--database", help="A file that remembers sites and keys over restarts."),
    home: Path = HOME,
) -> None:
    """Start the meeting point: Flower's SuperLink, on this machine only, and our gateway, which sites reach."""
    from fedsift.core.errors import ConfigError
    from fedsift.deploy import flower_commands as commands
    from fedsift.deploy.certificates import CertificatePair
    from fedsift.deploy.coordinator import starting

    place = home or starting.HOME
    if insecure:
        commands.become(commands.superlink_command(host, port, own=None, database=database), place)
    if certificate is None or key is None or roster is None:
        raise ConfigError(
            "the gateway needs --certificate, --key and --roster (docs/deployment.md), or --insecure for a trial on "
            "127.0.0.1"
        )
    pair = CertificatePair(certificate, key)
    raise typer.Exit(starting.host(host, port, pair, roster, home=place, database=database, say=say))


@flower.command()
def site(
    site_file: Path = typer.Argument(help="The site's site.toml."),
    superlink: str = typer.Option(
        "127.0.0.1:8000", "--superlink", help="The coordinator's gateway, host:port; a SuperLink in a trial."
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
        folder, _ = write_own_audit(site_file, place, report=lambda line: say(line, stderr))
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
    changes: list[str] = typer.Argument(
        None, help="In a run that goes on, settings of [gate] or [federation] from now on: gate.against=6"
    ),
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
        from fedsift.deploy.coordinator import starting
        from fedsift.deploy.site.consent import app_fingerprint
        from fedsift.report.page import write_report
        from fedsift.report.terminal import print_summary
        from fedsift.study.study import Study
        from fedsift.study.toml_tables import read_overrides
        from fedsift.transports.flower.processes import LOG_FILE

        link = None if insecure else starting.read_link(home or starting.HOME)
        address, ca = (superlink, None) if link is None else (link.address, Path(link.ca))
        unreported = starting.unreported(run_folder)
        if not unreported:
            folder = starting.prepare_run(app, run_folder, address, link, read_overrides(changes or []))
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
            summary = starting.start(app, folder, address, insecure=insecure, ca=ca, listen=listen, say=listen.say)
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


# Roster, pins and policy
# ------------------------------------------------------------------------------


roster = typer.Typer(
    help="Which key speaks for which site. A running gateway follows at once.",
    no_args_is_help=True,
)
ROSTER = typer.Option(Path("federation.toml"), "--roster", help="The roster's file.")
PUBLIC_KEY = typer.Argument(help="The site's public key, node.pub.")
JSON = typer.Option(False, "--json", help="Print JSON.")


flower.add_typer(roster, name="roster")


def _fingerprint(public_key: Path) -> str:
    from fedsift.deploy.coordinator.roster import fingerprint
    from fedsift.deploy.flower_commands import existing

    existing(public_key, "the site's public key")
    return fingerprint(public_key.read_bytes())


@flower.command("fingerprint")
def show_fingerprint(public_key: Path = PUBLIC_KEY, json: bool = JSON) -> None:
    """The fingerprint of a site's key: read it to each other over the telephone."""
    mark = _fingerprint(public_key)
    if json:
        print_json({"public_key": public_key, "fingerprint": mark})
    else:
        print(mark)


@flower.command()
def pin(
    app: str = typer.Argument(help="The app's folder, its .fab file, or the sha256:... that `deploy` printed."),
    site_file: Path = typer.Argument(Path("site.toml"), help="The site's site.toml."),
    json: bool = JSON,
) -> None:
    """Allow an app at this site; no other app runs here. A running site follows at once."""
    with with_status(f"reading {app} and {site_file}"):
        from fedsift.deploy.site import consent
        from fedsift.deploy.site.site_file import notebook_of, read_site_file

        mark = consent.pin(app, site_file)
        file = read_site_file(site_file)
        consent.approve(notebook_of(site_file.resolve(), file))
        lacking = [] if file.policy is None else _withheld(Path(app), file.policy)
    if json:
        print_json({"site": file.name, "site_file": site_file, "app": mark, "not_allowed_by_policy": lacking})
        return
    say(f"{site_file} allows {mark}; requests that a later fedsift adds are refused until you pin again")
    if lacking:
        say(
            f"under its [policy] this app's method cannot run here, for it needs {', '.join(lacking)}: take over what "
            f"you allow of `fedsift flower policy {app}`"
        )


def _withheld(app: Path, policy: Policy) -> list[str]:
    from fedsift.deploy.app import withheld
    from fedsift.study.study import Study

    file = app / "study.toml"  # of a fingerprint alone nothing is known
    return withheld(Study.from_file(file), policy) if file.is_file() else []


@flower.command()
def allow(
    run: str = typer.Argument(help="The run's id, as the site's log names it."),
    site_file: Path = typer.Argument(Path("site.toml"), help="The site's site.toml."),
    app: Path = typer.Option(
        ..., "--app", help="The folder of the app that you have read: its study is what you allow."
    ),
    json: bool = JSON,
) -> None:
    """Let a run of an app's study begin at a site whose policy says ask_first; whatever differs later asks again."""
    with with_status(f"reading {app} and {site_file}"):
        from fedsift.deploy.flower_commands import existing
        from fedsift.deploy.site.consent import RunTerms, allow_run, allowed_runs
        from fedsift.deploy.site.site_file import notebook_of, read_site_file
        from fedsift.deploy.site.worker import load_plugins
        from fedsift.study.study import Study

        path = site_file.resolve()
        file = read_site_file(path)
        load_plugins(file)
        notebook = notebook_of(path, file)
        existing(app / "study.toml", "the app's study")
        terms = RunTerms.now(Study.from_file(app / "study.toml").to_toml(), file)
        changed = allow_run(notebook, run, terms)
    if json:
        runs = sorted(allowed_runs(notebook))
        print_json({"site": file.name, "run": run, "digest": terms.digest, "changed": changed, "allowed_runs": runs})
        return
    say(f"run '{run}' may begin here, with the study of {app} and this site's limits (sha256:{terms.digest[:16]}...)")
    for line in changed:
        say(f"changed since you allowed it before: {line}")


@flower.command("policy")
def show_policy(app: Path = typer.Argument(help="The app's folder."), json: bool = JSON) -> None:
    """The narrowest policy under which a site can take part: read it, then add it to site.toml."""
    with with_status(f"reading {app}"):
        from fedsift.deploy.app import narrowest_policy
        from fedsift.study.study import Study

        policy = narrowest_policy(Study.from_file(app / "study.toml"))
    if json:
        print_json(tomllib.loads(policy))
    else:
        print(policy, end="")


@roster.command("add")
def roster_add(
    name: str = typer.Argument(help="How the federation knows the site."),
    public_key: Path = PUBLIC_KEY,
    samples: int = typer.Option(..., "--samples", help="The most training samples that it may declare."),
    share: float = typer.Option(1.0, "--share", help="The most that it may count for in a round's average, 0 to 1."),
    file: Path = ROSTER,
    json: bool = JSON,
) -> None:
    """List a site: the holder of this key may join, under this name only."""
    from fedsift.deploy.coordinator.roster import RosterEntry, add_entry

    entry = RosterEntry(name, _fingerprint(public_key), samples, share=share)
    add_entry(file, entry)
    if json:
        print_json(vars(entry))
        return
    bound = f" and {share:.0%} of a round" if share < 1 else ""
    say(f"{file} lists '{name}' with {entry.key}, at most {samples} samples{bound}")


@roster.command("revoke")
def roster_revoke(
    name: str = typer.Argument(help="The site that may not speak any more."),
    file: Path = ROSTER,
    json: bool = JSON,
) -> None:
    """Refuse a site from its next message on."""
    _change(file, name, "is refused from its next message on", json, revoked=True)


@roster.command("reinstate")
def roster_reinstate(
    name: str = typer.Argument(help="The site that may speak again."), file: Path = ROSTER, json: bool = JSON
) -> None:
    """Let a revoked site speak again, with the key that it had."""
    _change(file, name, "may speak again", json, revoked=False)


@roster.command("key")
def roster_key(
    name: str = typer.Argument(help="The site that has a new key."),
    public_key: Path = PUBLIC_KEY,
    file: Path = ROSTER,
    json: bool = JSON,
) -> None:
    """Give a site a new key; the old one is refused from its next message on. A revoked site stays revoked."""
    _change(file, name, "speaks with this key from now on", json, key=_fingerprint(public_key))


def _change(file: Path, name: str, words: str, json: bool, **parts: str | bool) -> None:
    from fedsift.deploy.coordinator.roster import change_entry

    entry = change_entry(file, name, **parts)
    if json:
        print_json(vars(entry))
        return
    still = "; it is revoked still" if entry.revoked and "revoked" not in parts else ""
    say(f"'{name}' ({entry.key}) {words}{still}")


@roster.command("list")
def roster_list(file: Path = ROSTER, json: bool = JSON) -> None:
    """Who may take part."""
    from fedsift.deploy.coordinator.roster import read_entries
    from fedsift.deploy.flower_commands import existing

    existing(file, "the roster")
    entries = read_entries(file)
    if json:
        print_json([vars(entry) for entry in entries])
        return
    rows = [(e.name, e.samples, f"{e.share:.0%}", "revoked" if e.revoked else "may join", e.key) for e in entries]
    print_table(str(file), ("site", "samples at most", "share at most", "state", "key"), rows)


# Budget, forgetting and withdrawal
# ------------------------------------------------------------------------------


SITE_FILE = typer.Argument(Path("site.toml"), help="The site's site.toml.")


@flower.command()
def budget(
    site_file: Path = SITE_FILE,
    delta: float = typer.Option(1e-6, "--delta", help="For the epsilon that the cost amounts to."),
    json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """What this site's dataset has spent of its privacy, and what left outside of that account."""
    with with_status(f"reading {site_file}"):
        from fedsift.deploy.site.consent import account_of, fields_that_left, label_account_of
        from fedsift.deploy.site.site_file import egress_of, read_site_file
        from fedsift.formulas.privacy import zcdp_epsilon

        path = site_file.resolve()
        file = read_site_file(path)
        account = account_of(path, file)
        charges, outside = account.charges(), fields_that_left(egress_of(path, file))
    spent, labels = account.spent, label_account_of(path, file)
    table = {
        "account": account.path,
        "spent": spent,
        "budget": account.budget,
        "epsilon": zcdp_epsilon(spent, delta),
        "delta": delta,
        "releases": len(charges),
        "runs": sorted({charge.run for charge in charges}),
        "outside": outside,
        "labels": {"spent": labels.spent, "budget": labels.budget, "releases": len(labels.charges())},
    }
    if json:
        print_json(table)
        return
    limit = "no limit" if account.budget is None else f"of {account.budget:g}"
    say(f"{len(charges)} noised updates cost {spent:.4g} zCDP, {limit}: epsilon {table['epsilon']:.3g} at {delta:g}")
    if labels.charges():
        limit = "no limit" if labels.budget is None else f"of {labels.budget:g}"
        say(f"{len(labels.charges())} releases of labels spent epsilon {labels.spent:.4g} on each, {limit}")
    rows = [(request, ", ".join(fields)) for request, fields in outside.items()]
    print_table("left without noise, outside the account", ("request", "fields"), rows)


@flower.command()
def forget(
    site_file: Path = typer.Argument(help="The site's site.toml."),
    ids: list[str] = typer.Argument(help="The samples' names, as in the site's data."),
    who: str = typer.Option("", "--who", help="Who decides (default: the user's name)."),
    gone: bool = typer.Option(False, "--gone", help="The samples are no longer in the data."),
    audit: Path = typer.Option(None, "--audit", help="The --out of `fedsift flower audit`, if it had one."),
    json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Forget samples at this site: notes of all runs, features, its own audit. The site must not be running."""
    with with_status(f"reading {site_file}, forgetting"):
        from fedsift.deploy.site.forgetting import forget_at_site

        forgotten = forget_at_site(site_file, ids, who=who or getpass.getuser(), gone=gone, audit=audit)
    if json:
        print_json([asdict(found) for found in forgotten])
        return
    for found in forgotten:
        say(f"{visible(found.id)}: {len(found.files)} files that held anything of it are gone or written anew")
        say(f"runs that may have seen it: {', '.join(found.runs) or 'none'}")
        say(f"models that judged it: {', '.join(found.models) or 'none is recorded'}")
        for line in (*(f"not removed: {what}" for what in found.remains), *found.notes):
            say(line)


@flower.command()
def withdraw(
    site_file: Path = SITE_FILE,
    erase: bool = typer.Option(False, "--erase", help="Also remove the notes; the record of what left stays."),
    json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Take no further part: the notebook is closed, and this site answers nothing from now on."""
    with with_status(f"reading {site_file}"):
        from fedsift.deploy.site import consent
        from fedsift.deploy.site.site_file import notebook_of, read_site_file

        path = site_file.resolve()
        file = read_site_file(path)
        runs = consent.withdraw(notebook_of(path, file), erase=erase)
    if json:
        print_json({"site": file.name, "runs": runs, "erased": erase})
        return
    say(f"site '{file.name}' has withdrawn; it took part in: {', '.join(runs) or 'no run'}")
    say("the coordinator lists the models with `fedsift flower took-part NAME RUNS`; ask for them to be trained anew")


@flower.command("took-part")
def list_participation(
    site: str = typer.Argument(help="The site's name."),
    runs: list[Path] = typer.Argument(help="Run folders, or folders that hold some."),
    json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """At the coordinator: the runs, and so the models, in which a site took part."""
    with with_status(f"reading {', '.join(map(str, runs))}"):
        from fedsift.deploy.coordinator.starting import participations

        found = participations(site, runs)
    if json:
        print_json([vars(each) for each in found])
        return
    rows = [(each.run, each.until, each.state, each.model or "none") for each in found]
    print_table(f"site {site}", ("run", "last answer", "state", "model"), rows)
