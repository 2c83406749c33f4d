"""The doctor finds each thing that was planted, and the run goes on without what is broken."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from fedsift.core.errors import DataError
from fedsift.data.build import build
from fedsift.data.doctor import FOUND, UNUSABLE, DoctorReport, examine, fitting, kind_at
from fedsift.data.noise.base import noises
from fedsift.data.partitions.base import partitions
from fedsift.data.sources.folder import FolderSource, SitesSource
from fedsift.data.sources.npz import Npz
from fedsift.methods._base import methods
from tests.data.pictures_on_disk import labelled_folder


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSIFT_CACHE", str(tmp_path / "cache"))


def codes(report: DoctorReport) -> dict[str, tuple[str, ...]]:
    return {finding.code: finding.examples for finding in report.findings}


@pytest.fixture
def sick(tmp_path):
    """100 pictures with 2 % broken, a picture in train and test, a misspelt class, and a site without pictures."""
    root = labelled_folder(
        tmp_path / "sick",
        100,
        ("melanoma", "nevus"),
        label=lambda k: "melanomma" if k == 7 else ("melanoma", "nevus")[k % 2],
        split=lambda k: "test" if k >= 80 else "train",
        site=lambda k: "lund" if k in (10, 11) else ("bern", "graz")[k % 2],
    )
    (root / "pictures" / "p020.png").write_bytes(b"nothing")
    (root / "pictures" / "p021.png").write_bytes((root / "pictures" / "p021.png").read_bytes()[:50])
    shutil.copy(root / "pictures" / "p003.png", root / "pictures" / "p093.png")
    for k in (10, 11):
        (root / "pictures" / f"p{k:03d}.png").unlink()
    return root


def test_everything_planted_is_reported(sick):
    report = examine(FolderSource(path=sick, size=12))
    found = codes(report)
    assert len(found["unreadable"]) == 2
    assert found["unreadable"][0].startswith("pictures/p020.png")
    assert found["duplicate-across-splits"] == ("p003 = p093",)
    assert found["look-alike"] == ("melanomma",)
    assert found["empty-site"] == ("lund",)
    assert set(found["missing-file"]) == {"pictures/p010.png", "pictures/p011.png"}
    assert report.exit_code == FOUND
    assert [site.name for site in report.sites] == ["bern", "graz"]
    assert report.train == 76
    assert report.estimate.image_bytes == 96 * 3 * 12 * 12


def test_the_run_goes_on_without_the_broken_ones(sick):
    federated = build(FolderSource(path=sick, size=12), partitions.get("natural")(), noises.get("clean")(), seed=1)
    assert federated.sites == ("bern", "graz")
    assert sum(len(federated.rows[site]) for site in federated.sites) == 76


def test_a_vocabulary_makes_the_misspelling_an_unknown_label(sick):
    found = codes(examine(FolderSource(path=sick, size=12, classes=("melanoma", "nevus"))))
    assert found["unknown-label"] == ("melanomma (1)",)
    assert "look-alike" not in found


def test_healthy_data_exit_with_zero(tmp_path):
    root = labelled_folder(tmp_path / "well", 60, split=lambda k: "test" if k % 5 == 0 else "train")
    report = examine(FolderSource(path=root, size=8))
    assert report.exit_code == 0
    assert [finding for finding in report.findings if finding.severity != "note"] == []


def test_a_folder_of_sites_with_an_empty_one(tmp_path):
    labelled_folder(tmp_path / "s" / "bern", 30, ("a", "b"))
    labelled_folder(tmp_path / "s" / "graz", 4, ("b",))
    (tmp_path / "s" / "lund").mkdir()
    assert kind_at(tmp_path / "s") is SitesSource
    report = examine(SitesSource(path=tmp_path / "s", size=8))
    found = codes(report)
    assert found["empty-site"] == ("lund",)
    assert found["tiny-site"] == ("graz",)
    assert found["absent-class"] == ("a",)
    # Both helpers draw the same pictures: graz/p000 is bern/p000.
    assert len(found["duplicate-across-sites"]) == 4
    assert "conflicting-labels" in found
    assert "no-test" in found


def test_imbalance_groups_and_a_class_without_samples(tmp_path):
    root = labelled_folder(
        tmp_path / "m", 48,
        label=lambda k: "rare" if k == 0 else ("new" if k == 47 else "usual"),
        group=lambda k: f"g{k // 2}",
        split=lambda k: "test" if k in (5, 47) else "train",
    )  # fmt: skip
    found = codes(examine(FolderSource(path=root, size=8)))
    assert "imbalance" in found
    assert found["group-on-both-sides"] == ("g2", "g23")
    assert found["class-without-samples"] == ("new",)


def test_unusable_data(tmp_path):
    root = labelled_folder(tmp_path / "one", 10, ("same",))
    assert examine(FolderSource(path=root, size=8)).exit_code == UNUSABLE
    with pytest.raises(DataError, match="there is no"):
        kind_at(tmp_path / "nowhere")


def test_arrays_are_examined_too(tmp_path):
    images = np.random.default_rng(0).integers(0, 255, (12, 4, 4), np.uint8)
    images[5] = images[2]
    np.savez(
        tmp_path / "a.npz",
        images=images,
        labels=np.arange(12) % 2,
        test_images=images[:2],
        test_labels=[0, 1],
    )
    assert kind_at(tmp_path / "a.npz") is Npz
    found = codes(examine(Npz(path=tmp_path / "a.npz")))
    assert len(found["duplicate-across-splits"]) == 2
    assert found["duplicate"] == ("2 = 5",)
    assert found["conflicting-labels"] == ("2 = 5",)


def test_which_methods_fit(sick):
    report = examine(FolderSource(path=sick, size=12))
    fits = {fit.method: fit for fit in fitting(report, {name: methods.get(name)() for name in methods})}
    assert fits["fedavg"].fits
    assert not fits["fednoro"].fits
    assert "2 sites are too few" in fits["fednoro"].reason
    assert not fits["fedcorr"].fits
    assert not fits["fedmlp"].fits
    assert "multilabel labels; these are multiclass" in fits["fedmlp"].reason
    assert fits["rhfl"].fits
    assert "public" in fits["rhfl"].reason
