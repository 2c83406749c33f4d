"""Bytes and back: every stored or sent value survives, nothing else is accepted."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsift.core import codec
from fedsift.core.codec import WireFormat
from fedsift.core.errors import RunError
from fedsift.training.objective import CrossEntropy, Distillation
from fedsift.training.recipe import Augment, Recipe
from fedsift.training.requests import Train


@dataclass(frozen=True)
class CodecSample(WireFormat):
    number: float
    parts: tuple[Any, ...] = ()
    table: dict[Any, Any] = field(default_factory=dict)


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(), inner, max_size=3)
        | st.dictionaries(st.integers(), inner, max_size=2)
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(plain)
def test_plain_values_survive(value: Any) -> None:
    assert codec.from_bytes(codec.to_bytes(value)) == value


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool, torch.bfloat16])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (2, 3)])
def test_tensors_survive_with_dtype_and_shape(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.ones(shape).to(dtype)
    back = codec.from_bytes(codec.to_bytes({"x": tensor}))["x"]
    assert back.dtype == dtype
    assert back.shape == tensor.shape
    assert torch.equal(back, tensor)


def test_one_tensor_twice_views_and_arrays() -> None:
    base = torch.arange(12.0).reshape(3, 4)
    back = codec.from_bytes(codec.to_bytes([base, base, base.T, base[1:], np.arange(3)]))
    assert torch.equal(back[0], base)
    assert torch.equal(back[1], base)
    assert torch.equal(back[2], base.T)
    assert torch.equal(back[3], base[1:])
    assert isinstance(back[4], np.ndarray)
    assert back[4].tolist() == [0, 1, 2]


def test_requests_survive_whole() -> None:
    recipe = Recipe(
        epochs=2,
        augment=Augment(flip=True, crop=4),
        objective=0.25 * CrossEntropy(adjust=1.0) + Distillation(),
    )
    request = Train({"w": torch.randn(2, 3)}, recipe)
    back = codec.from_bytes(codec.to_bytes(request))
    assert back.recipe == recipe
    assert torch.equal(back.weights["w"], request.weights["w"])
    assert codec.digest_of(back) == codec.digest_of(request)


def test_nested_classes_and_special_floats() -> None:
    value = CodecSample(float("inf"), (CodecSample(1.0), "$tensor"), {"$class": 1, 2: (3,)})
    assert codec.from_bytes(codec.to_bytes(value)) == value


def test_digests_tell_values_apart() -> None:
    one = {"w": torch.zeros(4)}
    assert codec.digest_of(one) == codec.digest_of({"w": torch.zeros(4)})
    assert codec.digest_of(one) != codec.digest_of({"w": torch.zeros(2, 2)})
    assert codec.digest_of(one) != codec.digest_of({"w": torch.zeros(4, dtype=torch.float64)})
    assert codec.digest_of(one) != codec.digest_of({"v": torch.zeros(4)})


def test_size_counts_tensors_and_text() -> None:
    assert codec.size_of(torch.zeros(1000)) >= 4000
    assert codec.size_of(torch.zeros(1000)) < 4100


@pytest.mark.parametrize("value", [object(), {1, 2}, b"bytes", lambda: None])
def test_anything_else_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="neither stored nor sent"):
        codec.to_bytes({"x": value})


def test_unknown_class_or_field_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown class 'os.system'"):
        codec.unpack({"$class": "os.system", "fields": {}}, {})
    with pytest.raises(ValueError, match="CodecSample has fields"):
        codec.unpack({"$class": "CodecSample", "fields": {"number": 1.0}}, {})
    with pytest.raises(ValueError, match="missing"):
        codec.unpack({"$tensor": "7"}, {})


def test_two_stored_classes_of_one_name_are_refused() -> None:
    with pytest.raises(TypeError, match="two stored classes"):
        type("Train", (WireFormat,), {"__module__": "elsewhere"})


def test_files_are_whole_or_absent(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "value.safetensors"
    codec.save(file, {"a": 1})
    codec.save(file, {"a": 2})
    assert codec.load(file) == {"a": 2}
    assert list(file.parent.iterdir()) == [file]
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(RunError, match="cannot be read"):
        codec.load(file)
    with pytest.raises(RunError, match="is missing"):
        codec.load(tmp_path / "nothing")


def test_json_in_the_header_is_readable_by_others(tmp_path: Path) -> None:
    data = codec.to_bytes({"note": "x", "t": torch.zeros(1)})
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    assert json.loads(header["__metadata__"]["tree"])["note"] == "x"
