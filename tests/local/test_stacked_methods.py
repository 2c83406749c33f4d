"""Every method in worker processes gives what it gives in one process: notebooks, replies and models, to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedsift.local import processes, workers
from fedsift.methods import methods
from tests.contract.federations import assert_same_bits, contract_study, outcome, play


@pytest.fixture(scope="module", autouse=True)
def no_worker_stays_behind() -> Iterator[None]:
    yield
    workers.close_workers()


@pytest.mark.parametrize("name", methods.names())
def test_in_workers_as_in_one_process(name: str, tmp_path: Path) -> None:
    (here, rounds_here), (there, rounds_there) = (
        outcome(play(contract_study(name, tmp_path, engine={"trainer": "one", "workers": count}), tmp_path))
        for count in (0, 2)
    )
    assert processes._current is not None
    assert_same_bits(here, there)
    assert rounds_here == rounds_there
