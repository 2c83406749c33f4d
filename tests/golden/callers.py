"""Who calls what in `src`, read from the source alone: which formulas does the running product reach?

A reference counts when the name was imported from fedsift (or is defined in the same module) and the code that holds it
is itself reached. The product starts from module code, classes, decorated functions (registered ones), and from
whatever lies above the packages of formulas: commands, studies, methods, engines.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

PACKAGES = tuple(
    f"fedsift.{package}."
    for package in ("data", "detection", "formulas", "label_audit", "methods", "models", "runs.reading", "training")
)
"""Where formulas are. Functions elsewhere are started by people."""

Place = tuple[str, str]
"""Module and name; a module itself has the name ""."""


@dataclass
class Module:
    """One file: what its names mean elsewhere, and its tree."""

    name: str
    tree: ast.Module
    meanings: dict[str, Place] = field(default_factory=dict)

    @classmethod
    def read(cls, name: str, path: Path) -> Module:
        module = cls(name, ast.parse(path.read_text(encoding="utf-8")))
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("fedsift"):
                for alias in node.names:
                    module.meanings[alias.asname or alias.name] = (node.module, alias.name)
        for statement in module.tree.body:
            if isinstance(statement, ast.FunctionDef | ast.ClassDef):
                module.meanings.setdefault(statement.name, (name, statement.name))
        return module

    def referred(self, node: ast.AST) -> Iterator[Place]:
        """What a piece of code names: `imported` and `imported_module.name`."""
        for part in ast.walk(node):
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load) and part.id in self.meanings:
                yield self.meanings[part.id]
            elif isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name):
                module, name = self.meanings.get(part.value.id, ("", ""))
                if module:
                    yield (f"{module}.{name}", part.attr)


class Source:
    """All modules of a package."""

    def __init__(self, root: Path) -> None:
        self.modules: dict[str, Module] = {}
        for path in sorted(root.rglob("*.py")):
            parts = path.relative_to(root.parent).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            self.modules[name] = Module.read(name, path)

    def home(self, place: Place) -> Place:
        """Where a name is defined, through re-exports; a sub-module is (its name, "")."""
        module, name = place
        while name and module in self.modules:
            meaning = self.modules[module].meanings.get(name)
            if meaning is None or meaning == (module, name):
                break
            module, name = meaning
        return (f"{module}.{name}", "") if f"{module}.{name}" in self.modules else (module, name)

    def functions(self) -> dict[Place, ast.FunctionDef]:
        """Top-level functions of the formulas' packages, without a decorator."""
        return {
            (module.name, node.name): node
            for module in self.modules.values()
            if f"{module.name}.".startswith(PACKAGES)
            for node in module.tree.body
            if isinstance(node, ast.FunctionDef) and not node.decorator_list
        }

    def unreached(self) -> set[Place]:
        """Functions that no running code names."""
        functions = self.functions()
        waiting = []
        for module in self.modules.values():
            for node in module.tree.body:
                if (module.name, getattr(node, "name", "")) not in functions:
                    waiting.append((module, node))
        reached: set[Place] = set()
        while waiting:
            module, node = waiting.pop()
            for place in map(self.home, module.referred(node)):
                if place in functions and place not in reached:
                    reached.add(place)
                    waiting.append((self.modules[place[0]], functions[place]))
        return set(functions) - reached
