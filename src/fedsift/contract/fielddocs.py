"""The strings under dataclass fields, as text: documentation is written once, beside the field."""

from __future__ import annotations

import ast
import inspect
import textwrap
from itertools import pairwise
from typing import Any


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
