"""What `fedsift methods` and `fedsift models` list, without waiting for torch to be imported.

Methods are read from their source. The networks' sizes come with the package (`models.json`); who changed a network's
source or added one by an entry point has them measured once and kept in the cache folder.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

FACTS = ("summary", "paper", "tasks")
CARDS = Path(__file__).with_name("models.json")
"""Written by `python -m tests.cli.cards`."""


def method_entries() -> list[dict[str, Any]]:
    """Name, kinds of label, paper and summary of every method."""
    from fedsift.contract.sourcefacts import NotLiteral, registered_facts

    try:
        found = registered_facts(
            source_files("fedsift.methods"),
            "methods",
            FACTS,
            elsewhere=[source_file("fedsift.contract.method")],
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
    from fedsift.contract.errors import FedsiftError
    from fedsift.methods import methods

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
    from fedsift.contract.cache import cache_root

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
    from fedsift.contract.plain import plain
    from fedsift.models import describe, models

    return [plain(describe(name)) for name in models]


def plugins(group: str) -> Sequence[EntryPoint]:
    from importlib.metadata import entry_points

    return sorted(entry_points(group=group), key=lambda entry: entry.name)


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
