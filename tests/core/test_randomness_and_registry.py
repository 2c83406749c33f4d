"""Derived randomness and registries."""

from __future__ import annotations

import hashlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsift.core.errors import ConfigError
from fedsift.core.randomness import derive, numpy_generator, torch_generator
from fedsift.core.registry import Registry
from fedsift.protocol.messages import RequestMoment


def test_seeds_are_the_same_on_every_machine() -> None:
    assert derive(1, "site-00", "train", 3, 0, "train") == derive(1, "site-00", "train", 3, 0, "train")
    digest = hashlib.blake2b(b"int:1\x1fstr:a", digest_size=8).digest()
    assert derive(1, "a") == int.from_bytes(digest, "big") // 2 == 2969518301517151295


@given(
    st.lists(st.text(max_size=5) | st.integers(0, 9), min_size=1, max_size=4),
    st.lists(st.text(max_size=5) | st.integers(0, 9), min_size=1, max_size=4),
)
def test_different_paths_give_different_seeds(one: list[str | int], two: list[str | int]) -> None:
    joined = ["\x1f" in part for part in [*one, *two] if isinstance(part, str)]
    if one != two and not any(joined):
        assert derive(*one) != derive(*two)
    assert 0 <= derive(*one) < 2**63


def test_numbers_and_words_differ() -> None:
    assert derive(1, "2") != derive(1, 2)
    assert derive("ab", "c") != derive("a", "bc")


def test_a_moment_separates_sites_rounds_asks_and_purposes() -> None:
    moment = RequestMoment(5, "train", 2, 0)
    draw = lambda m, who, why: m.torch(who, why).initial_seed()  # noqa: E731
    seeds = {
        draw(moment, "a", "x"),
        draw(moment, "b", "x"),
        draw(moment, "a", "y"),
        draw(RequestMoment(5, "train", 3, 0), "a", "x"),
        draw(RequestMoment(5, "train", 2, 1), "a", "x"),
        draw(RequestMoment(5, "other", 2, 0), "a", "x"),
        draw(RequestMoment(6, "train", 2, 0), "a", "x"),
    }
    assert len(seeds) == 7


def test_generators_do_not_touch_the_global_ones() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    torch.rand(4, generator=torch_generator(1, "x"))
    numpy_generator(1, "x").random(4)
    assert torch.equal(before, torch.get_rng_state())


def test_registry_names_the_nearest() -> None:
    registry: Registry[type] = Registry("method")

    @registry.register("fedavg")
    class A: ...

    assert registry.get("fedavg") is A
    assert registry.name_of(A()) == "fedavg"
    with pytest.raises(ConfigError, match=r"unknown method 'fedagv'. Did you mean 'fedavg'\?"):
        registry.get("fedagv")
    with pytest.raises(ConfigError, match="Known: fedavg"):
        registry.get("zzz")
    with pytest.raises(ConfigError, match="two methods are called 'fedavg'"):
        registry.register("fedavg")(int)
