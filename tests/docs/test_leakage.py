"""The pages on attacks and leakage say what was measured, and what they say of Flower is still so."""

from __future__ import annotations

import json

import pytest


def test_the_attacks_figures_are_those_of_its_result_files() -> None:
    from benchmarks.attacks.page import PAGE, page

    assert PAGE.read_text("utf-8") == page(), "run `python -m benchmarks.attacks.page`"


def test_the_leakage_figures_are_those_of_its_result_files() -> None:
    from benchmarks.leakage.page import PAGE, page

    assert PAGE.read_text("utf-8") == page(), "run `python -m benchmarks.leakage.page`"


def test_every_method_was_looked_at_for_secure_aggregation() -> None:
    from benchmarks.leakage.secure import verdict

    from fedsift.methods._base import methods

    assert [name for name in methods.names() if "not been looked at" in verdict(name)[1]] == []


def test_nothing_honest_was_refused() -> None:
    from benchmarks.attacks.__main__ import HONEST
    from benchmarks.attacks.files import read

    found = read(HONEST)
    assert found
    assert {name: row["refused"] for name, row in found.items() if row["refused"]} == {}


def test_no_honest_site_turns_round_as_an_attacker_does() -> None:
    """But, maybe, of two classes, where nobody is judged."""
    from benchmarks.attacks.files import read
    from benchmarks.attacks.turned import FILE

    from fedsift.runtime.gate.protection import turning_is_attack

    found = read(FILE)
    turned = {key for key, row in found.items() if row["refused"]}
    assert len(found) > 30
    assert all(key.startswith("2 classes, linear") for key in turned)
    assert not turning_is_attack(2, multilabel=False) and turning_is_attack(4, multilabel=True)


def test_protection_changes_no_preset() -> None:
    from benchmarks.attacks.files import read
    from benchmarks.attacks.presets import FILE

    found = read(FILE)
    assert found
    assert {name for name, row in found.items() if not row["equal"] or row["refused on"]} == set()


def test_fuzzed_messages_found_no_fault() -> None:
    from benchmarks.faults.fuzz import FILE

    from fedsift.methods._base import methods

    found = json.loads(FILE.read_text("utf-8"))
    assert found["faults"] == [] and found["executed"] == 0
    assert found["messages"] >= 100_000 and set(found["by_method"]) == set(methods.names())


def test_flower_offers_no_secure_aggregation_for_messages() -> None:
    mods = pytest.importorskip("flwr.clientapp.mod")
    workflow = pytest.importorskip("flwr.server.workflow")
    assert not [name for name in dir(mods) if "secagg" in name.lower()]
    with pytest.raises(TypeError, match="LegacyContext"):
        workflow.SecAggPlusWorkflow(num_shares=3, reconstruction_threshold=2)(None, object())


@pytest.mark.slow
def test_leakage_does_not_grow() -> None:
    """One seed again: no figure is more than a tenth above the page's, and noise takes away what it took."""
    from benchmarks.leakage.__main__ import FILE
    from benchmarks.leakage.measure import measured

    written = json.loads(FILE.read_text("utf-8"))["known"]
    found = measured(1)
    assert found.keys() == written.keys()
    for key, value in found.items():
        assert value <= written[key] + 0.1, key
    assert found["model, clipped, noise 1, member"] < 0.6
