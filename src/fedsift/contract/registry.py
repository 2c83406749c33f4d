"""Registries by decorator: a new method, model, noise model or partition is one new file."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from fedsift.contract.errors import ConfigError

T = TypeVar("T")


def nearest(name: str, known: list[str]) -> str:
    """A ' Did you mean ...?' sentence for an unknown name, or the list of known ones."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if close:
        return f" Did you mean '{close[0]}'?"
    return f" Known: {', '.join(sorted(known))}."


class Registry(Generic[T]):
    """Names to things of one kind, filled by a decorator.

    >>> methods: Registry[type] = Registry("method")
    >>> @methods.register("fedavg")
    ... class FedAvg: ...
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        def keep(entry: T) -> T:
            if name in self._entries and self._entries[name] is not entry:
                raise ConfigError(f"two {self.kind}s are called '{name}'")
            self._entries[name] = entry
            return entry

        return keep

    def get(self, name: str) -> T:
        if name not in self._entries:
            raise ConfigError(f"unknown {self.kind} '{name}'.{nearest(name, list(self._entries))}")
        return self._entries[name]

    def name_of(self, entry: object) -> str:
        for name, known in self._entries.items():
            if known is entry or known is type(entry):
                return name
        raise ConfigError(f"{entry!r} is not a registered {self.kind}")

    def names(self) -> list[str]:
        return sorted(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())
