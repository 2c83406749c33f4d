"""The small functions that draw: ticks, names, escapes, and the table of what replies disclose."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedsift.core import numbers
from fedsift.drawing import svg
from fedsift.protocol.messages import SiteFacts
from fedsift.report.tables import disclosures, field_words, reply_classes


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
@example(low=879609.9999999999, span=1e-6)  # a step of 2e-7, of which 1e-6 is less than the spacing of floats there
@example(low=999999.9999999999, span=1e-6)
def test_ticks_cover_the_data_with_few_marks(low: float, span: float) -> None:
    high = low + span
    marks = svg.ticks(low, high)
    step = marks[1] - marks[0]
    allowed = 1e-6 * step + 2 * math.ulp(max(abs(low), abs(high)))
    assert marks[0] <= low + allowed
    assert marks[-1] >= high - allowed
    assert 2 <= len(marks) <= 8
    assert len(set(marks)) == len(marks)


@given(st.integers(1, 50), st.integers(0, 5000))
def test_whole_ticks_stay_within_the_rounds(low: int, span: int) -> None:
    marks = svg.whole_ticks(low, low + span)
    assert all(low <= mark <= low + span for mark in marks)
    assert 1 <= len(marks) <= 10


@given(st.text(max_size=60), st.integers(5, 20))
def test_clipped_names_fit(name: str, most: int) -> None:
    assert len(svg.clipped(name, most)) <= most
    assert svg.clipped(name, 60) == name


@given(st.text())
def test_embedded_data_cannot_leave_its_element(text: str) -> None:
    script = svg.data_script({"x": text + "</script><!--"})
    inside = script.removeprefix('<script type="application/json">').removesuffix("</script>")
    assert "<" not in inside
    assert json.loads(inside) == {"x": text + "</script><!--"}


def test_elements_escape_text_but_not_markup() -> None:
    inner = svg.tag("b", "a<b")
    assert svg.tag("p", inner, " & more", class_="x", title='"q"', hidden=None) == (
        '<p class="x" title="&quot;q&quot;"><b>a&lt;b</b> &amp; more</p>'
    )
    assert svg.empty("rect", x=1.25, y=2.0) == '<rect x="1.2" y="2"/>'


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2_300_000, "2.3 MB"), (4.2e12, "4.2 TB"), (None, "–")],
)
def test_sizes(value: float | None, expected: str) -> None:
    assert numbers.size(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(12345, "12,345"), (0.123456, "0.1235"), (0.00001234, "1.2e-05"), (float("nan"), "–"), (True, "–")],
)
def test_numbers(value: float, expected: str) -> None:
    assert numbers.number(value) == expected


def test_long_lists_end_in_a_count() -> None:
    assert numbers.listed(list("abcdef")) == "a, b, c, d, e, f"
    assert numbers.listed(list("abcdefg")) == "a, b, c, d, e and 2 more"


def test_every_reply_field_has_words() -> None:
    entries = disclosures(None)
    own = {cls.__name__ for cls in reply_classes() if cls.__module__.startswith("fedsift.")}
    assert {"Trained", "Evaluated", "Indicators"} <= own
    undescribed = [
        f"{entry.name}.{item.name}"
        for entry in entries
        if entry.name in own
        for item in entry.items
        if item.what == "not described"
    ]
    assert not undescribed


def test_joining_lists_every_fact() -> None:
    [facts] = disclosures({})
    assert [item.name for item in facts.items] == [field.name for field in dataclasses.fields(SiteFacts)]
    assert field_words(SiteFacts)["samples"] == "Training samples."


def test_a_reply_class_that_is_not_installed_is_named() -> None:
    [_, unknown] = disclosures({"train": ["FromElsewhere"]})
    assert unknown.name == "FromElsewhere"
    assert unknown.when == ("train",)
    assert "not installed" in unknown.summary
