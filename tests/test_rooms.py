"""The import contracts know every room: whoever builds a new one gives it its place, or these fail."""

from __future__ import annotations

from configparser import ConfigParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HOUSE = ROOT / "src" / "fedsift"


@pytest.fixture(scope="module")
def contracts() -> ConfigParser:
    parser = ConfigParser()
    parser.read(ROOT / ".importlinter", encoding="utf-8")
    return parser


def listed(contracts: ConfigParser, contract: str, key: str) -> set[str]:
    """The modules that a contract names under a key."""
    return set(contracts[f"importlinter:contract:{contract}"][key].replace("|", " ").split())


def rooms(folder: Path, within: str = "fedsift") -> set[str]:
    """Packages and modules of a folder, but those that only make it a package or a program."""
    found = {path.parent.name for path in folder.glob("*/__init__.py")}
    found |= {path.stem for path in folder.glob("*.py") if not path.stem.startswith("__")}
    return {f"{within}.{name}" for name in found}


def test_every_room_has_its_storey(contracts: ConfigParser) -> None:
    assert listed(contracts, "storeys", "layers") == rooms(HOUSE)


def test_the_contract_may_import_none_of_the_other_rooms(contracts: ConfigParser) -> None:
    forbidden = listed(contracts, "contract-stands-alone", "forbidden_modules")
    assert forbidden == rooms(HOUSE) - {"fedsift.contract"}


def test_flower_is_kept_out_of_every_room_but_two(contracts: ConfigParser) -> None:
    expected = rooms(HOUSE) - {"fedsift.engines", "fedsift.deploy"}
    expected |= rooms(HOUSE / "engines", "fedsift.engines") - {"fedsift.engines.flower"}
    assert listed(contracts, "flower-in-two-places", "source_modules") == expected


def test_no_contract_has_an_exemption(contracts: ConfigParser) -> None:
    """Imports for the type checker count too: who names a class of a higher room depends on it."""
    assert "exclude_type_checking_imports" not in contracts["importlinter"]
    exempt = {"ignore_imports", "unmatched_ignore_imports_alerting", "exhaustive_ignores"}
    assert not [name for name in contracts.sections() if exempt & set(contracts[name])]
