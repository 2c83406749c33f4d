"""Builds networks: by registered name, by `module:callable`, or from a user's factory; with deterministic initial
weights."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from fedsift.core.errors import ConfigError
from fedsift.core.randomness import derive
from fedsift.core.registry import Registry, address_of, importable
from fedsift.models.network import with_repeatable_dropout

Builder: TypeAlias = Callable[[tuple[int, ...], int], nn.Module]
"""`build(shape of one sample, number of classes) -> network`."""

models: Registry[Builder] = Registry("model", group="fedsift.models")

OWN = "own:"
"""Prefix of the name of a factory that was passed in Python and cannot be imported."""
_own: dict[str, Builder] = {}


@dataclass(frozen=True)
class ModelCard:
    """Facts about a network for choosing one: parameters, size, layers that matter."""

    name: str
    summary: str
    stem: str
    shape: tuple[int, ...]
    n_classes: int
    parameters: int
    buffers: int
    bytes: int
    """Of one message with the whole state: parameters and buffers."""


def build_model(name: str, shape: tuple[int, ...], n_classes: int, seed: int = 0) -> nn.Module:
    """A registered network, or `package.module:callable`, with weights that depend on (name, seed) alone.

    A callable that takes `num_classes` by keyword is called with that; any other with (shape, n_classes).
    """
    build = _builder(name)
    with _own_randomness(derive(seed, "initial weights", drawing_name(name))):
        network = build(tuple(shape), n_classes)
    if not isinstance(network, nn.Module):
        raise ConfigError(f"model '{name}' gave a {type(network).__name__}, not a torch.nn.Module")
    return with_repeatable_dropout(network)


def drawing_name(name: str) -> str:
    """The name from which weights are drawn: the number of a factory that was defined anew must not change them."""
    return name.partition("#")[0] if name.startswith(OWN) else name


def name_of_model(factory: Builder) -> str:
    """The name by which `build_model` finds a factory `(shape, n_classes) -> nn.Module` that was passed as an object.

    An importable one is named by its address. Any other is kept for as long as this process runs, as
    `own:Name`; another object of the same name becomes `own:Name#2`, so that nothing made for the first is reused.
    """
    if not callable(factory):
        raise ConfigError(f"model = {factory!r}: give a name, or a factory that builds a network")
    if isinstance(factory, nn.Module):
        raise ConfigError(
            "model is one network, and every site needs its own: give a factory, lambda shape, classes: MyNet(...)"
        )
    if importable(factory):
        return address_of(factory)
    for name, known in _own.items():
        if known is factory:
            return name
    stem = f"{OWN}{getattr(factory, '__name__', type(factory).__name__)}"
    number = 1 + sum(name.partition("#")[0] == stem for name in _own)
    name = stem if number == 1 else f"{stem}#{number}"
    _own[name] = factory
    return name


def initial_weights(name: str, shape: tuple[int, ...], n_classes: int, seed: int) -> dict[str, Tensor]:
    """The state of a fresh network: the same for the same arguments, whatever was drawn before."""
    state: dict[str, Tensor] = build_model(name, shape, n_classes, seed).state_dict()
    return {key: value.detach().clone() for key, value in state.items()}


def buffers_of(module: nn.Module) -> set[str]:
    """Names in the module's state that are not parameters (batch-norm statistics and the like)."""
    parameters = {key for key, _ in module.named_parameters(remove_duplicate=False)}
    return set(module.state_dict()) - parameters


def describe(name: str, shape: tuple[int, ...] | None = None, n_classes: int = 10) -> ModelCard:
    """Size and stem of a network; without a shape, for the images that its stem is made for."""
    if shape is None:
        shape = (3, 224, 224) if name.endswith("-imagenet") else (3, 32, 32)
    network = build_model(name, shape, n_classes, seed=0)
    state: dict[str, Tensor] = network.state_dict()
    buffers = buffers_of(network)
    builder = _builder(name)
    return ModelCard(
        name=name,
        summary=(inspect.getdoc(builder) or "").partition("\n")[0],
        stem=str(getattr(network, "stem", "unknown")),
        shape=tuple(shape),
        n_classes=n_classes,
        parameters=sum(value.numel() for key, value in state.items() if key not in buffers),
        buffers=sum(state[key].numel() for key in buffers),
        bytes=sum(value.numel() * value.element_size() for value in state.values()),
    )


@contextmanager
def _own_randomness(seed: int) -> Iterator[None]:
    """Layers draw from torch's global CPU generator: lend them one, and put the caller's state back."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def _builder(name: str) -> Builder:
    if name.startswith("features:"):
        # the federation trains a head; the sites embed their samples beforehand
        from fedsift.models.head import head_of  # here, for it registers its own network with this module

        return head_of(name)
    if name.startswith(OWN):
        if name not in _own:
            raise ConfigError(
                f"model '{name}' was a factory in another Python session: pass it again, model=..., "
                "or put it into a module and write package.module:callable"
            )
        return _adapted(_own[name])
    return _adapted(models.get(name))


def check_model(name: str) -> None:
    """Refuse a name that no network has; what is written as an address is not imported yet."""
    if ":" not in name:
        models.get(name)


def _adapted(found: Callable[..., Any]) -> Builder:
    """A callable that wants `num_classes` by keyword, as torchvision's do, as a builder."""
    if not _takes_num_classes(found):
        return found

    def build(shape: tuple[int, ...], n_classes: int) -> nn.Module:
        network: nn.Module = found(num_classes=n_classes)
        return network

    build.__doc__ = inspect.getdoc(found)
    return build


def _takes_num_classes(builder: Callable[..., Any]) -> bool:
    """By name, or through `**options` of a callable that cannot take (shape, n_classes) by position."""
    try:
        parameters = inspect.signature(builder).parameters
    except (TypeError, ValueError):
        return False
    if "num_classes" in parameters:
        return True
    positional = [p for p in parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    return open_ended and len(positional) < 2
