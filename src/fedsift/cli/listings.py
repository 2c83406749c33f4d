"""`fedsift methods|models|datasets|partitions|noises|trackers`: list what is registered, or the fields of one entry."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import inspect
import json
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fedsift.cli.output import print_json, print_table

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from fedsift.core.registry import Registry
    from fedsift.data.sources.base import Source


def register(app: typer.Typer) -> None:
    app.command("methods")(list_methods)
    app.command("models")(list_models)
    app.command("datasets")(list_datasets)
    app.command("partitions")(list_partitions)
    app.command("noises")(list_noises)
    app.command("trackers")(list_trackers)


def list_methods(
    name: str = typer.Argument("", help="A method, to see its parameters; or package.module:Name."),
    json: bool = typer.Option(False, "--json", help="Print as JSON."),
) -> None:
    """List the methods, or one method's parameters with their meaning."""
    if name:
        _show_method(name, json)
        return

    entries = method_entries()
    if json:
        print_json(entries)
    else:
        cells = [[e["name"], " ".join(e["for"]), e["paper"], e["summary"]] for e in entries]
        print_table("methods", ["name", "labels", "paper", "what it does"], cells)


def _show_method(name: str, json: bool) -> None:
    """One method: its parameters, its forms, and what it lets out of a site with its defaults."""
    from fedsift.methods._base import methods
    from fedsift.protocol.disclosure import declared_replies, disclosure_rows
    from fedsift.training.requests import Evaluate

    method = methods.get(name)
    rows = [
        {key: row[key] for key in ("name", "default", "meaning")}
        for row in field_rows(method)
        if row["name"] != "local"
    ]
    leaves = disclosure_rows(declared_replies(method(), (Evaluate,)))
    forms = {form: dict(settings) for form, settings in method.forms.items()}
    if json:
        disclosures = [dict(zip(("reply", "field", "what"), row)) for row in leaves]
        about = {"name": name, "summary": method.summary, "parameters": rows}
        print_json({**about, "forms": forms, "disclosures": disclosures})
        return
    cells = [[row["name"], row["default"], row["meaning"]] for row in rows]
    print_table(f"{name}: {method.summary}", ["parameter", "default", "meaning"], cells)
    if forms:
        shown = [[form, ", ".join(f"{k} = {v}" for k, v in own.items())] for form, own in forms.items()]
        print_table("forms", ["form", "settings"], shown)
    print_table("what leaves a site", ["reply", "field", "what it discloses"], leaves)


def list_models(json: bool = typer.Option(False, "--json", help="Print as JSON.")) -> None:
    """List the networks, with their size for the images that their stem is made for."""
    from fedsift.core.numbers import size

    cards = model_entries()
    if json:
        print_json(cards)
    else:
        cells = [[c["name"], c["stem"], f"{c['parameters']:,}", size(c["bytes"]), c["summary"]] for c in cards]
        print_table("models", ["name", "stem", "parameters", "message", "what it is"], cells)


def list_datasets(
    name: str = typer.Argument("", help="A dataset, to see its fields."),
    json: bool = typer.Option(False, "--json", help="Print as JSON."),
) -> None:
    """List the datasets and where they are, or one dataset's fields."""
    from fedsift.data.sources.base import sources

    if name:
        show_fields(sources, name, json)
        return
    entries = []
    for key in sources:
        cls = sources.get(key)
        entries.append({"name": key, "labels": cls.kind, "where": _where(key, cls), "licence": cls.licence,
                        "what": cls.about()})  # fmt: skip
    if json:
        print_json(entries)
    else:
        cells = [[e["name"], e["labels"], e["what"], e["where"]] for e in entries]
        print_table("datasets", ["name", "labels", "what it is", "where"], cells)


def _where(name: str, cls: type[Source]) -> str:
    from fedsift.data.download import BY_HAND, REMOTES, data_roots

    if cls.bundled:
        return "bundled"
    if not cls.folder:
        return "your own"
    for root in data_roots():
        if (root / cls.folder).exists():
            return str(root / cls.folder)
    if name in REMOTES or name == "medmnist":
        return f"fedsift data get {name if name in REMOTES else 'dermamnist'}"
    return BY_HAND.get(name, "bring it yourself")


def list_partitions(
    name: str = typer.Argument("", help="A partition, to see its fields."),
    json: bool = typer.Option(False, "--json", help="Print as JSON."),
) -> None:
    """List the ways to spread samples over sites, or the fields of one."""
    from fedsift.data.partitions.base import partitions

    list_or_show(partitions, name, json)


def list_noises(
    name: str = typer.Argument("", help="A noise model, to see its fields."),
    json: bool = typer.Option(False, "--json", help="Print as JSON."),
) -> None:
    """List the noise models that corrupt labels, or the fields of one."""
    from fedsift.data.noise.base import noises

    list_or_show(noises, name, json)


def list_trackers(
    name: str = typer.Argument("", help="A tracker, to see its fields."),
    json: bool = typer.Option(False, "--json", help="Print as JSON."),
) -> None:
    """List the trackers of the table `track`, or the fields of one."""
    from fedsift.tracking.base import trackers

    list_or_show(trackers, name, json)


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


# Facts of registered classes, without importing them
# ------------------------------------------------------------------------------


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
    from fedsift.core.numbers import plain
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
