"""`fedsift demo`: compare methods on a small federation with noisy labels, in two minutes, with bundled data."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fedsift.cli.output import print_json, say, stdout

if TYPE_CHECKING:
    from fedsift.label_audit.running import Audit
    from fedsift.study.study import Study

ROUNDS = 20


def demo_studies(seed: int) -> list[Study]:
    """FedAvg and FedNoRo on 10 sites of digits; at 4 of them, half or more of the labels are wrong.

    The wrong labels are plausible ones: each noisy site has an annotator of its own that errs on hard samples.
    """
    from fedsift.study.study import Study

    shared: dict[str, Any] = {
        "seed": seed,
        "data": {"name": "digits"},
        "partition": {"name": "bernoulli-dirichlet", "sites": 10, "p": 0.9, "alpha": 2.0},
        "noise": {"name": "instance", "rho": 0.4, "low": 0.5, "high": 0.7},
        "model": {"name": "cnn"},
        "train": {"epochs": 5, "batch_size": 16, "lr": 0.05, "momentum": 0.5},
    }
    return [
        Study.from_table({**shared, "name": "demo fedavg", "method": {"name": "fedavg", "rounds": ROUNDS}}),
        Study.from_table(
            {**shared, "name": "demo fednoro", "method": {"name": "fednoro", "rounds": ROUNDS, "warm_up": 6}}
        ),
    ]


AUDIT_FOLDS, AUDIT_ROUNDS = 4, 8
"""Fewer than `fedsift audit` takes by itself: the whole demo is to end within two minutes."""


def register(app: typer.Typer) -> None:
    app.command("demo")(demo)


def demo(
    out: Path = typer.Option(Path("runs"), "--out", help="Where the runs' folders are made."),
    seed: int = typer.Option(7, "--seed", help="Another federation."),
    show: bool = typer.Option(False, "--open", help="Open the report in the browser."),
    json: bool = typer.Option(False, "--json", help="Print the summaries as JSON."),
) -> None:
    """Corrupt the labels of some sites of a digits federation, show who was noisy, and audit every site's labels."""
    from fedsift.api.progress import round_progress
    from fedsift.cli.audit import print_audit
    from fedsift.report.page import write_report
    from fedsift.report.terminal import print_comparison
    from fedsift.study.running import new_run
    from fedsift.study.running import run as run_study

    studies = demo_studies(seed)
    federated = studies[0].load_data()
    if not json:
        noisy = len(federated.truth.noisy) if federated.truth else 0
        stdout.print(
            f"{len(federated.dataset.train)} handwritten digits at {len(federated.sites)} sites; "
            f"{noisy} of the sites have wrong labels, and the methods do not know which.",
            highlight=False,
        )
    runs, summaries = [], []
    for study in studies:
        folder = new_run(study, out)
        with round_progress(study.method_name, study.method.total_rounds, silent=json, folder=folder.path) as listen:
            summaries.append(run_study(study, folder, listen, federated))
        runs.append(folder.path)
    report = write_report(runs[-1], None, runs[:-1])
    if not json:
        print_comparison(runs, report)
        say("\nNow every site learns which of its labels are wrong: each is judged by a model that never saw it.")
    found = _audited(studies[0], Path(f"{runs[-1]}-audit"), silent=json)
    if json:
        of_runs = [{**s, "run": r} for s, r in zip(summaries, runs)]
        print_json({"runs": of_runs, "report": report, "audit": {**found.summary, "out": found.out}})
    else:
        print_audit(found)
    if show:
        worst = max(found.folders, key=lambda site: found.summary["sites"][site]["flagged"])
        for page in (report, found.folders[worst].report):
            webbrowser.open(page.absolute().as_uri())


def _audited(study: Study, out: Path, *, silent: bool) -> Audit:
    from fedsift.api.progress import round_progress
    from fedsift.label_audit.running import audit, prepare_audit

    made = prepare_audit(study, folds=AUDIT_FOLDS, rounds=AUDIT_ROUNDS)
    with round_progress("audit", made.study.method.total_rounds, silent=silent) as listen:
        return audit(made.study, out, listen=listen, federated=made.federated)
