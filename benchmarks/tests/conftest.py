"""The same draws in any order, as in the tests of the program."""

from __future__ import annotations

from tests.conftest import no_worker_stays_behind, the_same_draws_in_any_order

__all__ = ["no_worker_stays_behind", "the_same_draws_in_any_order"]
