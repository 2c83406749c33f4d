"""Families: bases below an entry, members of a template, and what the scenarios make of them."""

from __future__ import annotations

import tomllib

import pytest

from fedsift.core.errors import ConfigError
from fedsift.study.families import filled, members_of, merged, with_bases
from fedsift.study.scenarios import preset_names, preset_summary, preset_table, preset_text

TABLES = ("partition", "noise")


def test_another_name_takes_the_place_of_the_whole_table() -> None:
    below = {"method": {"name": "fedcorr", "beta": 5.0}, "train": {"lr": 0.1, "epochs": 2}}
    assert merged(below, {"method": {"beta": 0.0}})["method"] == {"name": "fedcorr", "beta": 0.0}
    assert merged(below, {"method": {"name": "fedavg"}})["method"] == {"name": "fedavg"}
    assert merged(below, {"train": {"lr": 0.2}})["train"] == {"lr": 0.2, "epochs": 2}
    assert merged({"partition": {"sites": 5}}, {"partition": {"name": "iid"}})["partition"] == {
        "sites": 5,
        "name": "iid",
    }


def test_an_entry_lies_over_its_bases_and_theirs() -> None:
    bases = {"all": {"train": {"lr": 0.1, "epochs": 2}}, "small": {"like": "all", "train": {"epochs": 1}}}
    assert with_bases({"like": "small", "train": {"lr": 0.5}}, bases) == {"train": {"lr": 0.5, "epochs": 1}}
    assert with_bases({"like": ["small", "all"]}, bases) == {"train": {"lr": 0.1, "epochs": 2}}
    with pytest.raises(ConfigError, match="like = 'smal': no such base. Did you mean 'small'"):
        with_bases({"like": "smal"}, bases)


def test_members_are_every_combination_with_settings_of_their_own() -> None:
    entry = {
        "members": [{"rho": 0.0, "noise": {"name": "clean"}}, {"rho": [0.4, 0.6]}],
        "noise": {"name": "fedcorr", "rho": "{rho}"},
    }
    assert dict(members_of("iid-{rho}", entry, TABLES)) == {
        "iid-0.0": {"noise": {"name": "clean"}},
        "iid-0.4": {"noise": {"name": "fedcorr", "rho": 0.4}},
        "iid-0.6": {"noise": {"name": "fedcorr", "rho": 0.6}},
    }
    assert dict(members_of("{as it is}", {"what": "{x}"}, TABLES)) == {"{as it is}": {"what": "{x}"}}


def test_a_parameter_alone_keeps_its_type() -> None:
    assert filled({"{n}": ["{alpha}", "({alpha:g})", 3]}, {"alpha": 10.0, "n": "a"}) == {"a": [10.0, "(10)", 3]}


def test_a_family_s_members_have_its_name_its_words_and_its_sizes() -> None:
    for size, sites in (("", 100), ("-small", 20), ("-lenet5", 100), ("-vgg11", 100)):
        assert preset_table(f"fedcorr/cifar10-iid-0.4-0.5{size}")["partition"] == {"name": "iid", "sites": sites}
    assert "(rho, tau) = (0.4, 0.5)" in preset_summary("fedcorr/cifar10-iid-0.4-0.5")
    assert preset_table("fedcorr/cifar10-noniid-0.7-10")["partition"]["alpha"] == 10.0
    assert preset_table("everyone/cifar10-iid")["train"] == preset_table("fedcorr/cifar10-iid-0.4-0.5")["train"]


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_is_a_file_to_read_and_change(name: str) -> None:
    first, *rest = preset_text(name).splitlines()
    assert first == f"# {preset_summary(name)}"
    assert {"name": name, **tomllib.loads("\n".join(rest))} == preset_table(name)
    assert "{" not in first
    assert [line for line in rest if line.startswith("name")], "a table's name comes first"
