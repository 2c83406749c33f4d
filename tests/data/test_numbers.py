"""Tables of numbers: what becomes a feature, and how; what is refused or remarked, with the way out."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsift.core.errors import ConfigError, DataError
from fedsift.data.dataset import Dataset
from fedsift.data.doctor import examine, kind_at
from fedsift.data.sources.table import TableSource

BLOOD = """id,site,age,sex,sodium,label
a,north,10,f,140,well
b,north,20,m,,ill
c,south,30,f,142,well
d,south,40,m,144,ill
"""
"""Mean age 25, deviation sqrt(125); mean sodium 142 of three, deviation sqrt(8 / 3)."""


def made(folder: Path, text: str = BLOOD, **options: Any) -> TableSource:
    path = folder / "blood.csv"
    path.write_bytes(text.encode(options.get("encoding", "utf-8")))
    return TableSource(path, **options)


def loaded(folder: Path, text: str = BLOOD, **options: Any) -> Dataset:
    return made(folder, text, **options).load()


def test_every_column_without_a_role_is_a_feature_on_one_scale(tmp_path: Path) -> None:
    data = loaded(tmp_path, categories=("sex",))
    age, sodium = math.sqrt(125), math.sqrt(8 / 3)
    expected = [
        [-15 / age, 1, 0, -2 / sodium],
        [-5 / age, 0, 1, 0],  # an empty cell is the mean
        [5 / age, 1, 0, 0],
        [15 / age, 0, 1, 2 / sodium],
    ]
    np.testing.assert_allclose(data.images, expected, rtol=1e-6)
    assert data.images.dtype == np.float32
    assert data.classes == ("ill", "well")
    assert data.labels.tolist() == [1, 0, 1, 0]
    assert data.ids is not None and data.ids.tolist() == ["a", "b", "c", "d"]
    assert data.sites is not None and data.sites.tolist() == ["north", "north", "south", "south"]
    assert (data.mean, data.std, data.trusted) == ((0.0,), (1.0,), False)
    assert any("1 cells of 1 features are empty, most in 'sodium'" in note for note in data.notes)


def test_only_training_rows_make_the_scale(tmp_path: Path) -> None:
    text = "id,split,x,label\na,train,1,u\nb,train,3,v\nc,test,100,u\n"
    data = loaded(tmp_path, text)
    np.testing.assert_allclose(data.images[:, 0], [-1, 1, 98])
    assert (data.train.tolist(), data.test.tolist()) == ([0, 1], [2])


def test_features_can_be_chosen_in_an_order_or_left_out(tmp_path: Path) -> None:
    chosen = loaded(tmp_path, features=("sodium", "age"))
    whole = loaded(tmp_path, ignore=("sex",))
    np.testing.assert_array_equal(chosen.images, whole.images[:, ::-1])
    with pytest.raises(DataError, match="no column 'agee': did you mean 'age'"):
        loaded(tmp_path, features=("agee",))
    with pytest.raises(DataError, match="no column 'sexx': did you mean 'sex'"):
        loaded(tmp_path, ignore=("sexx",))


def test_rows_without_names_are_numbered_from_one(tmp_path: Path) -> None:
    data = loaded(tmp_path, "x,label\n1,u\n2,v\n")
    assert data.ids is not None and data.ids.tolist() == ["1", "2"]


def test_a_dropped_label_takes_its_numbers_along(tmp_path: Path) -> None:
    text = "id,x,label\na,1,u\nb,50,?\nc,3,v\n"
    data = loaded(tmp_path, text, classes=("u", "v"), unknown="drop")
    assert data.ids is not None and data.ids.tolist() == ["a", "c"]
    np.testing.assert_allclose(data.images[:, 0], [-1, 1])
    with pytest.raises(DataError, match=r"labels outside the vocabulary: '\?' \(1 sample\), first at sample 'b'"):
        loaded(tmp_path, text, classes=("u", "v"))


def test_another_number_is_no_misspelling(tmp_path: Path) -> None:
    text = "x,label\n1,grade 3\n2,grade 4\n3,Grade 3\n"
    with pytest.raises(DataError) as caught:
        loaded(tmp_path, text, classes=("grade 1", "grade 3"))
    assert "'grade 4' (1 sample), 'Grade 3' (1 sample; did you mean 'grade 3'?)" in str(caught.value)


def test_several_labels_and_known_truth(tmp_path: Path) -> None:
    text = "x,one,two,truth,label\n1,1,0,u,u\n2,1,1,v,u\n3,0,0,v,v\n"
    several = loaded(tmp_path, text, label_columns=("one", "two"), ignore=("truth", "label"))
    assert several.multilabel and several.labels.tolist() == [[1, 0], [1, 1], [0, 0]]
    assert several.shape == (1,)
    known = loaded(tmp_path, text, true_column="truth", ignore=("one", "two"))
    assert known.given is not None and known.trusted
    assert (known.labels.tolist(), known.given.tolist()) == ([0, 1, 1], [0, 0, 1])


def test_a_table_as_european_spreadsheets_save_it(tmp_path: Path) -> None:
    text = "id;größe;label\na;1,5;u\nb;-2,5;v\n"
    options = {"delimiter": ";", "encoding": "cp1252"}
    data = loaded(tmp_path, text, decimal=",", **options)
    np.testing.assert_allclose(data.images[:, 0], [1, -1])
    with pytest.raises(DataError, match=r"sample 1, column 'größe': '1,5' is no number: set decimal = \",\""):
        loaded(tmp_path, text, **options)


def test_sites_can_agree_on_a_scale(tmp_path: Path) -> None:
    agreed = tmp_path / "scaling.json"
    agreed.write_text(json.dumps({"sex": ["f", "m", "x"], "age": [50, 10]}), "utf-8")
    data = loaded(tmp_path, scaling=agreed)
    np.testing.assert_allclose(data.images, [[1, 0, 0, -4], [0, 1, 0, -3], [1, 0, 0, -2], [0, 1, 0, -1]])
    agreed.write_text(json.dumps({"sex": ["f"], "age": [50, 10]}), "utf-8")
    with pytest.raises(DataError, match="column 'sex' has 'm', which .* does not list: it lists f"):
        loaded(tmp_path, scaling=agreed)
    for entry in ([50, 0], [50], [50, math.inf], [True, 1], "f", [], [1, "f"]):
        agreed.write_text(json.dumps({"age": entry}), "utf-8")
        with pytest.raises(ConfigError, match=r"'age': it must be \[mean, deviation above 0\]"):
            loaded(tmp_path, scaling=agreed)
    for text in ("[]", "{}", "{", '"age"'):
        agreed.write_text(text, "utf-8")
        with pytest.raises(ConfigError, match="data.scaling"):
            loaded(tmp_path, scaling=agreed)
    with pytest.raises(ConfigError, match="there is no"):
        loaded(tmp_path, scaling=tmp_path / "none.json")


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        (
            "f",
            r"'f' is no number; categories = \[\"x\"\] makes a feature of each word, ignore = \[\"x\"\] leaves it out",
        ),
        ("inf", "inf is no number to learn from"),
        ("1e400", "1e400 is no number to learn from"),
        ("1.2.3", r"'1.2.3' is no number"),
        ("\x1b[2J", r"is no number"),
    ],
)
def test_what_is_no_number_is_refused_with_its_place(tmp_path: Path, cell: str, words: str) -> None:
    with pytest.raises(DataError, match=f"blood.csv, sample 2, column 'x': .*{words}") as caught:
        loaded(tmp_path, f"id,x,label\na,1,u\nb,{cell},v\n")
    assert "\x1b" not in str(caught.value)


def test_a_number_beyond_all_others_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="sample 2, column 'x': 1e308 is no number to learn from"):
        loaded(tmp_path, "id,x,label\na,1,u\nb,1e308,v\n")
    agreed = tmp_path / "scaling.json"
    agreed.write_text('{"x": [0, 1e-6]}', "utf-8")
    with pytest.raises(DataError, match="sample 2, column 'x': 5000 is beyond all others"):
        loaded(tmp_path, "id,x,label\na,0,u\nb,5000,v\n", scaling=agreed)


def test_remarks_are_no_categories(tmp_path: Path) -> None:
    rows = "\n".join(f"{k},remark {k},{'uv'[k % 2]}" for k in range(60))
    with pytest.raises(DataError, match="60 different words, from 1 to 50"):
        loaded(tmp_path, f"id,x,label\n{rows}\n", categories=("x",))
    with pytest.raises(DataError, match=r"'remark 0' is no number; ignore = \[\"x\"\] leaves it out"):
        loaded(tmp_path, f"id,x,label\n{rows}\n")


def test_gaps_can_be_refused_and_a_column_of_gaps_tells_nothing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"sample 2: column 'sodium' is empty \(1 cells are\)"):
        loaded(tmp_path, categories=("sex",), missing="refuse")
    data = loaded(tmp_path, "x,y,label\n1,NA,u\n2,,v\n")
    np.testing.assert_array_equal(data.images[:, 1], [0, 0])


def test_the_doctor_looks_at_columns(tmp_path: Path) -> None:
    """A number that names the row, a code made from the label, a feature that never changes."""
    lines = [f"{k},{1000 + k},{k % 2},{7},{k * k % 13},{'uv'[k % 2] if k else ''}" for k in range(40)]
    source = made(tmp_path, "id,record,code,unit,x,label\n" + "\n".join(lines) + "\n")
    found = {finding.code: finding for finding in examine(source).findings}
    assert "column 'record'" in found["names"].text and 'ignore = ["record"]' in found["names"].fix
    assert "column 'code' gives away the label" in found["gives-away-the-label"].text
    assert "unit" in found["constant"].text
    assert found["unknown-label"].examples == ("no label at all (1)",)
    assert "'x'" not in found["names"].text + found["gives-away-the-label"].text


def test_a_table_is_known_by_its_path(tmp_path: Path) -> None:
    assert kind_at(made(tmp_path).path) is TableSource
    (tmp_path / "book.xlsx").write_bytes(b"PK\x03\x04")
    with pytest.raises(DataError, match="save it as CSV"):
        kind_at(tmp_path / "book.xlsx")
    with pytest.raises(DataError, match="no column of numbers besides id, label"):
        loaded(tmp_path, "id,label\na,u\nb,v\n")
