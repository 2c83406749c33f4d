"""Options of the whole test suite."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Normal tests try the same examples every time: one that fails once in a hundred runs tells nobody what broke it.
# `make test-slow` explores (`-m "slow or hypothesis"`; or HYPOTHESIS_PROFILE=explore).
# No clock has a say in either: neither a deadline nor how fast a busy machine makes examples up.
SLOW = [HealthCheck.too_slow]
settings.register_profile("same", derandomize=True, database=None, deadline=None, suppress_health_check=SLOW)
settings.register_profile("explore", deadline=None, print_blob=True, suppress_health_check=SLOW)


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


@pytest.fixture(scope="session", autouse=True)
def no_worker_stays_behind() -> Iterator[None]:
    """Worker processes serve all modules of this process: what they cost is their start."""
    yield
    if "fedsift.training.processes" in sys.modules:
        sys.modules["fedsift.training.processes"].close_workers()


@pytest.fixture(autouse=True)
def the_same_draws_in_any_order() -> None:
    """Whoever draws from torch's own generator gets the same, whatever ran before in this process."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


LONGEST_FIRST = (
    "contract/test_two_engines",
    "docs/test_contributing",
    "deploy/test_deployment",
    "docs/test_first_hour",
    "contract/",
    "local/test_same_bytes",
    "cli/test_cli",
    "study/test_one_verdict",
)
"""Modules that take long begin early, so that no process is left alone with one at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: next((i for i, part in enumerate(LONGEST_FIRST) if part in item.nodeid), 99))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """`--dist loadscope`, by module and, for the promises that every method keeps, by method.

    What a module's fixtures make (a trained federation, a start of Flower) is then made in one process, once.
    """
    from xdist.scheduler import LoadScopeScheduling

    config.option.loadscopereorder = False

    class ByModuleOrMethod(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            module, _, test = nodeid.partition("::")
            method = test.partition("[")[2] if module.endswith("test_every_method.py") else ""
            return f"{module}[{method}"

    return ByModuleOrMethod(config, log) if config.option.dist == "loadscope" else None
