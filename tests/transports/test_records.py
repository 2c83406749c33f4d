"""Messages survive the way through Flower's records, and shared tensors are packed once."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import get_object_tree, iterate_object_tree
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore

from fedsift.core.codec import digest_of
from fedsift.methods._two_networks import TrainPair
from fedsift.protocol.messages import ReplyEnvelope, RequestEnvelope, RequestMoment, SiteFacts
from fedsift.training.crossfit import CrossTrain
from fedsift.training.recipe import Recipe
from fedsift.training.requests import Evaluate, Train, Trained
from fedsift.transports.flower.channel import RecordsOfOneExchange
from fedsift.transports.flower.records import SALTED, from_records, size_of_records, tensors_record, to_records
from fedsift.transports.remote.encoding import decode, encode
from fedsift.transports.remote.introduction import Introduction, IntroductionRequest, disagreement
from fedsift.transports.remote.messages import MOST_CHARACTERS, parsed


def envelope(site: str, request: object) -> RequestEnvelope:
    return RequestEnvelope("run", site, RequestMoment(1, "train", 3, 0), "2.0:train", request)  # type: ignore[arg-type]


def packed(value: object, **note: str) -> RecordDict:
    return to_records(encode(value, **note))


def unpacked(records: RecordDict) -> object:
    return decode(from_records(records))


def weights() -> dict[str, torch.Tensor]:
    return {
        "conv.weight": torch.arange(12, dtype=torch.float32).reshape(3, 4),
        "norm.count": torch.tensor(7),
        "half": torch.ones(2, dtype=torch.float16),
        "empty": torch.zeros(0, 5),
    }


@pytest.mark.parametrize(
    "value",
    [
        envelope("north", Train(weights(), Recipe(), then=(Evaluate(None),))),
        ReplyEnvelope("run", "north", "3.0:train", Trained(weights(), 5, 0.25)),
        ReplyEnvelope("run", "north", "3.0:train", None, "the site failed"),
        IntroductionRequest(),
        Introduction(SiteFacts("north", 5), ("a", "b"), False, (1, 8, 8), (0.5,), (0.25,)),
    ],
)
def test_a_message_comes_back_as_it_was(value: object) -> None:
    back = unpacked(packed(value))
    assert type(back) is type(value)
    assert digest_of(back) == digest_of(value)


def pieces(records: RecordDict) -> set[str]:
    return {node.object_id for node in iterate_object_tree(get_object_tree(records))}


@pytest.mark.parametrize("size", [0, 1, SALTED // 4, 3 * SALTED // 4 + 1])
def test_no_piece_of_a_message_can_be_known_before_it_is_sent(size: int) -> None:
    """Flower keeps the first word on what belongs to a piece, whoever says it."""
    value = ReplyEnvelope("run", "north", "3.0:train", Trained({"w": torch.zeros(size)}, 5, 0.25))
    first, again = packed(value), packed(value)
    assert not pieces(first) & pieces(again)
    assert digest_of(unpacked(first)) == digest_of(unpacked(again)) == digest_of(value)


def test_a_site_cannot_have_the_others_wait_for_pieces_that_do_not_exist() -> None:
    store, nowhere = InMemoryObjectStore(), "ab" * 32
    refusal = encode(ReplyEnvelope("run", "north", "3.0:train", None, "too few samples"))
    known = pieces(to_records(refusal))  # what a site can know of another's answer, word for word
    lies = [ObjectTree(object_id=piece, children=[ObjectTree(object_id=nowhere)]) for piece in known]
    store.preregister(1, ObjectTree(object_id="cd" * 32, children=lies))
    honest = to_records(refusal)
    store.preregister(1, get_object_tree(honest))
    wanted = {node.object_id for node in iterate_object_tree(store.get_object_tree(honest.object_id))}
    assert nowhere not in wanted


def test_tensors_that_end_within_a_salt_are_refused() -> None:
    content = RecordDict(
        {
            "tree": ConfigRecord({"tree": "{}"}),
            "tensors": ArrayRecord({"tensors": Array(np.zeros(16, np.uint8))}),
        }
    )
    with pytest.raises(ValueError, match="salt"):
        unpacked(content)


def test_views_of_one_tensor_are_not_confused() -> None:
    table = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    back = unpacked(packed({"table": table, "turned": table.t(), "row": table[1]}))
    assert torch.equal(back["turned"], table.t())
    assert torch.equal(back["row"], table[1])


def test_a_request_for_many_sites_is_packed_once() -> None:
    packer, request = RecordsOfOneExchange(), Train(weights(), Recipe())
    first, second = (packer.of(envelope(site, request), {}) for site in ("north", "south"))
    assert first["tensors"] is second["tensors"]
    assert unpacked(second).site == "south"
    other = packer.of(envelope("west", Train(weights(), Recipe())), {})
    assert other["tensors"] is not first["tensors"]


def test_notes_travel_beside_the_message() -> None:
    assert from_records(packed(IntroductionRequest(), model="cnn")).note == {"model": "cnn"}


@pytest.mark.parametrize(
    "records",
    [
        RecordDict(),
        RecordDict({"tree": ConfigRecord({"tree": "{"})}),
        RecordDict({"tree": ConfigRecord({"tree": '{"$class": "os.system", "fields": {}}'})}),
        RecordDict({"tree": ConfigRecord({"tree": '{"$tensor": "0"}'})}),
        RecordDict(
            {
                "tree": ConfigRecord({"tree": '{"$tensor": "0"}'}),
                "tensors": ArrayRecord({"tensors": Array(np.frombuffer(b"nonsense", np.uint8))}),
            }
        ),
    ],
)
def test_anything_else_is_a_value_error(records: RecordDict) -> None:
    with pytest.raises(ValueError):
        unpacked(records)


def records(tree: object, tensors: bytes = b"", **note: object) -> RecordDict:
    found = RecordDict({"tree": ConfigRecord({"tree": tree}), "note": ConfigRecord(note)})  # type: ignore[dict-item, arg-type]
    if tensors:
        found["tensors"] = tensors_record(tensors)
    return found


def listed(tree: str) -> bytes:
    """Bytes as `to_bytes` writes them, of no tensor and with this tree."""
    header = json.dumps({"__metadata__": {"tree": tree}}).encode()
    return len(header).to_bytes(8, "little") + header


MANY = "[" + "[]," * 50_000 + "[]]"
DEEP = "[" * 65 + "]" * 65


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (records(b"\0" * 100), "bytes stands where a text belongs"),
        (records(17), "int stands where a text belongs"),
        (records("1" * (MOST_CHARACTERS + 1)), f"{MOST_CHARACTERS} are the most"),
        (records(MANY), "100002 parts"),
        (records(DEEP), "nested more than 64"),
        (records("{}", model="m" * 4001), "4000 are the most"),
        (records("{}", model="m" * 3999), "4000 are the most"),
        (records("{}", model=b"mlp"), "bytes stands where a text belongs"),
        (records("{}", listed(MANY)), "100002 parts"),
        (records("{}", listed(DEEP)), "nested more than 64"),
        (records("{}", (2**30).to_bytes(8, "little") + b"{}"), "list of tensors"),
        (records("{}", listed("[]")), "no tensors by number"),
    ],
)
def test_what_would_grow_in_reading_is_not_read(content: RecordDict, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        unpacked(content)


@pytest.mark.parametrize("array", [np.zeros(8), np.zeros((2, 2), np.uint8)])
def test_an_array_that_is_no_bytes_is_not_built(array: np.ndarray) -> None:
    content = RecordDict({"tree": ConfigRecord({"tree": "{}"}), "tensors": ArrayRecord({"tensors": Array(array)})})
    with pytest.raises(ValueError, match="no array of bytes"):
        unpacked(content)
    declared = Array(np.zeros(8, np.uint8))
    declared.data = declared.data.replace(b"(8,)", b"(9,)")  # as if it held more than it does
    content["tensors"] = ArrayRecord({"tensors": declared})
    with pytest.raises(ValueError, match="no array of bytes"):
        unpacked(content)


def test_brackets_and_commas_inside_texts_are_words() -> None:
    words = 'said "[[[' + "[,{" * 60_000 + '" \\'
    assert unpacked(packed({"words": words})) == {"words": words}
    assert unpacked(packed([[1], {"a": "\\"}])) == [[1], {"a": "\\"}]


def test_a_text_without_an_end_takes_no_longer() -> None:
    with pytest.raises(ValueError):
        parsed('"' + '\\"' * (MOST_CHARACTERS // 2 - 1))


def test_every_kind_of_value_has_a_size() -> None:
    found = RecordDict(
        {
            "a": ConfigRecord({"b": b"12345", "text": "123", "list": ["12", "3"], "flag": True}),
            "m": MetricRecord({"x": [1.0, 2.0]}),
        }
    )
    # names 1 + 4 + 4 + 4 and 1, values 5 + 3 + 3 + 8 and 16
    assert size_of_records(found) == 13 + 1 + 19 + 16


def test_twenty_models_of_three_hundred_tensors_are_read() -> None:
    model = {f"layer{n}.0.conv1.running_mean_of": torch.zeros(1) for n in range(320)}
    asked = envelope("north", TrainPair(model, Recipe(), twin=model))
    assert len(unpacked(packed(asked)).request.twin) == 320
    models = tuple({name: value + n for name, value in model.items()} for n in range(20))
    assert len(unpacked(packed(envelope("north", CrossTrain(models, Recipe())))).request.models) == 20


def test_sites_that_speak_of_other_things_are_told_what_differs() -> None:
    own = Introduction(SiteFacts("north", 5), ("a", "b"), False, (1, 8, 8), (0.5,), (0.25,))
    assert disagreement(own, own) is None
    for change, word in [
        ({"classes": ("b", "a")}, "classes in another order (b, a"),
        ({"classes": ("a", "c")}, "has classes a, c"),
        ({"version": "0.1"}, "runs fedsift 0.1"),
        ({"multilabel": True}, "several labels"),
        ({"shape": (1, 9, 8)}, "shape"),
        ({"mean": (0.4,)}, "normalises"),
    ]:
        reason = disagreement(Introduction(**{**own.__dict__, **change}), own)
        assert reason is not None
        assert "'north'" in reason
        assert word in reason
