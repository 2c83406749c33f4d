"""`fedsift flower roster|fingerprint|pin|allow|policy`: who may take part, and which apps may run at a site."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fedsift.cli.flower import flower
from fedsift.cli.output import print_json, print_table, say, with_status

if TYPE_CHECKING:
    from fedsift.deploy.site.policy import Policy

roster = typer.Typer(
    help="Which key speaks for which site. A running door follows at once.",
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
        from fedsift.deploy.site import consent, pins
        from fedsift.deploy.site.site_file import notebook_of, read_site_file

        mark = pins.pin(app, site_file)
        file = read_site_file(site_file)
        consent.approve(notebook_of(site_file.resolve(), file))
        lacking = [] if file.policy is None else _withheld(Path(app), file.policy)
    if json:
        print_json({"site": file.name, "site_file": site_file, "app": mark, "not_allowed_by_policy": lacking})
        return
    say(f"{site_file} allows {mark}; requests that a later fedsift adds are refused until you pin again")
    if lacking:
        say(
            f"its [policy] does not allow {', '.join(lacking)}, which this app asks: take over what you allow of "
            f"`fedsift flower policy {app}`"
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
    json: bool = JSON,
) -> None:
    """Let a run begin at a site whose policy says ask_first."""
    with with_status(f"reading {site_file}"):
        from fedsift.deploy.site.consent import allow_run, allowed_runs
        from fedsift.deploy.site.site_file import notebook_of, read_site_file

        path = site_file.resolve()
        file = read_site_file(path)
        notebook = notebook_of(path, file)
        allow_run(notebook, run)
    if json:
        print_json({"site": file.name, "run": run, "allowed_runs": sorted(allowed_runs(notebook))})
    else:
        say(f"run '{run}' may begin here")


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
