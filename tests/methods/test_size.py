"""A method reads as its paper's algorithm, so its files stay short."""

from __future__ import annotations

from pathlib import Path

import fedsift

SOURCE = Path(fedsift.__file__).parent


def lines(file: Path) -> int:
    return len(file.read_text("utf-8").splitlines())


def test_no_method_file_is_long() -> None:
    assert {f.name: lines(f) for f in (SOURCE / "methods").glob("*.py") if lines(f) > 250} == {}


def test_no_file_is_long() -> None:
    assert {str(f.relative_to(SOURCE)): lines(f) for f in SOURCE.rglob("*.py") if lines(f) > 400} == {}
