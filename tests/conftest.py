"""Options of the whole test suite."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

# Normal tests try the same examples every time: one that fails once in a hundred runs tells nobody what broke it.
# `make test-slow` explores (`-m "slow or hypothesis"`; or HYPOTHESIS_PROFILE=explore).
settings.register_profile("same", derandomize=True, database=None, deadline=None)
settings.register_profile("explore", deadline=None, print_blob=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--golden",
        metavar="DIR",
        default=None,
        help="folder of golden vectors for tests/golden (default: the copies in tests/golden/vectors)",
    )


def pytest_configure(config: pytest.Config) -> None:
    exploring = str(config.getoption("markexpr", "")).startswith("slow")
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("explore" if exploring else "same"))
