"""The import contracts name every package: a new one has to be given its layer, or these tests fail."""

from __future__ import annotations

from configparser import ConfigParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "fedsift"


@pytest.fixture(scope="module")
def contracts() -> ConfigParser:
    parser = ConfigParser()
    parser.read(ROOT / ".importlinter", encoding="utf-8")
    return parser


def listed(contracts: ConfigParser, contract: str, key: str) -> set[str]:
    """The modules that a contract names under a key."""
    return set(contracts[f"importlinter:contract:{contract}"][key].replace("|", " ").split())


def packages(folder: Path, within: str = "fedsift") -> set[str]:
    """Packages and modules of a folder, but those that only make it a package or a program."""
    found = {path.parent.name for path in folder.glob("*/__init__.py")}
    found |= {path.stem for path in folder.glob("*.py") if not path.stem.startswith("__")}
    return {f"{within}.{name}" for name in found}


def test_every_package_has_its_layer(contracts: ConfigParser) -> None:
    assert listed(contracts, "layers", "layers") == packages(SOURCE)


def test_flower_is_kept_out_of_every_package_but_two(contracts: ConfigParser) -> None:
    expected = packages(SOURCE) - {"fedsift.transports", "fedsift.deploy"}
    expected |= packages(SOURCE / "transports", "fedsift.transports") - {"fedsift.transports.flower"}
    assert listed(contracts, "flower-in-two-places", "source_modules") == expected


def test_no_contract_has_an_exemption(contracts: ConfigParser) -> None:
    """Imports for the type checker count too: who names a class of a higher package depends on it."""
    assert "exclude_type_checking_imports" not in contracts["importlinter"]
    exempt = {"ignore_imports", "unmatched_ignore_imports_alerting", "exhaustive_ignores"}
    assert not [name for name in contracts.sections() if exempt & set(contracts[name])]
