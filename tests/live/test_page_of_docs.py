"""The figures in docs/live.md are those of the result file."""

from benchmarks.live.page import PAGE, filled


def test_the_figures_are_the_measured_ones() -> None:
    text = PAGE.read_text("utf-8")
    assert filled(text) == text, "run `python -m benchmarks.live.page`"
