"""Which networks a message may name: registered ones, within bounds, and what a person at this side wrote."""

from __future__ import annotations

import pytest

from fedsift.core.errors import ConfigError
from fedsift.models.head import parse_features
from fedsift.training.features import unknown_network

LITE = "features:efficientnet-lite0"


@pytest.mark.parametrize("name", ["", "mlp", "cnn", LITE, f"{LITE}@224", f"{LITE}@16", f"{LITE}@512+8192"])
def test_registered_networks_may_come_in_a_message(name: str) -> None:
    assert unknown_network(name) is None


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("os:abort", "'os:abort' is an address"),
        ("own:Net", "'own:Net' is an address"),
        ("fedsift.__main__:main", "an address"),
        ("features:os:abort", "extractor 'os:abort' is not registered here"),
        ("features:no-such", "extractor 'no-such' is not registered here"),
        ("no-such-network", "'no-such-network' is not registered here"),
        ("n" * 201, "has 201 characters"),
        (f"{LITE}@513", "pictures of side 513, a message may ask for 16 to 512"),
        (f"{LITE}@15", "pictures of side 15, a message may ask for 16 to 512"),
        (f"{LITE}@-64", "is no picture size"),
        (f"{LITE}@64.0", "is no picture size"),
        (f"{LITE}@64@65", "is no picture size"),
        (f"{LITE}+8193", "8193 hidden units, 8192 is the most"),
        (f"{LITE}@" + "9" * 10, "is no picture size"),
        (f"{LITE}+²", "is no number of hidden units"),
        ("m\x1b[2J:n", "'m?[2J:n' is an address"),
    ],
)
def test_anything_else_is_refused_and_named(name: str, word: str) -> None:
    reason = unknown_network(name)
    assert reason is not None and reason.isprintable()
    assert word in reason


@pytest.mark.parametrize("name", ["our_nets.small:Small", "features:our_nets.eyes:look", f"{LITE}@2048"])
def test_what_a_person_at_this_side_wrote_is_taken_by_its_exact_name(name: str) -> None:
    assert unknown_network(name, (name,)) is None
    assert unknown_network(f"{name}2", (name,)) is not None


@pytest.mark.parametrize("size", ["@²", "+²", "@" + "1" * 5000, "+" + "1" * 5000])
def test_digits_that_are_no_number_are_a_mistake_in_the_name(size: str) -> None:
    with pytest.raises(ConfigError, match="write e.g."):
        parse_features(f"{LITE}{size}")
