"""What Flower's simulation refuses; what it gives is compared in tests/contract/test_two_engines.py."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from fedsift.core.errors import ConfigError, RunError
from fedsift.study.running import new_run, run
from fedsift.study.study import Study
from fedsift.transports.flower import processes

pytest.importorskip("ray", reason="Flower's simulation is not installed: pip install 'fedsift[flower]'")


def flower_study() -> Study:
    return Study.from_table(
        {"partition": {"name": "iid", "sites": 5}, "method": {"name": "fedavg"}, "engine": {"name": "flower"}}
    )


def test_without_flower_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "find_spec", lambda name: None)
    study = flower_study()
    with pytest.raises(ConfigError, match=r"pip install 'fedsift\[flower\]'"):
        run(study, new_run(study, tmp_path))


def test_a_deployed_run_is_not_gone_on_with_as_a_simulation(tmp_path: Path) -> None:
    study = flower_study()
    folder = new_run(study, tmp_path)
    folder.write_text("federation.toml", "sites = []\n")
    with pytest.raises(RunError, match="fedsift flower start"):
        run(study, folder)


def test_another_device_than_the_processor_is_refused(tmp_path: Path) -> None:
    study = flower_study()
    study = dataclasses.replace(study, engine=dataclasses.replace(study.engine, device="cuda"))
    with pytest.raises(ConfigError, match="trains on the CPU"):
        run(study, new_run(study, tmp_path))
