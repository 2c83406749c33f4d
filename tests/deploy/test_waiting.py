"""Whoever waits is told so, at once and again."""

from __future__ import annotations

import time

import pytest

from fedsift.deploy.waiting import EVERY, Starting, meanwhile


def test_words_come_at_once_and_again_and_end_with_the_block() -> None:
    told: list[str] = []
    with meanwhile("reading", told.append, every=0.01):
        assert told[0] == "reading"
        while len(told) < 3:
            time.sleep(0.001)
    count = len(told)
    assert told[1] == "reading (0 s)"
    time.sleep(0.03)
    assert len(told) == count
    assert EVERY < 5.0


def test_a_mistake_ends_it_too() -> None:
    told: list[str] = []
    with pytest.raises(ValueError, match="wrong"), meanwhile("reading", told.append):
        raise ValueError("wrong")
    assert told == ["reading"]


def test_what_takes_a_moment_is_done_without_a_word_and_what_takes_longer_is_not() -> None:
    told: list[str] = []
    with meanwhile("reading", told.append, at_once=False):
        pass
    assert told == []
    with meanwhile("reading", told.append, every=0.01, at_once=False):
        while not told:
            time.sleep(0.001)
    assert told[0] == "reading (0 s)"


def test_a_start_is_told_until_it_is_over_and_then_once() -> None:
    told: list[str] = []
    starts = Starting("it starts", "it is there", told.append)
    for ready in (False, False, True, True, False):
        starts.look(lambda ready=ready: ready)  # type: ignore[misc]
    assert told == ["it starts", "it is there"]
