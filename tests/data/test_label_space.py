"""Label spaces by name: order never matters, unknown and absent classes are explicit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsift.core.errors import DataError
from fedsift.data.label_space import similar_names, unite

names = st.lists(st.sampled_from(["ant", "bee", "cat", "dog", "eel", "fox"]), min_size=1, unique=True)


@given(st.dictionaries(st.sampled_from(["a", "b", "c"]), names, min_size=1), st.randoms())
@settings(deadline=None)
def test_order_of_sites_and_names_never_matters(declared, random):
    shuffled = {
        site: random.sample(own, len(own)) for site, own in random.sample(list(declared.items()), len(declared))
    }
    one, two = unite(declared), unite(shuffled)
    assert one.classes == two.classes
    for site, own in declared.items():
        labels = np.arange(len(own))
        translated = one.translate(site, labels)
        assert [one.classes[c] for c in translated] == own
        assert one.annotated(site).tolist() == two.annotated(site).tolist()


def test_unknown_and_absent_classes_are_said():
    space = unite({"bern": ["dog", "cat"], "graz": ["cat", "eel"]}, vocabulary=["cat", "dog"])
    assert space.classes == ("cat", "dog")
    assert space.unknown == {"bern": (), "graz": ("eel",)}
    assert space.absent == {"bern": (), "graz": ("dog",)}
    assert space.translate("graz", np.array([0, 1, 0])).tolist() == [0, -1, 0]
    assert space.translate("bern", np.array([[1, 0], [1, 1]])).tolist() == [[0, 1], [1, 1]]


def test_a_name_declared_twice_is_refused():
    with pytest.raises(DataError, match="'bern' declares class 'cat' twice"):
        unite({"bern": ["cat", "cat"]})


@pytest.mark.parametrize(
    ("counts", "pairs"),
    [
        ({"melanoma": 90, "melanomma": 2}, [("melanomma", "melanoma")]),
        ({"Nevus": 3, "nevus": 50}, [("Nevus", "nevus")]),
        ({"pleural thickening": 1, "pleural_thickening": 9}, [("pleural thickening", "pleural_thickening")]),
        ({"0": 1, "1": 9, "10": 3}, []),
        ({"grade 1": 5, "grade 2": 50}, []),
        ({"cat": 1, "car": 9}, []),
        ({"mel": 1, "bkl": 9, "nv": 100}, []),
    ],
)
def test_look_alikes(counts, pairs):
    assert similar_names(counts) == pairs
