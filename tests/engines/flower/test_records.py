"""Messages survive the way through Flower's records, and shared tensors are packed once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedsift.contract.codec import digest_of
from fedsift.contract.messages import Answer, Envelope, Moment, SiteFacts
from fedsift.engines.flower.hello import Hello, Introduction, disagreement
from fedsift.engines.flower.letters import Letter
from fedsift.engines.flower.records import Packer, pack, unpack
from fedsift.local.recipe import Recipe
from fedsift.local.requests import Evaluate, Train, Trained


def envelope(site: str, request: object) -> Envelope:
    return Envelope("run", site, Moment(1, "train", 3, 0), "2.0:train", request)  # type: ignore[arg-type]


def weights() -> dict[str, torch.Tensor]:
    return {
        "conv.weight": torch.arange(12, dtype=torch.float32).reshape(3, 4),
        "norm.count": torch.tensor(7),
        "half": torch.ones(2, dtype=torch.float16),
        "empty": torch.zeros(0, 5),
    }


@pytest.mark.parametrize(
    "letter",
    [
        envelope("north", Train(weights(), Recipe(), then=(Evaluate(None),))),
        Answer("run", "north", "3.0:train", Trained(weights(), 5, 0.25)),
        Answer("run", "north", "3.0:train", None, "the site failed"),
        Hello(),
        Introduction(SiteFacts("north", 5), ("a", "b"), False, (1, 8, 8), (0.5,), (0.25,)),
    ],
)
def test_a_letter_comes_back_as_it_was(letter: object) -> None:
    back = unpack(pack(letter))
    assert type(back) is type(letter)
    assert digest_of(back) == digest_of(letter)


def test_views_of_one_tensor_are_not_confused() -> None:
    table = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    back = unpack(pack({"table": table, "turned": table.t(), "row": table[1]}))
    assert torch.equal(back["turned"], table.t())
    assert torch.equal(back["row"], table[1])


def test_a_request_for_many_sites_is_packed_once() -> None:
    packer, request = Packer(), Train(weights(), Recipe())
    first, second = (packer.pack(envelope(site, request)) for site in ("north", "south"))
    assert first["tensors"] is second["tensors"]
    assert unpack(second).site == "south"
    other = packer.pack(envelope("west", Train(weights(), Recipe())))
    assert other["tensors"] is not first["tensors"]


def test_notes_travel_beside_the_letter() -> None:
    assert Letter.from_records(pack(Hello(), model="cnn")).note == {"model": "cnn"}


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
        unpack(records)


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
