"""The private page: what is in it, what is not, and how it works in a real Chromium."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from fedsift.cli.main import app
from fedsift.label_audit.page import PAGE_LIMIT, page_data, percent, render
from fedsift.label_audit.review import draw_plan, read_plan
from fedsift.label_audit.site_audit import AuditFinding, SiteAudit, WrongShare
from fedsift.label_audit.site_files import SiteFolder
from fedsift.label_audit.verdicts import read_verdicts
from fedsift.label_audit.writing import open_site, write_site
from tests.label_audit.browser import MISSING, Browser
from tests.label_audit.made import (
    HOSTILE,
    digit_pictures,
    digits_audit,
    hostile_audit,
    make_audit,
    multilabel_audit,
)

chromium = pytest.mark.skipif(bool(MISSING), reason=MISSING or "Chromium is there")


class Page(HTMLParser):
    """Elements and attributes, as a browser would find them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def rendered(audit: SiteAudit) -> str:
    return render(audit, draw_plan(audit))


def test_the_headline_says_how_many_with_an_interval() -> None:
    audit, _ = digits_audit(400)
    n, rate = len(audit), audit.rate
    words = f"About {round(n * rate.estimate)} of 400 labels are probably wrong"
    assert f"{words} (between {round(n * rate.low)} and {round(n * rate.high)})" in rendered(audit)
    clean = make_audit([0, 1], [[0.9, 0.1], [0.1, 0.9]], classes=("a", "b"))
    assert "No evidence of wrong labels among 2 labels" in rendered(clean)
    assert "False alarms: at most 5" in rendered(clean)
    assert "No training labels were audited" in rendered(make_audit([], np.zeros((0, 2)), classes=("a", "b")))


def test_a_method_s_own_list_claims_no_interval_and_no_rate() -> None:
    """Words that said "evidence of wrong labels, at a false-alarm rate of 100 %" beside "0 % to 100 %"."""
    audit, _ = digits_audit(200, rate=WrongShare(0.2, 0.0, 1.0), finding=AuditFinding(True, 1.0))
    listed = int(audit.flagged.sum())
    page = rendered(audit)
    assert f"{listed} of 200 samples are on the list" in page and "no interval is claimed" in page
    assert "at no stated rate of false alarms" in page and "100\u00a0%" not in page
    assert audit.finding.words(audit.rate) == "labels on a list, at no stated rate of false alarms"


def test_nothing_but_none_is_told_as_zero() -> None:
    assert [percent(share) for share in (0.0, 0.0001, 0.0006)] == ["0.0\u00a0%", "<0.1\u00a0%", "0.1\u00a0%"]


def test_nothing_can_be_fetched_and_no_other_code_runs() -> None:
    audit, _ = digits_audit(60)
    text = rendered(audit)
    page = Page(text)
    policy = next(a["content"] or "" for tag, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy and "http" not in policy
    for tag, attributes in page.tags:
        assert tag not in ("link", "iframe", "object", "embed", "base", "form")
        assert not any(name.startswith("on") or name == "style" for name in attributes), (tag, attributes)
        assert not {"src", "href", "action", "srcset"} & set(attributes), (tag, attributes)
    assert not re.search(r"https?://(?!www\.w3\.org)", text)


def test_hostile_names_stay_text() -> None:
    audit = hostile_audit(reason=HOSTILE, site=HOSTILE[0])
    page = Page(rendered(audit))
    assert sum(tag == "script" for tag, _ in page.tags) == 2  # the data and the page's own code
    assert not any(tag in ("u", "img") for tag, _ in page.tags)


def test_blind_samples_hold_nothing_that_gives_them_away() -> None:
    audit, _ = digits_audit(300)
    plan = draw_plan(audit)
    data = page_data(audit, plan, None)
    blind = {item.id for item in plan.items if item.blind}
    found = {item["id"]: item for item in data["items"]}
    assert len(blind) > 20
    for name in blind:
        assert set(found[name]) == {"id", "path", "given", "queue", "blind"}
    # they follow the gallery in the order of the queue, so that their place tells nothing either
    last = [item for item in data["items"][data["suspects"] :] if item.get("blind")]
    assert {item["id"] for item in last} == blind
    assert [item["queue"] for item in last] == sorted(item["queue"] for item in last)


def test_the_gallery_is_the_worst_first_and_bounded() -> None:
    audit, _ = digits_audit(PAGE_LIMIT + 900, wrong=0.95)
    plan = draw_plan(audit, blind=0)
    data = page_data(audit, plan, None)
    assert data["suspects"] == PAGE_LIMIT
    wrong = [item["wrong"] for item in data["items"][:PAGE_LIMIT]]
    assert wrong == sorted(wrong, reverse=True)
    assert f"The worst {PAGE_LIMIT:,} of" in render(audit, plan)


def test_suspects_that_only_the_queue_shows_are_counted() -> None:
    audit, _ = digits_audit(300, wrong=0.5)
    plan = draw_plan(audit, blind=0.5)
    unseen = {item.id for item in plan.items if item.blind}
    hidden = sum(one in unseen for one, flag in zip(audit.ids, audit.flagged, strict=True) if flag)
    data = page_data(audit, plan, None)
    assert hidden and data["suspects"] == int(audit.flagged.sum()) - hidden
    assert f" {hidden} suspects are in the queue only, without the proposal." in render(audit, plan)
    assert "in the queue only" not in render(audit, draw_plan(audit, blind=0))


def test_test_samples_have_a_warning() -> None:
    assert "cleaning" not in rendered(digits_audit(100)[0])
    with_test = rendered(digits_audit(100, test=40)[0])
    assert "correcting a test set changes what is measured" in with_test


@pytest.mark.parametrize("k", [1, 2, 13, 41])
def test_any_number_of_classes_is_drawn(k: int) -> None:
    probability = np.full((30, k), 0.2 / max(1, k - 1)) if k > 1 else np.ones((30, 1))
    if k > 1:
        probability[np.arange(30), np.arange(30) % k] = 0.8
    audit = make_audit(np.zeros(30), probability, classes=[f"class {c}" for c in range(k)])
    text = rendered(audit)
    assert ("Given against probable class" in text) == (k <= 40)
    assert ("The commonest mistakes" in text) == (k > 1)


def test_several_labels_are_drawn_by_class() -> None:
    text = rendered(multilabel_audit())
    assert "Entries by class" in text and "Both are right" not in text


def test_of_several_labels_a_sample_the_headline_counts_labels() -> None:
    """Rates are shares of all entries: 30 samples with two annotated classes of three have 60 labels."""
    audit = multilabel_audit(30)
    probability = audit.probability.copy()
    probability[:, 2] = np.nan
    found = replace(
        audit,
        probability=probability,
        rate=WrongShare(1 / 3, 0.2, 0.4),
        finding=AuditFinding(True, 0.05),
        split=(),
    )
    assert "About 20 of 60 labels are probably wrong (between 12 and 24)" in rendered(found)


# In a browser


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> tuple[SiteFolder, SiteAudit]:
    audit, _ = digits_audit(500, wrong=0.25, test=60)
    return write_site(tmp_path_factory.mktemp("audit"), audit, digit_pictures(500)), audit


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    window = Browser(tmp_path)
    try:
        yield window
    finally:
        window.close()


def ids(browser: Browser) -> list[str]:
    return list(browser.run("return Array.from(document.querySelectorAll('.card'), card => card.dataset.id)"))


def choose(browser: Browser, name: str, value: str) -> None:
    browser.run(
        "const select = document.getElementById(arguments[0]); select.value = arguments[1];"
        "select.dispatchEvent(new Event('change'))",
        f"filter-{name}",
        value,
    )


@chromium
def test_filters_by_class_pair_and_state(browser: Browser, site: tuple[SiteFolder, SiteAudit]) -> None:
    folder, audit = site
    browser.open(folder.report)
    plan = read_plan(folder.plan)
    blind = {item.id for item in plan.items if item.blind}
    listed = [
        audit.ids[k]
        for k in audit.worst_first()
        if audit.flagged[k] and not audit.is_test[k] and audit.ids[k] not in blind
    ]
    assert ids(browser) == listed[:60] and len(listed) > 60  # the rest is drawn when it is needed
    choose(browser, "given", "3")
    wanted = [name for name in listed if audit.given[audit.row_of[name]] == 3]
    assert ids(browser) == wanted and browser.text("#count") == f"{len(wanted)} samples, 0 reviewed"
    pair = browser.run(
        "const b = document.querySelector('button.pair'); b.click(); return [+b.dataset.given, +b.dataset.proposed]"
    )
    rows = [audit.row_of[name] for name in ids(browser)]
    assert rows and all([audit.given[k], audit.proposed[k]] == pair for k in rows)
    browser.run(
        "document.querySelector('.cell[role=button]').dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter'}))"
    )
    assert browser.count(".cell.on") == 1 and ids(browser)
    choose(browser, "given", "")
    choose(browser, "proposed", "")
    choose(browser, "state", "done")
    assert ids(browser) == [] and "Nothing to show" in browser.text("#cards")
    browser.click("[data-view=test]")
    choose(browser, "state", "")
    assert all(audit.is_test[audit.row_of[name]] for name in ids(browser)) and ids(browser)
    assert "changes what is measured" in browser.text("#test-warning")
    assert browser.logged() == []


@chromium
def test_keyboard_review_saved_loaded_and_imported(
    browser: Browser, site: tuple[SiteFolder, SiteAudit], tmp_path: Path
) -> None:
    folder, audit = site
    browser.open(folder.report)
    listed = ids(browser)
    browser.write("#reader", "Ann")
    browser.click("#start")
    browser.press("1", "2", "5", "4")
    browser.press("3")
    browser.press(*"digit 7", "enter")
    browser.press("right", "left", "left", "u", "g")
    browser.press("escape")
    # given, proposal, cannot tell, both, other (digit 7), then the fifth again: undone and given
    assert browser.text("#tile-reviewed") == "5"
    assert "5 reviewed" in browser.text("#count")
    browser.click("#save")
    file = browser.downloaded()
    assert file.name == "verdicts-A-Ann.json"
    found = read_verdicts(file, audit)
    assert [(one.id, one.decision) for one in found] == list(
        zip(listed[:5], ["given", "proposal", "cannot tell", "both", "given"])
    )
    assert {one.reader for one in found} == {"Ann"}
    shown = [audit.names(audit.proposed, audit.row_of[name]) for name in listed[:5]]
    assert [tuple(one["proposed"]) for one in json.loads(file.read_text())["verdicts"]] == shown
    done = CliRunner().invoke(app, ["review", "import", str(folder.path), str(file)])
    assert done.exit_code == 0 and "5 verdicts, 5 of them new" in done.output
    # the browser kept it, and a second browser can load the file
    browser.reload()
    assert browser.text("#tile-reviewed") == "5"
    assert browser.text("#save") == "Save verdicts"  # nothing new since it was saved
    browser.run("localStorage.clear()")
    browser.reload()
    assert browser.text("#tile-reviewed") == "0"
    browser.run("document.getElementById('file').hidden = false")
    browser.write("#file", str(file))
    browser.wait_for("#tile-reviewed", "5")
    assert browser.text("#notice") == "5 verdicts loaded."
    assert browser.run("return document.getElementById('reader').value") == "Ann"
    assert browser.count(".card.done") == 5
    # a verdict on another label than the page shows is none on this one
    saved = json.loads(file.read_text())
    saved["verdicts"] = [{**saved["verdicts"][0], "given": "digit 11"}, saved["verdicts"][1]]
    (tmp_path / "other.json").write_text(json.dumps(saved))
    browser.write("#file", str(tmp_path / "other.json"))
    browser.wait_for("#notice", "1 verdict loaded; 1 on samples, or labels of them, that this page does not show.")
    assert browser.logged() == []


@chromium
def test_blind_samples_show_no_proposal(browser: Browser, site: tuple[SiteFolder, SiteAudit]) -> None:
    folder, audit = site
    browser.open(folder.report)
    browser.click("[data-view=queue]")
    plan = read_plan(folder.plan)
    assert ids(browser) == [item.id for item in plan.items[:60]]
    place = next(k for k, item in enumerate(plan.items) if item.blind)
    browser.run("document.querySelectorAll('.card')[arguments[0]].click()", place)
    assert browser.count("#facts .chip.proposed") == 0 and "none shown" in browser.text("#facts")
    assert "%" not in browser.text("#facts")
    assert browser.run("return document.querySelector('[data-decision=proposal]').hidden") is True
    browser.press("2", "4")  # neither does anything here
    assert browser.text("#tile-reviewed") == "0"
    k = audit.row_of[plan.items[place].id]
    browser.press("3")
    browser.press(*audit.classes[(audit.given[k] + 1) % 10], "enter")
    assert browser.text("#tile-reviewed") == "1"


@chromium
def test_verdicts_outlive_recalibrating_and_forgetting(browser: Browser, tmp_path: Path) -> None:
    audit, _ = digits_audit(200, wrong=0.3)
    folder = write_site(tmp_path / "out", audit, digit_pictures(200), plan=draw_plan(audit, 5, 5, 20, blind=0))
    browser.open(folder.report)
    listed = ids(browser)
    browser.click("#start")
    browser.press("2", "2", "2", "2", "2")
    browser.press("escape")
    queue = tmp_path / "bob.csv"
    told = "".join(f"{item.id},given\n" for item in read_plan(folder.plan).items if item.id not in listed[:2])
    queue.write_text(f"id,verdict\n{told}")
    for words in (
        ["review", "import", str(folder.path), str(queue), "--reader", "Bob"],
        ["review", "recalibrate", str(folder.path)],
        ["labels", "forget", str(folder.path), listed[0]],
    ):
        assert CliRunner().invoke(app, words).exit_code == 0
    after = open_site(folder.path)[1]
    assert not after.flagged.all() and after.fingerprint() != audit.fingerprint()
    browser.open(folder.report)
    assert browser.text("#tile-reviewed") == "4" and browser.text("#save") == "Save verdicts (4 new)"
    browser.write("#reader", "Ann")
    browser.click("#save")
    found = read_verdicts(browser.downloaded(), after)
    assert {(one.id, one.labels) for one in found} == {
        (name, audit.names(audit.proposed, audit.row_of[name])) for name in listed[1:5]
    }
    # samples of the same names that look different, or had another label, are others
    other, _ = digits_audit(200, seed=1, wrong=0.3)
    browser.open(write_site(tmp_path / "another", other, digit_pictures(200, seed=1)).report)
    assert browser.text("#tile-reviewed") == "0"
    assert browser.logged() == []


def test_what_left_the_list_stays_on_the_page() -> None:
    audit, _ = digits_audit(200, wrong=0.3)
    plan = draw_plan(audit, 5, 5, 20, blind=0.5)
    blind = {item.id for item in plan.items if item.blind}
    few = audit.flagged & (audit.probability_wrong > 0.8)
    moved = replace(audit, flagged=few, proposed=np.where(few, audit.proposed, audit.given), before=audit)
    items = page_data(moved, plan, None)["items"]
    left = {name for k, name in enumerate(audit.ids) if audit.flagged[k] and not few[k]} - blind
    assert left and {item["id"] for item in items if item.get("off")} == left
    assert not any("off" in item for item in page_data(audit, plan, None)["items"])


@chromium
def test_hostile_names_in_the_browser(browser: Browser, tmp_path: Path) -> None:
    audit = hostile_audit(reason=HOSTILE, site=HOSTILE[0])
    folder = write_site(tmp_path / "out", audit, plan=draw_plan(audit, blind=0))
    browser.open(folder.report)
    assert sorted(ids(browser)) == sorted(HOSTILE)
    assert "\u202e" not in browser.text("body") and "\\u{202e}gnp.exe" in browser.text("#cards")
    browser.click("#start")
    browser.press("2", "2")
    browser.press("escape")
    browser.click("#save")
    found = read_verdicts(browser.downloaded(), audit, "ann")
    assert [one.decision for one in found] == ["proposal", "proposal"]
    assert browser.count("script") == 2 and browser.count("u") == 0
    assert browser.logged() == []


@chromium
def test_several_labels_in_the_browser(browser: Browser, tmp_path: Path) -> None:
    audit = multilabel_audit()
    folder = write_site(tmp_path / "out", audit)
    browser.open(folder.report)
    first = audit.row_of[ids(browser)[0]]
    browser.click("#start")
    browser.press("3")
    browser.run("document.querySelectorAll('#others .list button').forEach((b, k) => k === 1 && b.click())")
    browser.run("Array.from(document.querySelectorAll('#others button')).pop().click()")
    browser.press("escape")
    browser.click("#save")
    [one] = read_verdicts(browser.downloaded(), audit, "ann")
    wanted = {*audit.names(audit.given, first)} ^ {audit.classes[1]}
    assert set(one.labels) == wanted and one.id == audit.ids[first]


@chromium
def test_two_thousand_pictures_on_a_phone(tmp_path: Path) -> None:
    audit, _ = digits_audit(PAGE_LIMIT + 200, wrong=0.95)
    folder = write_site(tmp_path / "out", audit, digit_pictures(PAGE_LIMIT + 200), plan=draw_plan(audit, blind=0))
    browser = Browser(tmp_path / "b", (390, 844))
    try:
        browser.open(folder.report)
        assert browser.count(".card") == 60
        assert browser.run("return document.documentElement.scrollWidth") <= 390
        for _ in range(200):
            browser.run("window.scrollTo(0, document.body.scrollHeight)")
            if browser.count(".card") == PAGE_LIMIT:
                break
        assert browser.count(".card") == PAGE_LIMIT
        browser.run("document.querySelectorAll('.card')[1999].click()")
        assert browser.text("#place") == f"{PAGE_LIMIT} of {PAGE_LIMIT}"
        box: dict[str, Any] = browser.run("return document.getElementById('review').getBoundingClientRect().toJSON()")
        assert box["width"] == 390 and box["height"] == 844
        bottom = browser.run("return document.querySelector('.panel-foot').getBoundingClientRect().bottom")
        assert bottom <= 844  # every button can be reached with the thumb
        assert browser.logged() == []
    finally:
        browser.close()


def test_the_stored_page_is_what_render_makes(site: tuple[SiteFolder, SiteAudit]) -> None:
    folder, audit = site
    text = folder.report.read_text("utf-8")
    assert json.dumps(audit.fingerprint()) in text
    assert open_site(folder.path)[1].fingerprint() == audit.fingerprint()
