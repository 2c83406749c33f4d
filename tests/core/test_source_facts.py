"""Facts read from source are those of the imported classes."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedsift.cli import listings
from fedsift.cli.listings import NotLiteral, registered_facts

TEXT = """
class Base:
    summary: ClassVar[str] = "of the base"
    tasks = ("a", "b")

@shelf.register("one")
@dataclass
class One(Base):
    summary = "of one"

@shelf.register("two")
@shelf.register("deux")
class Two(One, Other):
    tasks = ()

@other.register("three")
class Three(Base): pass
"""


def test_own_facts_come_before_inherited_ones(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(TEXT)
    found = registered_facts([tmp_path / "a.py"], "shelf", ["summary", "tasks"])
    assert found == {
        "one": {"summary": "of one", "tasks": ("a", "b")},
        "two": {"summary": "of one", "tasks": ()},
        "deux": {"summary": "of one", "tasks": ()},
    }


@pytest.mark.parametrize(
    "text", ['@s.register("x")\nclass X:\n    summary = f"{1}"', '@s.register(name)\nclass X:\n    summary = ""',
             '@s.register("x")\nclass X: pass']
)  # fmt: skip
def test_what_is_computed_is_not_guessed(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(text)
    with pytest.raises(NotLiteral):
        registered_facts([tmp_path / "a.py"], "s", ["summary"])


def test_the_listing_of_methods_is_that_of_the_classes() -> None:
    assert listings.method_entries() == [
        {"name": name, "for": list(facts["tasks"]), "paper": facts["paper"], "summary": facts["summary"]}
        for name, facts in sorted(listings.imported_methods().items())
    ]


def test_the_package_knows_its_networks() -> None:
    assert listings.CARDS.read_text("utf-8") == listings.known_text(), "run python -m tests.cli.cards"


def test_networks_are_measured_once_while_their_source_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSIFT_CACHE", str(tmp_path))
    calls: list[int] = []

    def measured() -> list[dict[str, object]]:
        calls.append(1)
        return [{"name": "net", "parameters": 3}]

    monkeypatch.setattr(listings, "measured_models", measured)
    monkeypatch.setattr(listings, "_models_key", lambda: "own source")
    assert listings.model_entries() == listings.model_entries() == [{"name": "net", "parameters": 3}]
    assert len(calls) == 1
    [file] = (tmp_path / "models").glob("*.json")
    file.write_text("cut sh")
    listings.model_entries()
    assert len(calls) == 2
    monkeypatch.setattr(listings, "_models_key", lambda: "changed source")
    listings.model_entries()
    assert len(calls) == 3


def test_a_cache_that_cannot_be_written_costs_time_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDSIFT_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(listings, "_models_key", lambda: "own source")
    monkeypatch.setattr(listings, "measured_models", lambda: [{"name": "net"}])
    assert listings.model_entries() == [{"name": "net"}]
