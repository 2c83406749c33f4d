"""Everything that leaves a site in the three exchanges, read as an eavesdropper would."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from fedsift.detection.label_posterior import GRID, LabelModel
from fedsift.detection.label_rates import STRETCH, SiteRate
from fedsift.formulas.small_counts import MIN_COUNT, WITHHELD
from fedsift.label_audit.messages import (
    SecondReply,
    SharedModel,
    first_reply,
    last_fit,
    released_rate,
    second_reply,
    shared_model,
    site_tempering,
    start_model,
    third_reply,
)


def numbers(reply: Any) -> list[float]:
    """Every number in a reply, booleans aside."""
    if isinstance(reply, dict):
        return [number for part in reply.values() for number in numbers(part)]
    if isinstance(reply, bool):
        return []
    return np.asarray(reply).ravel().tolist()


@pytest.mark.parametrize("samples", [3, 9, 25, 200])
def test_no_reply_holds_a_small_count_or_a_fraction(samples: int) -> None:
    rng = np.random.default_rng(samples)
    p = [rng.dirichlet(np.ones(4), n) for n in (samples, 150)]
    given = [np.array([rng.choice(4, p=row) for row in one]) for one in p]
    first = [first_reply(labels, 4) for labels in given]
    start = start_model(first)
    second = [second_reply(a, b, start) for a, b in zip(p, given, strict=True)]
    shared = shared_model(second, start)
    fits = [last_fit(a, b, shared, c) for a, b, c in zip(p, given, second, strict=True)]
    third = [third_reply(fit, labels) for fit, labels in zip(fits, given, strict=True)]
    for reply in (*first, *second, *third):
        for number in numbers(asdict(reply)):
            assert number == int(number)
            # log-likelihoods are negative sums over all samples; everything else is a count
            assert number <= 0 or number >= MIN_COUNT
    if samples < MIN_COUNT:
        silent = asdict(second[0])
        assert not silent["nats"].any() and not silent["faithful"].any()
        assert (first[0].cells == WITHHELD).all() and (third[0].agreement.cells == WITHHELD).all()


def curves(best: float, samples: int) -> np.ndarray:
    return -samples * (np.array(GRID) - best) ** 2


def test_a_site_s_exponent_lies_between_its_own_and_the_federation_s() -> None:
    """Parabolas with their tops at 1 (faithful), 2 (all sites) and 3 (the site) have their sum's top at the mean."""
    table = first_reply(np.zeros(20, np.int64), 1)
    shared = SharedModel(LabelModel.start([1.0]), curves(2.0, 1), curves(1.0, 1))
    for samples, top in ((0, 2.0), (1500, 2.5)):
        own = SecondReply(curves(3.0, samples), curves(1.0, samples), table)
        assert site_tempering(shared, own) == pytest.approx(1 + STRETCH * (top - 1))


def test_a_rate_is_told_in_multiples_of_the_minimum_count() -> None:
    assert released_rate(SiteRate(200, 4, 0, 7, False)) == SiteRate(200, WITHHELD, 0, 10, False)
    assert released_rate(SiteRate(200, 60, 50, 70, True)) == SiteRate(200, 60, 50, 70, True)
    assert released_rate(SiteRate(200, 196, 190, 199, True)) == SiteRate(200, WITHHELD, 190, 200, True)
    assert released_rate(SiteRate(5, 1, 0, 3, False)).samples == WITHHELD
