"""Options of the whole test suite."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--golden",
        metavar="DIR",
        default=None,
        help="folder of golden vectors for tests/golden (default: the copies in tests/golden/vectors)",
    )
