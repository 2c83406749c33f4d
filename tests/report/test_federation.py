"""The page of a federation before anything is trained: small, offline, and true to its numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fedsift.cli.main import app
from fedsift.data.build import build
from fedsift.data.noise.base import noises
from fedsift.data.overview import FederationOverview, portrait_of
from fedsift.data.partitions.base import partitions
from fedsift.report.federation import federation_page, headline
from tests.data.test_build import toy
from tests.data.test_pictures import digits_data
from tests.report.test_report import Page

LIMIT = 300_000


def page_of(portrait: FederationOverview, title: str = "t") -> tuple[Page, str]:
    text = federation_page(portrait, title, "seed = 1\n", ["3 files left out"])
    return Page(text), text


def test_the_page_holds_the_numbers_and_loads_nothing() -> None:
    portrait = portrait_of(digits_data())
    page, text = page_of(portrait, "<digits>")
    assert "http" not in text and "plotly" not in text
    assert all(where.startswith("#") for where in page.loads)
    labels, wrong, mistaken = page.data
    assert labels["values"] == portrait.counts.tolist()
    assert [row[1] for row in wrong["rows"]] == pytest.approx(portrait.effective, abs=1e-5)
    assert mistaken["values"] == portrait.confusion.tolist() and mistaken["corner"] == "true class"
    assert "1,348 samples at 6 sites" in page.text and "3 files left out" in page.text
    assert len(text.encode()) < LIMIT


def test_a_large_federation_stays_small() -> None:
    """100 sites and 100 classes with every pair of classes mistaken: more than any scenario has."""
    random = np.random.default_rng(0)
    portrait = FederationOverview(
        sites=tuple(f"hospital number {n}" for n in range(100)),
        classes=tuple(f"diagnosis {k}" for k in range(100)),
        counts=random.integers(0, 9, (100, 100)),
        sizes=random.integers(100, 900, 100),
        nominal=random.random(100),
        effective=random.random(100),
        confusion=random.integers(0, 5, (100, 100)) + 900 * np.eye(100, dtype=np.int64),
        noisy=tuple(f"hospital number {n}" for n in range(0, 100, 3)),
        multilabel=False,
        annotated=None,
    )
    page, text = page_of(portrait)
    assert len(text.encode()) < LIMIT, len(text.encode())
    assert len(page.data[0]["values"]) == 100


def test_many_labels_and_unknown_truth() -> None:
    labels = np.zeros((24, 4), np.int64)
    labels[:, 1:] = 1
    multi = replace(toy(24, classes=4), labels=labels, multilabel=True)
    federated = build(multi, partitions.get("iid")(sites=2), noises.get("class-missing")(missing=2), seed=1)
    page, _ = page_of(portrait_of(federated))
    assert page.data[-1]["columns"] == ["kept", "lost", "added"]
    assert "does not annotate" in page.text
    assert any(None in row for row in page.data[0]["values"])
    unknown = build(toy(24, trusted=False), partitions.get("iid")(sites=2), noises.get("clean")(), seed=1)
    page, _ = page_of(portrait_of(unknown))
    assert len(page.data) == 1
    assert headline(portrait_of(unknown)) == "20 samples at 2 sites; which labels are wrong nobody knows"


def test_the_command_writes_it(tmp_path: Path) -> None:
    place = tmp_path / "page.html"
    done = CliRunner().invoke(app, ["scenarios", "show", "rhfl/digits-pairflip-0.2-small", "--html", str(place)])
    assert done.exit_code == 0, done.output
    assert len(place.read_bytes()) < LIMIT
    Page(place.read_text("utf-8"))
