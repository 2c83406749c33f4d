"""Facts of registered classes, read from their source without importing it: listings start at once.

Importing a method means importing torch, which takes seconds; its name, paper and summary are literals in its file.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


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
