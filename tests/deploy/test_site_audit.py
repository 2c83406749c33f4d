"""A deployed site's own audit: from its own notebook and data, the same files as a simulation writes for it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("flwr")
from fedsift.cli.main import app
from fedsift.core.errors import RunError
from fedsift.deploy.site.audit import write_own_audit
from fedsift.deploy.site.forgetting import forget_at_site
from fedsift.deploy.site.site_file import notebook_of, read_site_file
from fedsift.deploy.trial_data import export_trial
from fedsift.label_audit.corrections import forget
from fedsift.label_audit.ledger import LabelLedger
from fedsift.label_audit.running import audit, audit_data, notebooks_of, prepare_audit
from fedsift.label_audit.verdicts import ReviewVerdict, notes
from fedsift.protocol.messages import ReplyEnvelope, Request, RequestEnvelope, RequestMoment
from fedsift.protocol.notebook import Notebook
from fedsift.runs.folder import RunFolder
from fedsift.study.study import Study
from fedsift.transports.remote.notebooks import NotebookStore

TABLES: dict[str, Any] = {
    "seed": 5,
    "data": {"name": "digits", "train_limit": 240},
    "partition": {"name": "iid", "sites": 3},
    "noise": {"name": "fedcorr", "rho": 0.5, "tau": 0.5},
    "model": {"name": "linear"},
}


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Study, list[Path]]:
    """A simulated audit, and the same sites as folders of their own with what the audit left in their notebooks."""
    place = tmp_path_factory.mktemp("deployed")
    study = prepare_audit(Study.from_table(TABLES), folds=2, rounds=3, model="linear").study
    audit(study, place / "out")
    federated = audit_data(study)
    files = export_trial(federated, study.model.of_sites(federated.sites), place / "sites")
    pages, _ = notebooks_of(RunFolder.open(place / "out" / "run"), study)
    for file in files:
        name = read_site_file(file).name
        notebook = Notebook(dict(pages[name]))
        notebook.written = True
        moment = RequestMoment(study.seed, "judge labels", 4, 0)
        envelope = RequestEnvelope("run-1", name, moment, "", Request())
        store = NotebookStore(notebook_of(file, read_site_file(file)), "run-1", name)
        with store.locked():
            store.keep(envelope, "digest", notebook, "", ReplyEnvelope("run-1", name, moment.id, None))
    return place, study, files


def test_a_site_s_files_are_those_of_the_simulation(audited: tuple[Path, Study, list[Path]], tmp_path: Path) -> None:
    place, _, files = audited
    for file in files:
        folder, _ = write_own_audit(file, tmp_path / file.parent.name)
        simulated = place / "out" / "sites" / folder.path.name
        assert folder.labels.read_bytes() == (simulated / "labels.csv").read_bytes()
        assert folder.report.is_file()
        own, theirs = (LabelLedger(place / "ledger.jsonl").entries() for place in (folder.path, simulated))
        assert [entry.body and entry.body["model"] for entry in own] == [
            entry.body and entry.body["model"] for entry in theirs
        ]
        assert folder.labels.stat().st_mode & 0o077 == 0


def test_forgetting_at_a_deployed_site_names_the_models_that_saw_the_sample(
    audited: tuple[Path, Study, list[Path]], tmp_path: Path
) -> None:
    place, study, files = audited
    _, evidence = notebooks_of(RunFolder.open(place / "out" / "run"), study)
    folder, first = write_own_audit(files[0], tmp_path)
    found, _ = forget(folder, first, first.ids[0], who="owner")
    assert found.models == (evidence.model,) != ("",)


def test_forgetting_reaches_the_notebook_that_the_audit_wrote_and_the_site_s_own_list(
    audited: tuple[Path, Study, list[Path]], tmp_path: Path
) -> None:
    place, study, files = audited
    _, evidence = notebooks_of(RunFolder.open(place / "out" / "run"), study)
    site = Path(shutil.copytree(files[0].parent, tmp_path / "site")) / files[0].name
    file = read_site_file(site)
    folder, first = write_own_audit(site, site.parent / "audit")
    name, other = first.ids[0], first.ids[1]
    notes = notebook_of(site, file)
    assert list(notes.glob("runs/run-1/*.pages"))
    [found] = forget_at_site(site, [name], who="owner")
    assert (found.runs, found.models) == (("run-1",), (evidence.model,))
    assert not list(notes.glob("runs/run-1/*.pages"))
    assert str(folder.labels) in found.files
    rows = [line.split(",")[0] for line in folder.labels.read_text("utf-8").splitlines()[1:]]
    assert name not in rows and other in rows
    with pytest.raises(RunError, match="no run has said anything"):
        write_own_audit(site, tmp_path / "again")


def test_the_figures_of_a_site_s_own_audit_for_programs(
    audited: tuple[Path, Study, list[Path]], tmp_path: Path
) -> None:
    _, _, files = audited
    words = ["flower", "audit", str(files[0]), "--out", str(tmp_path), "--json"]
    found = json.loads(CliRunner().invoke(app, words, catch_exceptions=False).stdout)
    assert found["samples"] == len(Path(found["list"]).read_text("utf-8").splitlines()) - 1
    assert Path(found["page"]).is_file()
    assert found["evidence"]["model"]


def test_verdicts_of_a_deployed_site_are_known_labels_too(
    audited: tuple[Path, Study, list[Path]], tmp_path: Path
) -> None:
    _, _, files = audited
    folder, first = write_own_audit(files[0], tmp_path)
    doubtful = int(first.worst_first()[0])
    said = ReviewVerdict(first.ids[doubtful], "given", first.names(first.given, doubtful), "Ann")
    LabelLedger(folder.ledger).append(notes([said], first, []), "Ann")
    told: list[str] = []
    _, second = write_own_audit(files[0], tmp_path, report=told.append)
    assert told == [f"site '{first.site}': 1 settled verdict is taken as known label"]
    assert second.probability_wrong[doubtful] < first.probability_wrong[doubtful]
    assert not second.flagged[doubtful]


def test_a_site_whose_labels_changed_since_gets_no_list_of_the_old_ones(
    audited: tuple[Path, Study, list[Path]], tmp_path: Path
) -> None:
    _, _, files = audited
    site = Path(shutil.copytree(files[0].parent, tmp_path / "site"))
    write_own_audit(site / files[0].name, tmp_path / "out")
    with np.load(site / "data.npz") as stored:
        arrays = dict(stored)
    arrays["labels"][0] = (arrays["labels"][0] + 1) % 10
    np.savez(site / "data.npz", **arrays)
    with pytest.raises(RunError, match="are not those that run 'run-1' judged"):
        write_own_audit(site / files[0].name, tmp_path / "out")


def test_a_site_that_no_run_has_judged_says_so(audited: tuple[Path, Study, list[Path]], tmp_path: Path) -> None:
    _, study, _ = audited
    federated = audit_data(study)
    [fresh, *_] = export_trial(federated, study.model.of_sites(federated.sites), tmp_path / "fresh")
    with pytest.raises(RunError, match="no run has said anything about its labels"):
        write_own_audit(fresh, tmp_path / "out")
