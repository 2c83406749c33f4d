"""One home for a formula: what the golden vectors test is what the product runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from callers import Module, Place, Source

HERE = Path(__file__).parent
SOURCE = Source(HERE.parents[1] / "src" / "fedsift")

WAITING: dict[str, str] = {}
"""Formulas whose method does not exist yet; a name leaves this table when the product calls it."""


def formulas_tested() -> set[Place]:
    """Functions that the adapters call."""
    named: set[Place] = set()
    for path in sorted(HERE.glob("adapters_*.py")):
        adapter = Module.read(path.stem, path)
        named |= {SOURCE.home(place) for place in adapter.referred(adapter.tree)}
    return named & set(SOURCE.functions())


def test_the_product_calls_every_tested_formula() -> None:
    idle = {name for _, name in formulas_tested() & SOURCE.unreached()} - set(WAITING)
    assert not idle, f"tested but never called by the product: {sorted(idle)}"


def test_every_loss_and_aggregator_is_called_or_awaited() -> None:
    """Also those that no vector tests: a function without a caller is dead."""
    packages = ("fedsift.formulas.aggregation", "fedsift.formulas.losses")
    idle = {name for module, name in SOURCE.unreached() if module.startswith(packages)} - set(WAITING)
    assert not idle, f"never called: {sorted(idle)}"


def test_nothing_waits_that_is_called() -> None:
    done = set(WAITING) - {name for _, name in SOURCE.unreached()}
    assert not done, f"the product calls these now, so they need not wait any longer: {sorted(done)}"


def test_the_walk_sees_most_of_the_adapters() -> None:
    assert len(formulas_tested()) > 60


@pytest.mark.parametrize(
    ("user", "idle"),
    [
        ("", {"formula", "helper"}),
        ("from fedsift.formulas import formula\nformula()", set()),
        ("from fedsift import formulas\nformulas.formula()", set()),
        ("from fedsift.formulas.maths import helper as other\nother()", {"formula"}),
        ("from fedsift.formulas import formula\n", {"formula", "helper"}),  # an import alone is no call
        ("def formula(): ...\nformula()", {"formula", "helper"}),  # another function of that name
        ("from fedsift.formulas.other import lost\n", {"formula", "helper"}),
    ],
)
def test_what_counts_as_a_call(user: str, idle: set[str], tmp_path: Path) -> None:
    package = tmp_path / "fedsift" / "formulas"
    package.mkdir(parents=True)
    (tmp_path / "fedsift" / "__init__.py").write_text("")
    (package / "__init__.py").write_text("from fedsift.formulas.maths import formula\n__all__ = ['formula']\n")
    (package / "maths.py").write_text("def helper(): ...\n\n\ndef formula(): return helper()\n")
    (package / "other.py").write_text("from fedsift.formulas.maths import formula\n\n\ndef lost(): return formula()\n")
    (tmp_path / "fedsift" / "use.py").write_text(user)
    found = {name for _, name in Source(tmp_path / "fedsift").unreached()}
    assert found - {"lost"} == idle
