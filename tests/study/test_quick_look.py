"""What the doctor says before any training, where everyone is noisy and where nobody is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fedsift.cli.main import app
from fedsift.data.dataset import Dataset
from fedsift.study.quick_look import look_for_reference
from fedsift.study.scenarios import preset_table, write_preset
from fedsift.study.study import Study
from fedsift.study.toml_tables import apply_overrides

EVERYONE = ("everyone/digits-iid-small", "everyone/digits-skewed-small")


@pytest.mark.parametrize("name", EVERYONE)
def test_everyone_noisy_is_told_from_some_and_from_nobody(name: str) -> None:
    for rho, codes in ((1.0, ["no-clean-reference"]), (0.6, []), (0.0, [])):
        study = Study.from_table(apply_overrides(preset_table(name), [f"noise.rho={rho}"]))
        found = look_for_reference(study.source.load(), study)
        assert [finding.code for finding in found] == codes, rho


def test_the_doctor_says_it_of_a_study(tmp_path: Path) -> None:
    write_preset(EVERYONE[0], tmp_path / "study.toml")
    result = CliRunner().invoke(app, ["doctor", str(tmp_path / "study.toml")])
    assert result.exit_code == 7
    assert "no clean reference: even at the best sites" in " ".join(result.output.split())


def natural(labels: np.ndarray, sites: int, pictures: np.ndarray) -> Dataset:
    rows = np.arange(len(labels))
    return Dataset(
        "made",
        pictures,
        labels,
        ("a", "b", "c", "d"),
        rows,
        rows[:0],
        sites=np.array([f"s{i % sites}" for i in rows]),
    )


def test_labels_that_pictures_do_not_tell_are_a_note_and_two_sites_are_not_compared() -> None:
    rng = np.random.default_rng(5)
    pictures = rng.integers(0, 255, (400, 1, 8, 8)).astype(np.uint8)
    labels = rng.integers(4, size=400)
    [found] = look_for_reference(natural(labels, 5, pictures))
    assert (found.code, found.severity) == ("labels-not-examined", "note")
    assert look_for_reference(natural(labels, 2, pictures)) == []
