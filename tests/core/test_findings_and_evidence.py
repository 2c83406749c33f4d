"""Typed findings about sites and evidence about labels: what is written is what is read."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from fedsift.core import codec
from fedsift.protocol.findings import Findings
from fedsift.protocol.messages import moment_words
from fedsift.protocol.notebook import EVIDENCE, LabelEvidence, evidence_of

WHOLE = Findings(
    ("b",),
    unmeasured=("c",),
    probability={"a": 0.1, "b": 0.9},
    p_value=0.02,
    threshold=0.05,
    level={"b": 0.4},
)


def test_a_line_is_plain_and_reads_back() -> None:
    for found in (WHOLE, Findings(()), Findings(("a", "b"))):
        line = json.loads(json.dumps(found.line()))
        assert Findings.of({"findings": line}) == found
    assert Findings(()).line() == {"noisy": []}


def test_the_last_findings_stand() -> None:
    rows = [{"findings": Findings(("a",)).line()}, {}, {"findings": Findings(()).line()}, {"round": 4}]
    assert Findings.last(rows) == Findings(())
    assert Findings.last([{}]) is None


def test_a_line_says_whether_the_verdict_is_borderline() -> None:
    for borderline in (True, False):
        found = Findings((), p_value=0.05, threshold=0.05, borderline=borderline)
        assert found.line()["borderline"] is borderline
    assert not Findings(()).borderline
    assert "borderline" not in Findings(()).line()


def test_the_site_table_leaves_out_who_was_not_measured() -> None:
    columns = WHOLE.by_site("abc")
    assert columns["noisy"] == {"a": False, "b": True}
    assert columns["noisy_probability"] == {"a": 0.1, "b": 0.9}
    assert columns["noise_level"] == {"b": 0.4}
    assert list(Findings(()).by_site("ab")) == ["noisy"]


def test_without_a_clean_reference_no_site_is_judged() -> None:
    found = Findings((), level={"a": 0.5, "b": 0.7}, no_clean_reference=True)
    assert found.line() == {"noisy": [], "level": {"a": 0.5, "b": 0.7}, "no_clean_reference": True}
    assert Findings.of({"findings": found.line()}) == found
    assert found.by_site("ab") == {"noisy": {}, "noisy_probability": {}, "noise_level": {"a": 0.5, "b": 0.7}}


def test_evidence_is_stored_in_a_notebook_and_read_back(tmp_path: Path) -> None:
    kept = LabelEvidence(flagged=torch.tensor([True, False]), method="m", round=3)
    codec.save(tmp_path / "pages", {EVIDENCE: kept})
    read = evidence_of(codec.load(tmp_path / "pages"))
    assert torch.equal(read.flagged, torch.tensor([True, False]))  # type: ignore[arg-type]
    assert (read.method, read.round, read.labels, read.empty) == ("m", 3, None, False)
    assert evidence_of({}).empty


def test_people_count_rounds_from_one() -> None:
    assert moment_words("2.0:warm up") == "question 1 of round 3 (warm up)"
    assert moment_words("rubbish") == "'rubbish'"
