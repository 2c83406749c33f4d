"""Reports of runs that really trained on digits: one to its end, one stopped by silent sites."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch

from fedsift.core.errors import QuorumError
from fedsift.protocol.messages import ReplyEnvelope
from fedsift.report.page import write_report
from fedsift.runtime.evaluation import Evaluator
from fedsift.runtime.federation import reply_names
from fedsift.runtime.loop import run_rounds
from fedsift.study.running import new_run, open_in_process, run
from fedsift.study.study import Study
from fedsift.training.requests import Indicators, Trained
from tests.report.test_report import Page

STUDY = {
    "name": "real",
    "seed": 3,
    "partition": {"name": "iid", "sites": 6},
    "noise": {"name": "fedcorr", "rho": 0.5, "tau": 0.5},
    "model": {"name": "mlp"},
    "train": {"epochs": 1, "batch_size": 32, "lr": 0.1},
    "method": {"name": "fednoro", "rounds": 4, "warm_up": 2},
    "engine": {"threads": 1},
}


def test_a_run_to_its_end(tmp_path: Path) -> None:
    study = Study.from_table(STUDY)
    folder = new_run(study, tmp_path)
    summary = run(study, folder)
    page = Page(write_report(folder.path).read_text("utf-8"))
    assert f"Accuracy {100 * summary['accuracy']['final']:.1f}%" in page.text
    assert f"{len(summary['noisy_sites_found'])} of 6 sites look" in page.text
    disclosed = page.text[page.text.index("What left the sites A site answers") :]
    assert "What local training gives back. · warm up, robust training" in disclosed
    assert "Indicators" in disclosed
    assert "Evaluated" not in disclosed  # the test set is central, so no site evaluates
    indicator, counts = [data for data in page.data if data["kind"] == "matrix"][:2]
    with (folder.path / "sites.csv").open(newline="") as file:
        samples = {line["site"]: int(line["samples"]) for line in csv.DictReader(file)}
    assert {site: sum(row) for site, row in zip(counts["rows"], counts["values"])} == samples
    assert set(indicator["rows"]) == set(samples)


def test_a_run_that_silent_sites_stopped(tmp_path: Path) -> None:
    study = Study.from_table(STUDY)
    folder = new_run(study, tmp_path)
    federation = open_in_process(study, study.load_data(), folder.id)

    def silent_in_the_end(answer: ReplyEnvelope) -> ReplyEnvelope | None:
        return None if answer.moment_id.endswith("robust training") else answer

    federation.tamper = silent_in_the_end
    with pytest.raises(QuorumError):
        run_rounds(study.method, federation, folder, Evaluator(federation, federation.test_set()))
    page = Page(write_report(folder.path).read_text("utf-8"))
    assert "Not finished, 3 of 5 rounds done: " in page.text
    assert "sites look noisy" in page.text
    [indicator] = [data for data in page.data if data["kind"] == "matrix"][:1]
    assert sorted(indicator["rows"]) == federation.sites


def test_names_of_replies_inside_replies() -> None:
    inner = Indicators(torch.zeros(2), torch.ones(2, dtype=torch.bool), 5)
    assert reply_names(Trained({}, 5, 0.5, then=(inner, inner))) == ["Trained", "Indicators"]
    assert reply_names(None) == []
