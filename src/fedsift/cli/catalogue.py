"""What `fedsift methods` and `fedsift models` list, without waiting for torch to be imported.

Methods are read from their source. The networks' sizes come with the package (`models.json`); who changed a network's
source or added one by an entry point has them measured once and kept in the cache folder.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

# Facts of registered classes, read from their source without importing it: listings start at once
# ------------------------------------------------------------------------------


class NotLiteral(Exception):
    """A fact is computed, so that it cannot be read; import the class instead."""


@dataclass(frozen=True)
class _Class:
    """What a class statement says: its registered names, its bases, its own attributes as expressions."""

    registered: tuple[str, ...]
    bases: tuple[str, ...]
    attributes: Mapping[str, ast.expr] = field(default_factory=dict)


def registered_facts(
    files: Iterable[Path], registry: str, facts: Iterable[str], *, elsewhere: Iterable[Path] = ()
) -> dict[str, dict[str, Any]]:
    """For every class that has `@registry.register("name")`: these attributes of it, inherited ones included.

    elsewhere: files that hold base classes only. Raises NotLiteral where a value is not a literal.
    """
    classes: dict[str, _Class] = {}
    for file in [*elsewhere, *files]:
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                classes[node.name] = _read(node, registry)
    wanted = list(facts)
    return {
        name: {fact: _literal(_inherited(classes, key, fact), name, fact) for fact in wanted}
        for key, cls in classes.items()
        for name in cls.registered
    }


def _read(node: ast.ClassDef, registry: str) -> _Class:
    attributes: dict[str, ast.expr] = {}
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            if statement.value is not None:
                attributes[statement.target.id] = statement.value
        elif isinstance(statement, ast.Assign):
            attributes |= {t.id: statement.value for t in statement.targets if isinstance(t, ast.Name)}
    return _Class(
        registered=tuple(name for d in node.decorator_list if (name := _registered(d, registry))),
        bases=tuple(base.id for base in node.bases if isinstance(base, ast.Name)),
        attributes=attributes,
    )


def _registered(decorator: ast.expr, registry: str) -> str:
    """The name in `registry.register("name")`; empty for any other decorator."""
    if not isinstance(decorator, ast.Call) or not isinstance(decorator.func, ast.Attribute):
        return ""
    owner, arguments = decorator.func.value, decorator.args
    if decorator.func.attr != "register" or not isinstance(owner, ast.Name) or owner.id != registry:
        return ""
    if not arguments or not isinstance(arguments[0], ast.Constant):
        raise NotLiteral(f"a name given to {registry}.register")
    return str(arguments[0].value)


def _inherited(classes: Mapping[str, _Class], key: str, fact: str) -> ast.expr | None:
    if key not in classes:
        return None
    own = classes[key].attributes.get(fact)
    if own is not None:
        return own
    return next((found for base in classes[key].bases if (found := _inherited(classes, base, fact))), None)


def _literal(expression: ast.expr | None, name: str, fact: str) -> Any:
    if expression is None:
        raise NotLiteral(f"{fact} of {name}")
    try:
        return ast.literal_eval(expression)
    except ValueError:
        raise NotLiteral(f"{fact} of {name}") from None


FACTS = ("summary", "paper", "tasks")
CARDS = Path(__file__).with_name("models.json")
"""Written by `python -m tests.cli.cards`."""


def method_entries() -> list[dict[str, Any]]:
    """Name, kinds of label, paper and summary of every method."""
    try:
        found = registered_facts(
            [*source_files("fedsift.methods"), source_file("fedsift.label_audit.method")],
            "methods",
            FACTS,
            elsewhere=[source_file("fedsift.protocol.method")],
        )
    except NotLiteral:
        found = imported_methods()
    else:
        if plugins("fedsift.methods"):
            found = imported_methods()
    return [
        {"name": name, "for": list(facts["tasks"]), "paper": facts["paper"], "summary": facts["summary"]}
        for name, facts in sorted(found.items())
    ]


def imported_methods() -> dict[str, dict[str, Any]]:
    """The same facts from the classes themselves; a broken plug-in says so and hides nobody."""
    from fedsift.core.errors import FedsiftError
    from fedsift.methods._base import methods

    found: dict[str, dict[str, Any]] = {}
    for name in methods:
        try:
            method = methods.get(name)
        except FedsiftError as error:
            found[name] = {"summary": str(error), "paper": "", "tasks": ()}
            continue
        found[name] = {fact: getattr(method, fact) for fact in FACTS}
    return found


def model_entries() -> list[dict[str, Any]]:
    """The card of every network: as the package says, or the cache, where its source has not changed since."""
    from fedsift.core.files import cache_root

    key = _models_key()
    known: dict[str, Any] = json.loads(CARDS.read_text("utf-8"))
    if known["key"] == key:
        cards: list[dict[str, Any]] = known["cards"]
        return cards
    file = cache_root() / "models" / f"{key}.json"
    try:
        kept: list[dict[str, Any]] = json.loads(file.read_text("utf-8"))
        return kept
    except (OSError, ValueError):
        pass
    cards = measured_models()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        beside = file.with_suffix(".tmp")
        beside.write_text(json.dumps(cards), "utf-8")
        beside.replace(file)
    except OSError:
        pass  # a folder that cannot be written costs the time again, nothing else
    return cards


def known_text() -> str:
    """`models.json`, for the networks as they are now."""
    return json.dumps({"key": _models_key(), "cards": measured_models()}, indent=1) + "\n"


def measured_models() -> list[dict[str, Any]]:
    """Build every network and count."""
    from fedsift.core.json_values import plain
    from fedsift.models.factory import describe, models

    return [plain(describe(name)) for name in models]


def plugins(group: str) -> Sequence[EntryPoint]:
    """Entry points of other packages."""
    from importlib.metadata import entry_points

    others = (entry for entry in entry_points(group=group) if not entry.value.startswith("fedsift."))
    return sorted(others, key=lambda entry: entry.name)


def source_files(package: str) -> list[Path]:
    """The files of a package, which is not imported."""
    return sorted(source_file(package).parent.glob("*.py"))


def source_file(module: str) -> Path:
    spec = find_spec(module)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin)


def _models_key() -> str:
    hasher = hashlib.blake2b(digest_size=12)
    for file in source_files("fedsift.models"):
        hasher.update(file.read_bytes())
    for entry in plugins("fedsift.models"):
        version = entry.dist.version if entry.dist is not None else ""
        hasher.update(f"{entry.name}={entry.value} {version}".encode())
    return hasher.hexdigest()
