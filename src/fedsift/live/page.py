"""The HTML of the live pages; their content comes over the event stream."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from fedsift.core.text import visible
from fedsift.core.version import __version__
from fedsift.drawing import page_style
from fedsift.drawing.svg import Markup, document, join, tag
from fedsift.runs.folder import RunFolder


def runs_page(place: str, nonce: str) -> str:
    body = [
        _bar(None),
        tag(
            "main",
            tag("h1", "Runs", id="headline"),
            tag("p", f"in {visible(place)}", class_="eyebrow"),
            tag("div", id="runs", class_="runs-list"),
            tag("p", "Nothing has run here yet.", id="none", class_="note", hidden=""),
            id="main",
        ),
        _footer(),
    ]
    return _document("Runs", join(body), nonce, "runs.js")


def run_page(folder: RunFolder, nonce: str, *, alone: bool) -> str:
    name = visible(folder.id)
    body = [
        _bar(None if alone else "/", name, buttons=True),
        tag(
            "main",
            tag(
                "div",
                tag("p", id="where", class_="eyebrow"),
                tag("h1", "Reading the run …", id="headline"),
                tag("p", id="sub", class_="lead"),
                _progress(),
                tag("ol", id="stages", class_="stages", aria_label="Stages"),
                tag("dl", id="tiles", class_="tiles"),
                class_="top",
            ),
            _section("findings", "Findings", tag("div", id="found"), tag("dl", id="own", class_="own")),
            _section("curves", "Curves", tag("div", id="plots", class_="columns")),
            _section("sites", "Sites", _lanes()),
            _section("log", "Log", tag("ol", id="lines", class_="log", tabindex="0", aria_label="Log")),
            id="main",
        ),
        Markup('<div id="report" hidden></div>'),
        _footer(),
        tag("div", id="tip", role="status", hidden=""),
    ]
    return _document(name, join(body), nonce, "draw.js", "run.js")


def site_page(name: str, nonce: str) -> str:
    shown = visible(name)
    body = [
        _bar(None, f"site {shown}"),
        tag(
            "main",
            tag("p", "Seen on this machine alone", class_="eyebrow"),
            tag("h1", "Reading what left this site …", id="headline"),
            tag("dl", id="tiles", class_="tiles"),
            _section(
                "lane",
                "Answers of this site",
                _legend(OF_A_SITE),
                Markup('<canvas id="strip" class="strip"></canvas>'),
            ),
            _section("audit", "Audit of this site’s labels", tag("div", id="audited")),
            _section("egress", "What left this site", tag("div", id="lines", class_="scroll tall", tabindex="0")),
            id="main",
        ),
        _footer(),
    ]
    return _document(f"site {shown}", join(body), nonce, "draw.js", "site.js")


def message_page(status: int, words: str, nonce: str) -> str:
    form = ""
    if status == 401:
        form = tag(
            "form",
            tag("label", "Token ", Markup('<input name="token" type="password" autocomplete="off">')),
            tag("button", "Open"),
            method="get",
            action="/",
            class_="token",
        )
    body = [
        _bar(None if status == 401 else "/"),
        tag("main", tag("h1", f"{words[:1].upper()}{words[1:]}"), form, id="main"),
    ]
    return _document(str(status), join(body), nonce)


def _bar(back: str | None, name: str = "", *, buttons: bool = False) -> Markup:
    parts: list[Any] = [Markup('<a class="skip" href="#main">Skip to the page</a>'), tag("b", "fedsift")]
    if back:
        parts.append(tag("a", "All runs", href=back))
    if name:
        parts.append(tag("span", name, class_="run-name", title=name))
    parts.append(tag("span", "connecting", id="state", class_="state", role="status"))
    if buttons:
        parts += [
            tag("button", "Stop", id="stop", type="button", hidden=""),
            tag("button", "Resume", id="resume", type="button", hidden=""),
        ]
    said = tag("p", id="said", class_="alert", role="alert", hidden="") if buttons else ""
    return join([tag("header", *parts, class_="bar"), said])


def _progress() -> Markup:
    """For those who hear the page: to the eye the stages say it."""
    return tag(
        "div",
        tag("div", id="fill"),
        id="progress",
        class_="progress",
        role="progressbar",
        aria_label="Rounds",
        aria_valuemin=0,
        aria_valuemax=0,
        aria_valuenow=0,
    )


def _section(name: str, title: str, *parts: Any) -> Markup:
    return tag("section", tag("h2", title), *parts, id=name)


def _lanes() -> Markup:
    heads = ("site", "now", "rounds", "last answer", "set aside or absent")
    return join(
        [
            tag(
                "div",
                _legend(),
                tag(
                    "label",
                    Markup('<input type="checkbox" id="attention"> '),
                    "only sites that need a look",
                    class_="only",
                ),
                class_="above",
            ),
            tag(
                "div",
                tag(
                    "table",
                    tag("thead", tag("tr", *(tag("th", head, scope="col") for head in heads))),
                    tag("tbody", id="lanes"),
                    class_="lanes",
                ),
                class_="scroll tall",
                tabindex="0",
                aria_label="Sites",
            ),
        ]
    )


OF_ALL = (("answered", "answered"), ("working", "working"), ("refused", "set aside"), ("absent", "absent"))
OF_A_SITE = (("answered", "answered"), ("refused", "refused by this site"))


def _legend(words: Sequence[tuple[str, str]] = OF_ALL) -> Markup:
    return tag(
        "p",
        *(tag("span", tag("i", class_=f"key {kind}"), word) for kind, word in words),
        class_="legend keys",
    )


def _footer() -> Markup:
    return tag("footer", f"fedsift {__version__} · this page loads nothing from any network")


def _document(title: str, body: Markup, nonce: str, *scripts: str) -> str:
    style = page_style() + _asset("live.css")
    code = "\n".join(_asset(name) for name in scripts)
    script = Markup(f'<script nonce="{nonce}">{code}</script>' if scripts else "")
    icon = Markup('<link rel="icon" href="data:,">')
    return document(title, join([body, script]), style, more=icon, nonce=nonce)


def _asset(name: str) -> str:
    return files("fedsift.live").joinpath(name).read_text("utf-8")
