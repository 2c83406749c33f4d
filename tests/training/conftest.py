"""What the tests of training share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fedsift.training import cohort, native


@pytest.fixture(params=["native", "torch"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Every test twice: with the native kernels, and as on a machine without a compiler."""
    if request.param == "torch":
        monkeypatch.setattr(native, "library", lambda: None)
    elif native.library() is None:
        pytest.skip(f"no native kernels here: {native.why_not()}")
    cohort.stacked_network.cache_clear()
    yield request.param
    cohort.stacked_network.cache_clear()
