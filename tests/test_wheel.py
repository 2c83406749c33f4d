"""The wheel: it holds every file that is not Python, and the demo runs from it in an environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

import fedsift

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "fedsift"
LEFT_OUT = {".pyc", ".so"}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built by this environment's setuptools: nothing is fetched."""
    pytest.importorskip("build", reason="python -m build makes the wheel: pip install 'fedsift[dev]'")
    pytest.importorskip("setuptools", reason="the wheel's build backend")
    place = tmp_path_factory.mktemp("wheel")
    copy = place / "source"
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    tracked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, tracked.split("\0")):
        if name.startswith("src/") or "/" not in name:
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((ROOT / name).read_bytes())
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(place), str(copy)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    [made] = place.glob("*.whl")
    return made


def test_every_file_of_the_package_is_inside(wheel: Path) -> None:
    expected = {
        f"fedsift/{path.relative_to(PACKAGE).as_posix()}"
        for path in PACKAGE.rglob("*")
        if path.is_file() and path.suffix not in LEFT_OUT
    }
    assert any(name.endswith(".cpp") for name in expected)
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())
    assert expected - inside == set()
    assert wheel.name.startswith(f"fedsift-{fedsift.__version__}-")


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with fedsift from the wheel, and everything else from this environment.

    Third-party packages are reached by a .pth file. An editable fedsift lies in the same folder, but its finder is
    installed by a .pth of its own, and a .pth inside a folder that a .pth names is not read.
    """
    root = tmp_path_factory.mktemp("clean")
    venv.create(root, with_pip=False, symlinks=True)
    [packages] = root.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    (packages / "third_party.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return root / "bin" / "python"


def run(python: Path, *words: str, folder: Path) -> str:
    keep = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
    env = {**keep, "FEDSIFT_CACHE": str(folder / "cache"), "NO_COLOR": "1"}
    done = subprocess.run([str(python), *words], cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def test_the_demo_runs_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    where = run(installed, "-c", "import fedsift; print(fedsift.__file__)", folder=tmp_path).strip()
    assert Path(where).is_relative_to(installed.parents[1]), f"fedsift came from {where}"
    told = json.loads(run(installed, "-m", "fedsift", "demo", "--json", folder=tmp_path))
    assert [one["method"] for one in told["runs"]] == ["fedavg", "fednoro"]
    assert "<style>" in (tmp_path / told["report"]).read_text("utf-8")


def test_the_rooms_pages_and_presets_come_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    assert "fedcorr/" in run(installed, "-m", "fedsift", "scenarios", folder=tmp_path)
    script = (
        "from importlib.resources import files\n"
        "import fedsift.label_audit.page, fedsift.drawing, fedsift.report\n"
        "for room, name in (('audits.page', 'review.js'), ('audits.page', 'kept.js'),"
        " ('audits.page', 'review.css'), ('drawing', 'style.css'), ('report', 'script.js'),"
        " ('local.native', 'tiles.cpp')):\n"
        "    assert files(f'fedsift.{room}').joinpath(name).read_text('utf-8').strip(), name\n"
    )
    run(installed, "-c", script, folder=tmp_path)
