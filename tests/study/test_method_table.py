"""The `[method]` table: what a method completes by itself, its forms, methods inside it, old keys; own recipes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsift.core.errors import ConfigError
from fedsift.methods._base import methods
from fedsift.methods.fedcorr import FedCorr
from fedsift.methods.feddyn import FedDyn
from fedsift.methods.fednoro import FedNoRo
from fedsift.protocol.federation import FederationFacts
from fedsift.study.running import new_run, run
from fedsift.study.study import Study
from fedsift.training.recipe import Recipe


def fedcorr(**method: Any) -> FedCorr:
    study = Study.from_table({"partition": {"name": "natural"}, "method": {"name": "fedcorr", **method}})
    assert Study.from_table(study.to_table()) == study
    assert isinstance(study.method, FedCorr)
    return study.method


# What follows from the federation


def test_own_labels_are_tested_for_noise_first() -> None:
    """No [noise] table: the labels are somebody's own. Spoiled ones are judged as the paper does."""
    own, corrupted = {"method": {"name": "fednoro"}}, {"noise": {"name": "fedcorr", "rho": 0.4, "tau": 0.5}}
    assert Study.from_table(own).method == FedNoRo(detection="tested", warm_up=10)
    assert getattr(Study.from_table({**own, **corrupted}).method, "detection") == "paper"  # noqa: B009
    said = {"method": {"name": "fednoro", "detection": "paper"}}
    assert getattr(Study.from_table(said).method, "detection") == "paper"  # noqa: B009


@pytest.mark.parametrize(
    ("sites", "gamma", "tune", "usual"), [(5, 1.0, 50, 45), (20, 0.5, 100, 90), (100, 0.1, 500, 450)]
)
def test_fedcorr_trains_as_often_at_each_site_in_any_federation(
    sites: int, gamma: float, tune: int, usual: int
) -> None:
    """T_2 gamma = 50 and T_3 gamma = 45 as in the paper, with ten sites a round or all of fewer."""
    done = FedCorr().completed(FederationFacts(sites=sites))
    assert (done.visit_fraction, done.fraction) == (1 / sites, gamma)
    assert (done.fine_tuning_rounds, done.usual_rounds) == (tune, usual)
    assert [stage.rounds for stage in done.stages()] == [5 * sites, tune, 1, usual]
    assert done.completed(FederationFacts(sites=3)) == done


def test_what_a_person_says_is_kept() -> None:
    said = FedCorr(visit_fraction=0.5, fraction=0.2, fine_tuning_rounds=7, usual_rounds=8, detection="paper")
    assert said.completed(FederationFacts(sites=5, own_labels=True)) == said
    some = FedCorr(fraction=0.5).completed(FederationFacts(sites=5))
    assert (some.fraction, some.fine_tuning_rounds, some.usual_rounds) == (0.5, 100, 90)


def test_a_run_writes_down_what_its_natural_sites_decide(tmp_path: Path) -> None:
    """Four sites of a column: known when the data are read, and in the study from then on."""
    rng = np.random.default_rng(1)
    labels = np.arange(48) % 3
    images = (rng.integers(0, 60, (48, 4, 4)) + 60 * labels[:, None, None]).astype(np.uint8)
    file = tmp_path / "own.npz"
    np.savez(file, images=images, labels=labels, site=np.repeat(list("abcd"), 12))
    table = {
        "data": {"name": "npz", "path": str(file)},
        "partition": {"name": "natural"},
        "model": {"name": "mlp"},
        "method": {"name": "fedcorr", "iterations": 1, "fine_tuning_rounds": 1, "usual_rounds": 1},
        "engine": {"threads": 1},
    }
    study = Study.from_table(table)
    folder = new_run(study, tmp_path)
    summary = run(study, folder)
    written = Study.from_file(folder.study_file).method
    assert isinstance(written, FedCorr)
    assert (written.visit_fraction, written.fraction, written.detection) == (0.25, 1.0, "tested")
    assert summary["rounds"] == 4 + 1 + 1 + 1
    assert all(row["participants"] for row in folder.rounds() if row["stage"] != "relabel the rest")
    assert any("coarse LID" in note for note in summary["notes"])


# Where a method fits


@pytest.mark.parametrize(
    ("name", "facts", "words", "refuses"),
    [
        (
            "fedmlp",
            FederationFacts(multilabel=False),
            "it is for multilabel labels; these are multiclass",
            True,
        ),
        ("fedavg", FederationFacts(networks=("cnn", "mlp")), "same network at every site", True),
        ("fednoro", FederationFacts(sites=2), "2 sites are too few", True),
        ("fednoro", FederationFacts(sites=3), "3 sites are too few", False),
        ("fedcorr", FederationFacts(sites=8, classes=2), "two classes leave its measure blind", False),
        ("fedcorr", FederationFacts(samples=(100, 20)), "20 samples or fewer", False),
        ("fedavg-pl", FederationFacts(annotates_all=True), "annotate some classes only", False),
        ("rhfl", FederationFacts(), "public set", False),
        ("fedavg", FederationFacts(sites=1), "one site alone", False),
    ],
)
def test_methods_say_where_they_do_not_fit(name: str, facts: FederationFacts, words: str, refuses: bool) -> None:
    found = methods.get(name)().fits(facts)
    assert found is not None
    assert words in found.reason
    assert found.refuses is refuses


def test_methods_that_fit_say_nothing() -> None:
    facts = FederationFacts(sites=10, samples=(50,) * 10, classes=3, multilabel=False, public=9, networks=("cnn",))
    silent = [name for name in methods if methods.get(name)().fits(facts) is None]
    assert {"fedavg", "fednoro", "fedcorr", "rhfl", "feddpcont"} <= set(silent)


# Forms


def test_a_form_stands_for_its_settings_and_other_keys_come_first() -> None:
    printed = fedcorr(form="printed", prox_power=1)
    assert (printed.sample_loss, printed.rank_by, printed.relabel_after) == ("ce", "global", "above kappa")
    assert printed.prox_power == 1
    assert fedcorr(form="released").lid_form == "official"
    with pytest.raises(ConfigError, match=r"'method.form' = 'print'.*'printed'"):
        fedcorr(form="print")
    with pytest.raises(ConfigError, match="only one form"):
        Study.from_table({"method": {"name": "fedavg", "form": "printed"}})


@pytest.mark.parametrize("name", methods.names())
def test_every_form_can_be_built(name: str) -> None:
    cls = methods.get(name)
    for settings in cls.forms.values():
        assert cls(**settings) != cls()


# A method inside another one


def test_the_last_stage_is_any_methods_table() -> None:
    made = fedcorr(usual={"name": "feddyn", "alpha": 0.2}, usual_rounds=9, fraction=0.5, mixup_stages="first")
    last = made.last_method()
    assert isinstance(last, FedDyn)
    assert (last.alpha, last.rounds, last.fraction, last.local) == (0.2, 9, 0.5, made.local)


def test_the_last_stage_may_have_a_recipe_of_its_own() -> None:
    study = Study.from_table(
        {
            "train": {"epochs": 3, "lr": 0.5},
            "method": {"name": "fedcorr", "mixup": 0.0, "usual": {"name": "fedavg", "train": {"lr": 0.1}}},
        }
    )
    assert isinstance(study.method, FedCorr)
    assert study.method.local == Recipe(epochs=3, lr=0.5)
    assert study.method.last_method().local == Recipe(epochs=3, lr=0.1)
    assert Study.from_table(study.to_table()) == study


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (
            {"usual": {"name": "feddyn", "rounds": 3}},
            "'method.usual.rounds': the method around it decides that",
        ),
        ({"usual": {"name": "feddyne"}}, "unknown method 'feddyne'"),
        ({"usual": {"name": "feddyn", "alfa": 1}}, "unknown key 'method.usual.alfa'"),
        ({"usual": {"name": "fedavg", "train": {"rate": 1}}}, "unknown key 'method.usual.train.rate'"),
        ({"usual": "feddyn"}, "'method.usual' is no longer a key: write a table such as"),
        ({"usual_lr": 0.1}, r"write usual = \{name = ..., train = \{lr = ...\}\}"),
        ({"feddyn_alpha": 0.1}, "alpha = ..."),
        ({"poc_pool": 3}, "pool = ..."),
    ],
)
def test_wrong_tables_and_old_keys_name_the_way_out(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        fedcorr(**wrong)


# Recipes


def test_a_method_brings_its_own_recipe_and_a_train_table_takes_its_place() -> None:
    alone = Study.from_table({"method": {"name": "fednoro"}})
    assert alone.train == FedNoRo(rounds=5).local == alone.method.local  # type: ignore[attr-defined]
    assert alone.train.optimiser == "adam"
    assert [stage.rounds for stage in FedNoRo(rounds=5).stages()] == [
        2,
        1,
        3,
    ]  # a short run warms up for half
    given = Study.from_table({"method": {"name": "fednoro"}, "train": {"lr": 0.05}})
    assert given.train == Recipe(lr=0.05)  # the whole recipe: an own learning rate never meets Adam unasked
