"""`fedsift flower budget|forget|withdraw|took-part`: what a site has given, and how it takes no further part."""

from __future__ import annotations

import getpass
from dataclasses import asdict
from pathlib import Path

import typer

from fedsift.cli.flower import flower
from fedsift.cli.output import print_json, print_table, say, with_status
from fedsift.core.text import visible

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
        from fedsift.deploy.coordinator.participation import participations

        found = participations(site, runs)
    if json:
        print_json([vars(each) for each in found])
        return
    rows = [(each.run, each.until, each.state, each.model or "none") for each in found]
    print_table(f"site {site}", ("run", "last answer", "state", "model"), rows)
