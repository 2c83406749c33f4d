"""A run's story from its events: what each site did, what is new, how it goes on after a stop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedsift.runs.events import Absent, Changed, EventTail, Found, Refused, Warned, read_events
from fedsift.runs.history import RunHistory, thinned
from tests.live.made import Made


def story_of(made: Made) -> RunHistory:
    story = RunHistory()
    story.take(read_events(made.folder.path))
    return story


def columns(story: RunHistory, at: float = 0.0) -> dict[int, str]:
    return dict(story.snapshot(at)["columns"])


def test_every_site_has_its_lane(tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.start()
    made.ask(1)
    made.answer(1, "a", "b", "c")
    made.say(Refused(1, "Train", "b", "not finite"))
    made.say(Absent(1, "Train", "d", "no reply within 60 s"))
    made.done(1)
    made.ask(2)
    story = story_of(made)
    assert columns(story) == {1: "1413", 2: "2222"}
    told = story.snapshot(made.now)
    assert (told["totals"]["refused"], told["totals"]["absent"]) == (1, 1)
    assert told["about"] == [[1, 1, "round 1: not finite"], [3, 1, "round 1: no reply within 60 s"]]
    assert told["took"] == [[1.0, [0, 1, 2]]]


def test_a_refusal_stays_in_sight_when_the_site_is_asked_again_in_the_same_round(tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.start()
    made.ask(1)
    made.answer(1)
    made.say(Refused(1, "Train", "b", "not finite"))
    made.ask(1)
    made.answer(1)
    assert columns(story_of(made)) == {1: "1411"}


def test_who_takes_twice_as_long_as_the_half_is_late(tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.start()
    made.ask(1)
    asked_at = made.now
    made.answer(1, "a", seconds=2.0)
    assert story_of(made).now(asked_at + 60) == "1222"  # nobody is late before half have answered
    made.answer(1, "b", seconds=1.0)
    story = story_of(made)
    assert story.now(asked_at + 5.9) == "1122"
    assert story.now(asked_at + 6.1) == "1155"


def test_what_is_new_adds_up_to_everything(tmp_path: Path) -> None:
    made = Made(tmp_path)
    tail, story = EventTail(made.folder.path), RunHistory()
    made.start()
    story.take(tail.new())
    page = Page(story.news(made.now))
    for number in range(1, 5):
        made.ask(number)
        story.take(tail.new())
        page.take(story.news(made.now))
        made.answer(number)
        if number == 3:
            made.say(Refused(3, "Train", "c", "stale"))
            made.say(Found(3, {"noisy": ["c"], "probability": {"c": 0.9}}))
        made.done(number, accuracy=number / 10, train_loss=1 / number)
        story.take(tail.new())
        page.take(story.news(made.now))
    whole = story.snapshot(made.now)
    assert page.columns == dict(whole["columns"])
    assert page.curves == {name: [list(p) for p in points] for name, points in whole["curves"].items()}
    assert page.log == [list(line) for line in whole["log"]]
    assert page.findings == whole["findings"]
    assert whole["findings"]["words"] == "1 of 4 sites look noisy: c (90.0%)"
    assert "findings" not in story.news(made.now)  # it was told


class Page:
    """Adds up messages as the browser does."""

    def __init__(self, whole: dict[str, Any]) -> None:
        assert whole["whole"]
        self.columns: dict[int, str] = {}
        self.curves: dict[str, list[Any]] = {}
        self.log: list[Any] = []
        self.findings: Any = None
        self.take(whole)

    def take(self, news: dict[str, Any]) -> None:
        news = json.loads(json.dumps(news, allow_nan=False))
        self.columns |= dict(news["columns"])
        for name, points in news["curves"].items():
            self.curves.setdefault(name, []).extend(points)
        self.log += news["log"]
        self.findings = news.get("findings", self.findings)


def test_a_resumed_run_forgets_what_the_kill_undid(tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.start()
    made.round(1, accuracy=0.1)
    made.round(2, accuracy=0.9)
    made.ask(3)
    made.start(done=1)  # the checkpoint of round 2 had not been written
    story = story_of(made)
    assert (story.done, columns(story)) == (1, {1: "1111"})
    assert story.curves["accuracy"] == [(1, 0.1)]
    assert story.totals["bytes_up"] == 50
    assert story.news(made.now)["whole"]
    made.round(2, accuracy=0.2)
    assert story_of(made).curves["accuracy"] == [(1, 0.1), (2, 0.2)]
    assert story_of(made).times_started == 2


def test_nobody_works_any_more_when_the_run_has_ended(tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.start()
    made.ask(1)
    made.answer(1, "a")
    made.end("failed", "too few replies")
    story = story_of(made)
    assert columns(story) == {1: "1000"}
    assert story.log[-1][2] == "failed: too few replies"


def test_the_time_left_follows_the_stages(tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.start()
    assert story_of(made).seconds_left() is None
    made.round(1)
    made.round(2)
    assert story_of(made).seconds_left() == 4 * 3.0  # 3 s a round, four to go
    for number in range(3, 7):
        made.round(number)
    assert story_of(made).seconds_left() == 0


def test_a_thinned_curve_keeps_its_peaks_and_ends() -> None:
    points = [(r, 0.5) for r in range(1, 10_001)]
    points[4321] = (4322, 0.99)
    points[7000] = (7001, 0.01)
    few = thinned(points, 300)
    assert len(few) <= 301
    assert few == sorted(few)
    assert {(4322, 0.99), (7001, 0.01), points[0], points[-1]} <= set(few)
    assert thinned(points[:300], 300) == points[:300]


def test_warnings_and_findings_stand_in_the_log(tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.start()
    made.say(Warned(0, "site d is small"))
    made.say(Changed(2, {"gate.largest_share": None}, {"gate.largest_share": 0.3}))
    made.say(Found(1, {"noisy": []}))
    made.say(Found(2, {"noisy": []}))  # nothing new
    words = [line[2] for line in story_of(made).log]
    assert words == [
        "FedAvg begins: 4 sites, 6 rounds",
        "site d is small",
        "after round 2: gate.largest_share was not set, is 0.3",
        "round 1: no site looks noisy",
    ]
