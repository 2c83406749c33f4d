"""`fedsift audit`: find the wrong labels of every site."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fedsift.cli.failures import exit_code_of
from fedsift.cli.output import print_json, print_table, say, stderr
from fedsift.core.errors import ConfigError, FedsiftError
from fedsift.core.text import argument

if TYPE_CHECKING:
    from fedsift.label_audit.running import Audit, PreparedAudit


TRAINING = ("model", "folds", "rounds", "fast", "plan")
"""Options that speak of the models that are to be trained."""


def register(app: typer.Typer) -> None:
    app.command("audit")(audit)


def audit(
    context: typer.Context,
    study: Path = typer.Argument(
        help="The data (a folder of pictures or of sites, a CSV of numbers, an .npz), a study's TOML, a scenario by "
        "name, or a finished run."
    ),
    overrides: list[str] = typer.Argument(
        None, help="Settings over the file's: data.size=32 seed=3 ...; beside data alone size=32 will do."
    ),
    out: Path = typer.Option(Path("audit"), "--out", help="Where the audit's folder is made."),
    model: str = typer.Option(
        "", "--model", help="The network that judges; frozen features by default where one would take long."
    ),
    folds: int = typer.Option(
        5, "--folds", min=1, help="Models, each trained without one part of every site's samples."
    ),
    rounds: int = typer.Option(12, "--rounds", min=1, help="Rounds of training."),
    fast: bool = typer.Option(False, "--fast", help="One model, averaged over the rounds: quicker, less exact."),
    new: Path | None = typer.Option(
        None, "--new", help="Data that came later: judge them with the audit in --out; nothing is trained."
    ),
    plan: bool = typer.Option(False, "--plan", help="Say what it costs and what leaves each site; audit nothing."),
    json: bool = typer.Option(False, "--json", help="Print the figures as JSON."),
) -> None:
    """Judge every label by a model that never saw it, and write each site's private list, page and review queue."""
    from fedsift.label_audit.running import prepare_audit, write_audit
    from fedsift.runs.folder import RunFolder
    from fedsift.study.study import Study, names_data, study_of_data

    if new is not None:
        _refuse(context, TRAINING, "--new trains nothing: it judges by the audit in --out")
        if not (study / "study.toml").is_file() and not names_data(study):
            Study.from_file(study)  # a name that is wrong is said, though what counts is the audit in --out
        _judge_new(new, overrides or [], out, as_json=json)
        return
    if (study / "study.toml").is_file():
        _refuse(
            context,
            (*TRAINING, "overrides"),
            f"a finished run is audited from its own evidence; name its study instead: {study / 'study.toml'}",
        )
        folder = RunFolder.open(study)
        found = write_audit(Study.from_file(folder.study_file), folder, out, report=lambda line: say(line, stderr))
        _show(found, as_json=json)
        return
    settings = overrides or []
    asked = study_of_data(study, settings) if names_data(study) else Study.from_file(study, settings)
    made = prepare_audit(asked, folds=1 if fast else folds, rounds=rounds, model=model)
    for note in (*asked.notes, *made.notes):
        say(f"note: {note}", stderr)
    if plan:
        from fedsift.cli.run import print_plan
        from fedsift.study.planning import plan_study

        print_plan(plan_study(made.study, made.federated), as_json=json)
        return
    _show(_executed(made, out, silent=json), as_json=json)


def _refuse(context: typer.Context, options: Sequence[str], why: str) -> None:
    """Raises ConfigError for options that are given and would say nothing."""
    source = context.get_parameter_source
    given = [name for name in options if getattr(source(name), "name", "") == "COMMANDLINE"]
    if given:
        words = ["settings such as data.size=32" if name == "overrides" else f"--{name}" for name in given]
        raise ConfigError(f"{', '.join(words)} cannot be used here: {why}")


def _judge_new(path: Path, options: list[str], out: Path, *, as_json: bool) -> None:
    from fedsift.cli.doctor import source_at
    from fedsift.label_audit.page import row_cards
    from fedsift.label_audit.score_new import judge_later
    from fedsift.label_audit.writing import array_thumbnails, write_site

    source = source_at(path, options)
    found, data, rows = judge_later(out, source)
    place = out / "later" / (path.name if path.is_dir() else path.stem)
    folders = {
        site: write_site(place, own, array_thumbnails(data.images[rows[site]]) or row_cards(source, rows[site]))
        for site, own in found.items()
    }
    lines = {
        site: {"samples": len(own), "flagged": int(own.flagged.sum()), "list": folders[site].labels}
        for site, own in found.items()
    }
    if as_json:
        print_json({"sites": lines, "out": place})
        return
    cells = [[site, line["samples"], line["flagged"], line["list"]] for site, line in lines.items()]
    print_table("labels that came later", ["site", "samples", "to look at", "list"], cells)


def _executed(made: PreparedAudit, out: Path, *, silent: bool) -> Audit:
    from fedsift.api.progress import round_progress
    from fedsift.label_audit.running import audit as carry_out

    try:
        with round_progress("audit", made.study.method.total_rounds, silent=silent) as listen:
            return carry_out(
                made.study, out, listen=listen, federated=made.federated, report=lambda line: say(line, stderr)
            )
    except KeyboardInterrupt as stop:
        say("stopped; nothing is lost. The same command goes on", stderr)
        raise typer.Exit(exit_code_of(stop)) from None
    except (FedsiftError, OSError):
        if (out / "run" / "checkpoint.bin").is_file():
            say("the same command goes on from the last finished round", stderr)
        raise


def _show(found: Audit, *, as_json: bool) -> None:
    if not as_json:
        print_audit(found)
    else:
        print_json({**found.summary, "out": found.out, "folders": {s: f.path for s, f in found.folders.items()}})


def print_audit(found: Audit) -> None:
    """What an audit found, for people."""
    cells = [
        [
            site,
            own["samples"],
            own["flagged"],
            _rate(own),
            _finding(own),
        ]
        for site, own in found.summary["sites"].items()
    ]
    print_table("labels", ["site", "samples", "to look at", "share wrong (95 %)", "finding"], cells)
    truth = found.summary.get("truth")
    if truth is not None:
        say(
            f"the truth is known here: of {truth['wrong']} wrong labels the lists hold {truth['flagged_and_wrong']} "
            f"({truth['flagged']} listed); mending those above {truth['threshold']:g} fixes {truth['fixed']}, "
            f"harms {truth['harmed']}, misses {truth['missed']}"
        )
    worst = max(found.folders, key=lambda site: found.summary["sites"][site]["flagged"])
    say(f"each site's list and page: {found.out / 'sites'}, e.g. {found.folders[worst].report}")
    if (found.out / "consortium.html").is_file():
        say(f"what the consortium sees: {found.out / 'consortium.html'}")
    say(f"next: look at the pages, or `fedsift review status {argument(found.folders[worst].path)}`")


def _rate(own: dict[str, Any]) -> str:
    share = f"{100 * own['rate']:.1f} %"
    if own["false_alarm_rate"] >= 1:
        return f"{share} (no interval)"
    low = "<0.1" if 0 < own["rate_low"] < 0.0005 else f"{100 * own['rate_low']:.1f}"
    return f"{share} ({low}-{100 * own['rate_high']:.1f})"


def _finding(own: dict[str, Any]) -> str:
    if own["false_alarm_rate"] >= 1:  # a method's own list claims no rate of false alarms
        return "on a list" if own["wrong_labels"] else "no list"
    return str(own["answer"])
