"""Registries find files, entry points and `package.module:Name` by themselves, and say what is wrong with one."""

from __future__ import annotations

import importlib
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from fedsift.core.errors import ConfigError
from fedsift.core.registry import Registry, address_of, import_modules, importable
from fedsift.data.noise.base import Noise, noises
from fedsift.data.partitions.base import partitions
from fedsift.data.sources.base import Source, sources
from fedsift.methods._base import methods
from fedsift.models.factory import models
from tests.api.own import Calm, FirstWrong, Halves, Stripes

OWN = "tests.api.own"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An importable module that is no part of fedsift."""
    (tmp_path / "strangers.py").write_text(
        "from dataclasses import dataclass\n"
        "from fedsift.extend import Noise, Source\n"
        "@dataclass(frozen=True)\n"
        "class Loud(Noise):\n    summary = 'loud'\n"
        "@dataclass(frozen=True)\n"
        "class Own(Source):\n    summary = 'own source'\n"
        "class Box:\n    class Inner(Noise):\n        pass\n"
        "def net(shape, classes): return 1\n"
        "number = 3\n"
    )
    (tmp_path / "broken_stranger.py").write_text("import no_such_package\n")
    (tmp_path / "loud_stranger.py").write_text("raise RuntimeError('no')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "strangers"  # type: ignore[misc]
    sys.modules.pop("strangers", None)


@pytest.mark.parametrize(
    ("registry", "thing"),
    [(methods, Calm()), (noises, FirstWrong()), (partitions, Halves()), (sources, Stripes())],
)
def test_every_registry_names_a_strangers_object_and_finds_it_again(registry: Registry[type], thing: object) -> None:
    name = registry.name_of(thing)
    assert name == f"{OWN}:{type(thing).__name__}"
    assert registry.get(name) is type(thing)
    assert registry.name_of(type(thing)) == name
    assert name not in registry.names()


def test_an_address_may_be_nested(module: str) -> None:
    assert noises.get(f"{module}:Box.Inner").__name__ == "Inner"
    assert noises.name_of(noises.get(f"{module}:Box.Inner")) == f"{module}:Box.Inner"


@pytest.mark.parametrize(
    ("address", "message"),
    [
        (
            "no_such_thing:Loud",
            "'no_such_thing' cannot be imported.*install it, or name its folder in PYTHONPATH",
        ),
        ("no_such.thing:Loud", "module 'no_such.thing' cannot be imported.*PYTHONPATH"),
        ("broken_stranger:Loud", r"\(No module named 'no_such_package'\)$"),
        ("loud_stranger:Loud", r"cannot be imported \(no\)$"),
        ("strangers:Lout", "'strangers' has no 'Lout'. Did you mean 'Loud'"),
        ("strangers:number", "is a int, which does not derive from fedsift.data.noise.base.Noise"),
        ("strangers:Own", "is the class Own, which does not derive from"),
        ("strangers:", "write it as package.module:Name"),
        (":Loud", "write it as package.module:Name"),
        ("__main__:NotThere", "defined in a script, a notebook or a function"),
        ("strangers:f.<locals>.Loud", "defined in a script, a notebook or a function"),
    ],
)
def test_a_bad_address_says_which_part_is_wrong(module: str, address: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        noises.get(address)
    assert "\n" not in str(refused.value)


def test_what_the_session_defined_is_found_while_the_session_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mine(Noise):
        pass

    Mine.__module__, Mine.__qualname__ = "__main__", "Mine"
    assert address_of(Mine) == "__main__:Mine"
    assert not importable(Mine)
    monkeypatch.setattr(sys.modules["__main__"], "Mine", Mine, raising=False)
    assert noises.get("__main__:Mine") is Mine


def test_a_thing_of_another_kind_has_no_name_here() -> None:
    with pytest.raises(ConfigError, match="is no noise model: it does not derive from Noise"):
        noises.name_of(Halves())


def plugged(registry: Registry[type], monkeypatch: pytest.MonkeyPatch, **entries: str) -> None:
    found = {name: EntryPoint(name, value, registry.group) for name, value in entries.items()}
    monkeypatch.setattr(registry, "_plugins", found)
    monkeypatch.setattr(registry, "_entries", dict(registry._entries))


def test_entry_points_are_listed_and_imported_when_asked_for(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plugged(
        noises,
        monkeypatch,
        loud="strangers:Loud",
        bad="broken_stranger:Loud",
        odd="strangers:number",
        clean="x:y",
    )
    assert "strangers" not in sys.modules
    assert {"loud", "bad", "odd"} <= set(noises)
    assert "strangers" not in sys.modules
    assert noises.get("loud") is importlib.import_module("strangers").Loud
    assert noises.name_of(noises.get("loud")) == "loud"
    assert noises.get("clean").__name__ == "Clean"  # fedsift's own names stay its own
    with pytest.raises(ConfigError, match="'bad' is a plug-in, 'broken_stranger:Loud', that cannot be imported"):
        noises.get("bad")
    with pytest.raises(ConfigError, match="'strangers:number' is a int"):
        noises.get("odd")
    with pytest.raises(ConfigError, match="Did you mean 'loud'"):
        noises.get("lout")


def test_a_dataset_plug_in_may_be_a_source(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plugged(sources, monkeypatch, mine="strangers:Own")
    found = sources.get("mine")
    assert issubclass(found, Source)
    assert found.about() == "own source"


def test_groups_are_the_documented_ones() -> None:
    groups = [registry.group for registry in (methods, noises, partitions, sources, models)]
    assert groups == [f"fedsift.{what}" for what in ("methods", "noises", "partitions", "datasets", "models")]


def test_a_new_file_is_found_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "shelf"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "one.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    import_modules("shelf", [str(package)])
    assert "shelf.one" in sys.modules


@pytest.mark.parametrize("package", ["data.noise", "data.partitions", "data.sources", "methods", "models"])
def test_every_file_of_a_registry_is_imported_with_its_package(package: str) -> None:
    home = importlib.import_module(f"fedsift.{package}")
    assert home.__file__ is not None
    files = [file.stem for file in Path(home.__file__).parent.glob("*.py") if file.stem != "__init__"]
    assert files
    assert all(f"fedsift.{package}.{name}" in sys.modules for name in files)
