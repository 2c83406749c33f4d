"""Sites that are visited one by one: a hostile one among the first is told where all have trained together once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.promises.attacks import MODEL, attacked

from benchmarks.attacks.accuracy import study_of
from benchmarks.attacks.alone import Visits
from benchmarks.attacks.light import conducted
from fedsift.study.study import Study


def study(**settings: Any) -> Study:
    short = {"iterations": 1, "fine_tuning": False, "usual_training": False}
    return study_of("fedcorr", Path(), seed=101, method={"name": "fedcorr", **short, **settings})


@pytest.fixture(scope="module")
def order() -> list[str]:
    """Who is visited, one after another."""
    visits = Visits()
    visits.moves = {}
    conducted(study(), study().load_data(), protection=visits)
    return list(visits.moves)


@pytest.mark.parametrize("attack", ["x25", "sign flip x15", "sign flip x1"])
@pytest.mark.parametrize("number", [0, 1])
def test_a_hostile_site_among_the_first_visited_is_refused(order: list[str], number: int, attack: str) -> None:
    """The first visited once; the second beside it, and again when it is visited."""
    kind = attacked(MODEL[attack], [order[number]])
    chosen = study(first_together=True)
    assert conducted(chosen, chosen.load_data(), kind).refused == number + 1


def test_honest_sites_pass(order: list[str]) -> None:
    chosen = study(first_together=True)
    assert conducted(chosen, chosen.load_data()).refused == 0
