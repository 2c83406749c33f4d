"""The report's lanes: the same marks as on the live page, from the same events."""

from __future__ import annotations

from pathlib import Path

from fedsift.report.sections import _codes, lanes
from fedsift.runs.events import Absent, Refused
from fedsift.runs.reading import read_run
from tests.live.made import Made


def test_a_lane_has_a_mark_for_each_stretch(tmp_path: Path) -> None:
    made = Made(tmp_path, sites=("a", "<b>"))
    assert lanes(read_run(made.folder.path)) is None
    made.start()
    made.round(1)
    made.ask(2)
    made.answer(2, "a")
    made.say(Refused(2, "Train", "a", "not finite"))
    made.say(Absent(2, "Train", "<b>", "gone"))
    made.done(2)
    made.round(3)
    drawn = str(lanes(read_run(made.folder.path)))
    assert drawn.count("did answered") == 4  # before and after, for both
    assert drawn.count("did refused") == drawn.count("did absent") == 1
    assert "&lt;b&gt;" in drawn
    assert "<b>" not in drawn.replace("<b>Answers by round</b>", "")


def test_of_rounds_that_share_a_pixel_the_most_notable_is_shown() -> None:
    columns = {number: bytearray([4 if number == 77 else 1]) for number in range(1, 101)}
    assert _codes(columns, 0, 100, 10) == [1, 1, 1, 1, 1, 1, 1, 4, 1, 1]
