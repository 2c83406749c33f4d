"""What Flower starts at a site cannot open the site's data or notebook, whatever app it runs."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from fedsift.deploy import confinement
from fedsift.deploy.confinement import Confinement, landlock_version, of_node, tell

from .test_sites import write_site

APP = """
import socket, sys, tempfile
data, secret, home, door = sys.argv[1:]
for path in (data, secret):
    try:
        open(path, "rb").read()
        print("read", path)
    except PermissionError:
        print("refused")
try:
    open(data, "ab")
    print("wrote")
except PermissionError:
    print("refused")
open(home + "/note", "w").write("ok")
with socket.socket(socket.AF_UNIX) as line:
    line.connect(door)
import flwr.app, numpy
print("works")
"""


@pytest.mark.skipif(not landlock_version(), reason="this kernel has no Landlock")
def test_an_app_cannot_read_data_or_notebook_and_can_reach_the_sites_process(tmp_path: Path) -> None:
    data = write_site(tmp_path / "site").parent / "data.npz"
    secret = tmp_path / "site" / "notebook" / "north" / "secret"
    secret.parent.mkdir(parents=True)
    secret.write_text("x")
    home = tmp_path / "site" / ".flower" / "north"
    home.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        door = Path(folder) / "door"
        listener.bind(str(door))
        listener.listen()
        rules = of_node(home, door, [])
        assert rules.holds
        assert not rules.reaches(data)
        done = subprocess.run(
            [sys.executable, "-c", APP, str(data), str(secret), str(home), str(door)],
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=rules.apply,
            env={"TMPDIR": str(home), "PATH": "", "PYTHONPATH": ":".join(p for p in sys.path if p)},
        )
        rules.close()
    assert done.stdout.split() == ["refused"] * 3 + ["works"], done.stderr
    assert data.read_bytes()  # this process is as free as before


def test_the_folder_somebody_works_in_is_no_folder_of_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    site = tmp_path / "site" / "site.toml"
    site.parent.mkdir()
    site.write_text("")
    assert of_node(tmp_path, tmp_path / "door", []).reaches(site)
    home = tmp_path / "home"
    home.mkdir()
    assert not of_node(home, tmp_path / "sockets" / "door", [], [site]).reaches(site)


def test_the_operator_is_told_what_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    rules = Confinement([tmp_path], [])
    tell(rules, [tmp_path / "data.npz"], told.append)
    monkeypatch.setattr(confinement, "landlock_version", lambda: 0)
    tell(Confinement([], []), [tmp_path / "data.npz"], told.append)
    assert "move it elsewhere" in told[0] or not landlock_version()
    assert "cannot confine" in told[1]
