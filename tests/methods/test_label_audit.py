"""The federated audit: it finds what was corrupted, says nothing where nothing is wrong, and lets only sums out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedsift.core.codec import pack
from fedsift.data.sources.arrays import Arrays
from fedsift.label_audit.at_site import JUDGED, JudgedLabels
from fedsift.label_audit.messages import GridJudged, LabelsCounted, LabelsJudged
from fedsift.label_audit.method import LabelAudit, is_linear
from fedsift.label_audit.results import judged_site, site_rows
from fedsift.label_audit.running import against_truth, prepare_audit
from fedsift.label_audit.site_audit import SampleEvidence
from fedsift.protocol.messages import ReplyEnvelope, RequestEnvelope
from fedsift.runtime.in_process import InProcess
from fedsift.study.running import InProcessTransport, new_run
from fedsift.study.study import Study

MIN_COUNT = 10


class Watched(InProcess):
    """Keeps every answer, and the last federation of the test."""

    answers: list[ReplyEnvelope]
    last: Watched

    def __init__(self, *parts: Any, **options: Any) -> None:
        super().__init__(*parts, **options)
        self.answers = []
        Watched.last = self

    def deliver(self, envelopes: Mapping[str, RequestEnvelope], deadline: float) -> Mapping[str, ReplyEnvelope]:
        answers = super().deliver(envelopes, deadline)
        self.answers += answers.values()
        return answers


def points(n: int, classes: int = 3, seed: int = 0, width: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """Rows of features around a centre for each class, well apart."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, classes, n)
    centres = 3.0 * np.eye(classes, width)
    return (centres[labels] + draw.normal(size=(n, width))).astype(np.float32), labels


def corrupted(labels: np.ndarray, site: np.ndarray, rates: Mapping[int, float], classes: int = 3) -> np.ndarray:
    draw = np.random.default_rng(9)
    wrong = draw.random(len(labels)) < np.array([rates.get(int(s), 0.0) for s in site])
    return np.where(wrong, (labels + draw.integers(1, classes, len(labels))) % classes, labels)


def study_of(arrays: Arrays, model: str = "linear", **method: Any) -> Study:
    return Study.from_table(
        {
            "name": "audit",
            "seed": 2,
            "data": arrays,
            "model": {"name": model},
            "method": {"name": "label-audit", "folds": 3, "rounds": 4, **method},
        }
    )


def carried_out(study: Study, tmp_path: Path) -> Watched:
    InProcessTransport(Watched).run(study, new_run(study, tmp_path))
    return Watched.last


def judged(found: Watched, site: str) -> Any:
    rows, given, parts = site_rows(found.federated, site)
    return judged_site(
        found.federated.dataset,
        site,
        rows,
        given,
        parts,
        found.notebooks[site],
        evidence=SampleEvidence("test"),
        min_count=MIN_COUNT,
    )


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Watched:
    """Four sites of 157 samples, each number of samples its own prime; 40 % wrong at the last."""
    images, labels = points(4 * 157)
    site = np.repeat(np.arange(4), 157)
    given = corrupted(labels, site, {3: 0.4})
    arrays = Arrays(images, given, site=np.array(["north", "east", "south", "west"])[site], true=labels)
    return carried_out(study_of(arrays), tmp_path_factory.mktemp("audit"))


def test_it_finds_the_wrong_labels_and_only_at_the_site_that_has_them(audited: Watched) -> None:
    found = {site: judged(audited, site) for site in audited.federated.sites}
    assert {site for site, own in found.items() if own.finding.wrong_labels} == {"west"}
    for site in ("north", "east", "south"):
        assert not found[site].flagged.any()
    truth = against_truth(audited.federated, found)
    assert truth["precision"] > 0.8
    assert truth["recall"] > 0.7
    assert truth["auroc"] > 0.95
    assert found["west"].rate.low < 0.4 < found["west"].rate.high


def test_evidence_is_kept_as_any_method_s(audited: Watched) -> None:
    pages = audited.notebooks["west"]
    page = pages[JUDGED]
    assert isinstance(page, JudgedLabels)
    evidence = pages["evidence"]
    assert evidence.method == "label audit"
    assert torch.equal(evidence.flagged, page.flagged)
    assert torch.allclose(evidence.suspicion, page.wrong[:, 0])


def test_no_reply_holds_an_id_a_sample_a_probability_of_one_or_a_small_cell(audited: Watched) -> None:
    """Interception: 157 samples a site, so that nothing of one row a sample could hide among other shapes."""
    assert len(audited.answers) > 20
    for answer in audited.answers:
        assert answer.reply is not None
        tree, tensors = pack(answer.reply)
        assert "157" not in [str(side) for tensor in tensors.values() for side in tensor.shape]
        assert answer.site not in str(tree)
        if not isinstance(answer.reply, LabelsCounted | GridJudged | LabelsJudged):
            continue
        for name in ("cells", "remainders", "rest", "wrong"):
            table = getattr(answer.reply, name, None)
            if table is not None:
                assert table.dtype == torch.int64
                assert not bool(((table > 0) & (table < MIN_COUNT)).any()), (type(answer.reply).__name__, name)
    kinds = {type(answer.reply).__name__ for answer in audited.answers}
    assert kinds == {"LabelsCounted", "FoldsFitted", "GridJudged", "LabelsJudged"}


def test_each_whole_number_table_leaves_once(audited: Watched) -> None:
    for kind in (LabelsCounted, GridJudged, LabelsJudged):
        senders = [answer.site for answer in audited.answers if isinstance(answer.reply, kind)]
        assert sorted(senders) == sorted(audited.federated.sites)


def test_networks_are_cross_fitted_too(tmp_path: Path) -> None:
    images, labels = points(240)
    site = np.repeat(np.arange(3), 80)
    arrays = Arrays(images, corrupted(labels, site, {2: 0.4}), site=site.astype(str), true=labels)
    found = carried_out(study_of(arrays, model="mlp", folds=2, rounds=3), tmp_path)
    truth = against_truth(found.federated, {name: judged(found, name) for name in found.federated.sites})
    assert truth["auroc"] > 0.9
    assert {"CrossTrained"} <= {type(answer.reply).__name__ for answer in found.answers}


def test_a_single_fold_averages_over_the_rounds(tmp_path: Path) -> None:
    images, labels = points(240)
    site = np.repeat(np.arange(3), 80)
    arrays = Arrays(images, corrupted(labels, site, {2: 0.4}), site=site.astype(str), true=labels)
    found = carried_out(study_of(arrays, folds=1, rounds=5), tmp_path)
    truth = against_truth(found.federated, {name: judged(found, name) for name in found.federated.sites})
    assert truth["auroc"] > 0.9


def test_several_labels_a_sample(tmp_path: Path) -> None:
    draw = np.random.default_rng(5)
    images = draw.normal(size=(450, 5)).astype(np.float32)
    true = (images[:, :3] > 0.3).astype(np.int64)
    site = np.repeat(np.arange(3), 150)
    given = true.copy()
    flip = (draw.random(true.shape) < 0.3) & (site == 2)[:, None]
    given[flip] = 1 - given[flip]
    arrays = Arrays(images, given, site=site.astype(str), true=true)
    found = carried_out(study_of(arrays, rounds=6), tmp_path)
    own = judged(found, "2")
    assert own.finding.wrong_labels
    assert own.probability.shape == (150, 3)
    rows = found.federated.rows["2"]
    wrong = given[rows] != true[rows]
    assert own.probability[wrong].mean() > own.probability[~wrong].mean() + 0.3
    assert not judged(found, "0").finding.wrong_labels


def test_exact_copies_with_different_labels_are_named(tmp_path: Path) -> None:
    images, labels = points(120)
    images[1] = images[0]
    given = labels.copy()
    given[1] = (given[0] + 1) % 3
    arrays = Arrays(images, given, site=np.repeat(["a", "b"], 60))
    found = judged(carried_out(study_of(arrays), tmp_path), "a")
    named = {found.ids[k] for k in range(60) if found.reason[k] == "an exact copy carries another label"}
    assert named == {"0", "1"}


def test_what_follows_from_the_network() -> None:
    assert is_linear("linear") and is_linear("features:efficientnet-lite0@96")
    assert not is_linear("features:efficientnet-lite0+128") and not is_linear("cnn")
    names = [stage.name for stage in LabelAudit(folds=1).stages() if stage.rounds]
    assert "choose the penalty" not in names


def test_an_audit_of_a_study_keeps_its_data_and_changes_its_method() -> None:
    study = Study.from_table({"data": {"name": "digits"}, "method": {"name": "fednoro", "rounds": 5}})
    prepared = prepare_audit(study, folds=3, rounds=2)
    made = prepared.study
    assert isinstance(made.method, LabelAudit)
    assert (made.method.folds, made.method.rounds) == (3, 2)
    assert made.source == study.source and made.partition == study.partition
    assert prepared.notes == ()
