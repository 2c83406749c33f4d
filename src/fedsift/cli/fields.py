"""The fields of a registered class, as a table: what `datasets NAME`, `noises NAME` and their like show."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from fedsift.cli.output import print_json, print_table

if TYPE_CHECKING:
    from fedsift.core.registry import Registry

# The strings under dataclass fields, as text: documentation is written once, beside the field
# ------------------------------------------------------------------------------


def field_docs(cls: type[Any]) -> dict[str, str]:
    """Field names to the string literal that follows them in the class body; base classes included."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if base is object or base.__module__ == "builtins":
            continue
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, TypeError, SyntaxError):
            continue
        body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
        for statement, following in pairwise(body):
            if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
                continue
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                docs[statement.target.id] = " ".join(str(following.value.value).split())
    return docs


def field_rows(cls: type[Any]) -> list[dict[str, Any]]:
    """One row a field that can be set: name, default, whether it is required, and the words under it in the source."""
    docs = field_docs(cls)
    return [
        {
            "name": field.name,
            "default": None if field.default is dataclasses.MISSING else field.default,
            "required": field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING,
            "meaning": docs.get(field.name, ""),
        }
        for field in dataclasses.fields(cls)
        if field.init
    ]


def show_fields(registry: Registry[Any], name: str, json: bool) -> None:
    cls = registry.get(name)
    rows = field_rows(cls)
    if json:
        print_json({"name": name, "what": cls.summary, "fields": rows})
    else:
        cells = [[r["name"], "required" if r["required"] else r["default"], r["meaning"]] for r in rows]
        print_table(f"{name}: {cls.summary}", ["field", "default", "meaning"], cells)


def list_or_show(registry: Registry[Any], name: str, json: bool) -> None:
    """All entries with their summaries, or one entry's fields."""
    if name:
        show_fields(registry, name, json)
        return
    entries = [{"name": key, "what": registry.get(key).summary} for key in registry]
    if json:
        print_json(entries)
    else:
        print_table(f"{registry.kind}s", ["name", "what it does"], [[e["name"], e["what"]] for e in entries])
