"""Drawing without a library: escaped markup, SVG, and the style that all pages share."""

from __future__ import annotations

from importlib.resources import files


def page_style() -> str:
    """The style sheet that every page starts from: colours for light and dark, type, tiles, tables, figures."""
    return files("fedsift.drawing").joinpath("style.css").read_text("utf-8")


def saving_script() -> str:
    """The script that lets a reader save every figure, as SVG and its numbers as CSV."""
    return files("fedsift.drawing").joinpath("save.js").read_text("utf-8")
