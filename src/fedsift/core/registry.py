"""Registries, which map names to methods, datasets and other extensions, with suggestions for misspelt names.

A thing gets into a registry in one of three ways, and needs no other line anywhere:

- a new file in the registry's package, with the decorator;
- an entry point of another installed package, in the registry's group (`fedsift.methods`, ...);
- `package.module:Name` wherever a name is written.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fedsift.core.errors import ConfigError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")
NEAR = 0.5
"""From this similarity on a name is taken for another one, mistyped."""


def nearest(name: str, known: list[str]) -> str:
    """A ' Did you mean ...?' sentence for an unknown name, or the list of known ones."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=NEAR)
    if close:
        return f" Did you mean '{close[0]}'?"
    return f" Known: {', '.join(sorted(known))}."


def is_near(name: str, known: str) -> bool:
    """Whether a user who wrote `name` probably meant `known`."""
    return difflib.SequenceMatcher(None, name, known).ratio() >= NEAR


def import_modules(package: str, path: Iterable[str]) -> None:
    """Import every module of a package, so that what they register is there: `import_modules(__name__, __path__)`."""
    for module in pkgutil.iter_modules(path):
        importlib.import_module(f"{package}.{module.name}")


class Registry(Generic[T]):
    """Names to things of one kind.

    >>> methods: Registry[type] = Registry("method")
    >>> @methods.register("fedavg")
    ... class FedAvg: ...

    base: the class from which everything here derives (None: anything that can be called).
    group: entry points of other packages; their code is imported when their name is asked for.
    adapt: makes an entry of what an entry point names, for registries whose plug-ins may have another form.
    """

    def __init__(
        self,
        kind: str,
        *,
        base: type | None = None,
        group: str = "",
        adapt: Callable[[EntryPoint], T] | None = None,
    ) -> None:
        self.kind, self.base, self.group, self.adapt = kind, base, group, adapt
        self._entries: dict[str, T] = {}
        self._plugins: dict[str, EntryPoint] | None = None

    def register(self, name: str) -> Callable[[T], T]:
        def keep(entry: T) -> T:
            if name in self._entries and self._entries[name] is not entry:
                raise ConfigError(f"two {self.kind}s are called '{name}'")
            self._entries[name] = entry
            return entry

        return keep

    def get(self, name: str) -> T:
        """The entry of this name, of this entry point, or at this `package.module:Name`."""
        if name in self._entries:
            return self._entries[name]
        if ":" in name:
            return self._checked(imported(self.kind, name), name)
        if name in self.plugins():
            entry = self._from_plugin(self.plugins()[name])
            self._entries[name] = entry
            return entry
        known = [*self._entries, *self.plugins()]
        raise ConfigError(f"unknown {self.kind} '{name}'.{nearest(name, known)}")

    def name_of(self, entry: object) -> str:
        """The name under which a study finds this entry, or an instance of it, again.

        What is not registered is named by where it is defined; `get` says so if that cannot be imported.
        """
        for name, known in self._entries.items():
            if known is entry or known is type(entry):
                return name
        thing = entry if isinstance(entry, type) or self.base is None else type(entry)
        if self.base is not None and not (isinstance(thing, type) and issubclass(thing, self.base)):
            raise ConfigError(f"{entry!r} is no {self.kind}: it does not derive from {self.base.__name__}")
        return address_of(thing)

    def names(self) -> list[str]:
        return sorted({*self._entries, *self.plugins()})

    def plugins(self) -> dict[str, EntryPoint]:
        """Entry points of other installed packages by name; a name that fedsift has itself stays fedsift's."""
        if self._plugins is None:
            self._plugins = {}
            if self.group:
                from importlib.metadata import (
                    entry_points,
                )  # slow to import, and most registries are not asked

                self._plugins = {entry.name: entry for entry in entry_points(group=self.group)}
        return {name: entry for name, entry in self._plugins.items() if name not in self._entries}

    def load_own(self) -> None:
        """Import fedsift's entries that are found by an entry point, so that all classes in their messages are known.

        Other packages' entry points are not imported: a site names those that it wants.
        """
        for entry in self.plugins().values():
            if entry.value.startswith("fedsift."):
                entry.load()

    def _from_plugin(self, entry: EntryPoint) -> T:
        if self.adapt is not None:
            return self.adapt(entry)
        try:
            found = entry.load()
        except Exception as error:  # whatever a foreign package raises when it is imported
            raise ConfigError(
                f"{self.kind} '{entry.name}' is a plug-in, '{entry.value}', that cannot be imported: {error}"
            ) from error
        return self._checked(found, entry.value)

    def _checked(self, found: Any, where: str) -> T:
        if self.base is None:
            if callable(found):
                return found  # type: ignore[no-any-return]
            raise ConfigError(f"{self.kind} '{where}' is a {type(found).__name__}, not something to call")
        if isinstance(found, type) and issubclass(found, self.base):
            return found  # type: ignore[return-value]
        what = f"the class {found.__name__}" if isinstance(found, type) else f"a {type(found).__name__}"
        raise ConfigError(
            f"{self.kind} '{where}' is {what}, which does not derive from {self.base.__module__}.{self.base.__name__}"
        )

    def __contains__(self, name: object) -> bool:
        return name in self._entries or name in self.plugins()

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())


def imported(kind: str, address: str) -> Any:
    """What stands at `package.module:Name`; an error says which part of that is wrong."""
    module_name, _, attribute = address.partition(":")
    if not module_name or not attribute:
        raise ConfigError(f"{kind} '{address}': write it as package.module:Name")
    if "<" in attribute or (module_name == "__main__" and not _reaches(module_name, attribute)):
        raise ConfigError(
            f"{kind} '{address}' was defined in a script, a notebook or a function, where nothing can import it: "
            "pass the object itself in Python, or move it into a module of its own"
        )
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:  # a module may raise anything while it is imported
        missing = isinstance(error, ModuleNotFoundError) and str(error.name) in (
            module_name,
            *_parents(module_name),
        )
        fix = ": install it, or name its folder in PYTHONPATH" if missing else ""
        raise ConfigError(f"{kind} '{address}': module '{module_name}' cannot be imported ({error}){fix}") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            public = [name for name in vars(found) if not name.startswith("_")] if hasattr(found, "__dict__") else []
            raise ConfigError(f"{kind} '{address}': '{module_name}' has no '{attribute}'.{nearest(part, public)}")
        found = getattr(found, part)
    return found


def address_of(thing: Any) -> str:
    """`package.module:Name` of a class or a function, whether or not it can be imported from there."""
    return f"{thing.__module__}:{getattr(thing, '__qualname__', type(thing).__qualname__)}"


def importable(thing: Any) -> bool:
    """Whether another process finds this very class or function by its address."""
    module, _, attribute = address_of(thing).partition(":")
    return module != "__main__" and "<" not in attribute and _reaches(module, attribute, thing)


def _reaches(module: str, attribute: str, thing: Any = None) -> bool:
    found: Any = sys.modules.get(module)
    for part in attribute.split("."):
        found = getattr(found, part, None)
    return found is not None and (thing is None or found is thing)


def _parents(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


# Names of a package that are imported when they are first used (PEP 562)
# ------------------------------------------------------------------------------


def lazy(package: str, names: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """The `__getattr__` of a package or module; `names`: module below `fedsift` to the names that it defines.

    No name may be that of a submodule: importing the submodule would hide it.
    """
    homes = {name: f"fedsift.{module}" for module, defined in names.items() for name in defined}

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        value = getattr(importlib.import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return find
