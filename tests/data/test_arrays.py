"""Arrays handed over in Python: what they become, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsift.core.errors import DataError
from fedsift.data.build import build
from fedsift.data.noise.base import noises
from fedsift.data.partitions.base import partitions
from fedsift.data.sources.arrays import Arrays, as_samples
from fedsift.study.study import Study

PICTURES = np.arange(6 * 1 * 4 * 4, dtype=np.uint8).reshape(6, 1, 4, 4)
LABELS = np.array([0, 1, 2, 0, 1, 2])


def test_pictures_stay_as_they_are_and_labels_are_not_the_truth() -> None:
    data = Arrays(PICTURES, LABELS, ids=list("uvwxyz"), groups=[1, 1, 2, 2, 3, 3]).load()
    np.testing.assert_array_equal(data.images, PICTURES)
    assert data.labels.tolist() == LABELS.tolist()
    assert data.classes == ("0", "1", "2")
    assert not data.trusted
    assert data.given is None
    assert data.ids is not None and data.ids.tolist() == list("uvwxyz")
    assert data.groups is not None and data.groups.tolist() == ["1", "1", "2", "2", "3", "3"]
    assert (len(data.train), len(data.test)) == (6, 0)
    assert Arrays(PICTURES, LABELS).usual() == {}
    federated = build(data, partitions.get("iid")(sites=2), noises.get("clean")(), seed=1, held_out=0.1)
    assert federated.truth is None


def test_sites_are_natural_and_true_labels_are_for_measuring() -> None:
    true = np.array([0, 1, 2, 0, 1, 1])
    source = Arrays(PICTURES, LABELS, site=["n", "n", "n", "s", "s", "s"], true=true)
    assert source.usual() == {"noise": {"name": "as-given"}}
    study = Study.from_table({"data": source})
    assert partitions.name_of(study.partition) == "own-sites"
    assert noises.name_of(study.noise) == "as-given"
    assert study.load_data().sites == ("n", "s")
    data = source.load()
    assert data.trusted
    assert data.labels.tolist() == true.tolist()
    assert data.given is not None and data.given.tolist() == LABELS.tolist()
    federated = build(data, partitions.get("natural")(), noises.get("as-given")(), seed=1, held_out=1e-9)
    assert federated.truth is not None
    assert federated.truth.noisy == ("s",)


def test_test_samples_follow_the_training_samples() -> None:
    data = Arrays(PICTURES[:4], LABELS[:4], test_images=PICTURES[4:], test_labels=LABELS[4:], site=list("aabb")).load()
    assert data.train.tolist() == [0, 1, 2, 3]
    assert data.test.tolist() == [4, 5]
    assert data.sites is not None and data.sites.tolist() == ["a", "a", "b", "b", "", ""]
    assert data.classes == ("0", "1", "2")  # label 2 of a test sample counts


def test_names_as_labels() -> None:
    data = Arrays(PICTURES, ["cat", "dog", "cat", "dog", "cat", "dog"]).load()
    assert data.classes == ("cat", "dog")
    assert data.labels.tolist() == [0, 1, 0, 1, 0, 1]
    ordered = Arrays(PICTURES, ["cat", "dog"] * 3, classes=["dog", "cat", "owl"]).load()
    assert ordered.classes == ("dog", "cat", "owl")
    assert ordered.labels.tolist() == [1, 0, 1, 0, 1, 0]
    with pytest.raises(DataError, match="labels: 'cow' is not among the classes cat, dog"):
        Arrays(PICTURES, ["cat", "dog", "cow"] * 2, classes=["cat", "dog"])


def test_rows_of_features_and_multilabel_rows() -> None:
    rows = np.linspace(-3, 9, 12).reshape(6, 2)
    data = Arrays(rows, np.eye(3, dtype=int)[LABELS], classes=["a", "b", "c"]).load()
    assert data.images.dtype == np.float32
    assert data.shape == (2,)
    assert data.multilabel
    np.testing.assert_allclose(data.images, rows, rtol=1e-6)


def test_a_tensor_is_an_array() -> None:
    data = Arrays(torch.from_numpy(PICTURES), torch.from_numpy(LABELS)).load()
    np.testing.assert_array_equal(data.images, PICTURES)


@settings(derandomize=True, max_examples=50)
@given(st.lists(st.integers(0, 255), min_size=16, max_size=16), st.sampled_from([np.float32, np.float64]))
def test_fractions_of_255_are_those_levels(levels: list[int], kind: Any) -> None:
    levels_array = np.array(levels, np.uint8).reshape(1, 1, 4, 4)
    np.testing.assert_array_equal(as_samples((levels_array / 255).astype(kind)), levels_array)


def test_rounding_is_said() -> None:
    exact = Arrays((PICTURES / 255).astype(np.float32), LABELS)
    assert exact.load().notes == ()
    rough = Arrays(np.full((6, 1, 4, 4), 0.3021), LABELS).load()
    assert (rough.images == 77).all()
    assert "256 levels" in rough.notes[0]


def odd(**changes: Any) -> dict[str, Any]:
    return {"images": PICTURES, "labels": LABELS, **changes}


NAN = np.ones((6, 2))
NAN[3, 1] = np.nan


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (odd(images=PICTURES[:, 0]), r"add the channel, images\[:, None\]"),
        (odd(images=np.zeros((6, 5, 5, 3), np.uint8)), r"channels last: use images.transpose\(0, 3, 1, 2\)"),
        (odd(images=np.zeros((0, 1, 4, 4), np.uint8), labels=[]), "hold nothing"),
        (odd(images=PICTURES.astype(np.uint16)), "of type uint16: give uint8, or fractions"),
        (odd(images=PICTURES.astype(float)), r"lie in 0..95, floating-point pictures .*: use images / 95"),
        (odd(images=PICTURES / 255 - 0.5), "undo their normalisation"),
        (odd(images=NAN), "sample 3 holds a value that is no number"),
        (odd(images=np.full((6, 2), 1e300)), "beyond float32"),
        (odd(images=[[1, 2], [3]]), "images are"),
        (odd(labels=LABELS[:5]), "labels: 5 labels for 6 samples"),
        (odd(labels=[0, 1, 2, 0, 1, -1]), r"labels: sample 5 has label -1, outside 0..2"),
        (odd(labels=[0, 9, 9, 0, 1, 1], classes=["a", "b"]), r"sample 1 has label 9 \(1 more\), outside 0..1"),
        (odd(labels=[0.5, 1, 2, 0, 1, 2]), "labels must be whole numbers"),
        (odd(labels=np.full((6, 2), 3)), "zeros and ones"),
        (odd(labels=np.eye(3, dtype=int)[LABELS], classes=["a", "b"]), "3 columns for 2 classes"),
        (odd(labels=None), "needs labels"),
        (odd(images=None), "needs images"),
        (odd(classes=["a", "b", "a"]), "classes name 'a' twice"),
        (odd(site=["a"] * 5), r"site has the shape \(5,\), not one entry for each of the 6"),
        (odd(site=["a", "", "a", "a", "b", "b"]), "sample 1 names no site"),
        (odd(ids=list("uvwxyy")), "ids: 'y' names 2 samples"),
        (odd(test_images=PICTURES), "test_images and test_labels together"),
        (odd(test_images=PICTURES[:, :, :3], test_labels=LABELS), "both need the same shape"),
        (odd(true=LABELS[:2]), "true: 2 labels for 6 samples"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_refused_in_one_line(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message) as refused:
        Arrays(**arguments)
    assert "\n" not in str(refused.value)


def test_a_folder_keeps_a_fingerprint_and_no_samples() -> None:
    source = Arrays(PICTURES, LABELS)
    kept = Arrays(samples=source.samples, shape=source.shape, digest=source.digest)
    assert kept == source
    with pytest.raises(DataError, match=r"6 samples of shape \(1, 4, 4\)\) were arrays in a Python session"):
        kept.load()
    for other in (
        Arrays(PICTURES, LABELS[::-1]),
        Arrays(PICTURES + 1, LABELS),
        Arrays(PICTURES, LABELS, site=list("aabbcc")),
        Arrays(PICTURES, LABELS, true=LABELS),
    ):
        assert other != source
