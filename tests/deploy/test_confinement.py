"""What Flower starts at a site cannot open the site's data or notebook, whatever app it runs."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from fedsift.deploy.site import confinement
from fedsift.deploy.site.confinement import Confinement, landlock_version, of_node, report
from fedsift.deploy.site.site_file_head import read_head
from tests.deploy.test_site_data import write_site

APP = """
import socket, sys, tempfile
data, secret, home, place = sys.argv[1:]
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
    line.connect(place)
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
        place = Path(folder) / "sock"
        listener.bind(str(place))
        listener.listen()
        rules = of_node(home, place, [])
        assert rules.holds
        assert not rules.reaches(data)
        done = subprocess.run(
            [sys.executable, "-c", APP, str(data), str(secret), str(home), str(place)],
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=rules.apply,
            env={"TMPDIR": str(home), "PATH": "", "PYTHONPATH": ":".join(p for p in sys.path if p)},
        )
        rules.close()
    assert done.stdout.split() == ["refused"] * 3 + ["works"], done.stderr
    assert data.read_bytes()  # this process is as free as before


def test_the_folder_somebody_works_in_is_no_folder_of_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    site = tmp_path / "site" / "site.toml"
    site.parent.mkdir()
    site.write_text("")
    assert of_node(tmp_path, tmp_path / "sock", []).reaches(site)
    home = tmp_path / "home"
    home.mkdir()
    assert not of_node(home, tmp_path / "sockets" / "sock", [], [site]).reaches(site)


def test_data_in_a_folder_of_the_system_are_left_out_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with data in /opt, or a site.toml in /etc, which a SuperNode may otherwise read."""
    opt = tmp_path / "opt"
    for place in ("hospital/data/a.png", "hospital/site.toml", "hospital/lib/x.so", "cuda/lib/y.so"):
        (opt / place).parent.mkdir(parents=True, exist_ok=True)
        (opt / place).write_text("x")
    (opt / "link").symlink_to(opt / "hospital")
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "lib").symlink_to(opt)  # as /lib leads to /usr/lib
    monkeypatch.setattr(confinement, "SYSTEM", (str(opt), str(tmp_path / "lib")))
    guarded = [opt / "hospital" / "site.toml", opt / "hospital" / "data"]
    rules = of_node(home, tmp_path / "sockets" / "sock", [], guarded)
    assert not any(rules.reaches(opt / "hospital" / place) for place in ("site.toml", "data/a.png", "new"))
    assert rules.reaches(opt / "hospital" / "lib" / "x.so")
    assert rules.reaches(opt / "cuda" / "lib" / "y.so")
    told: list[str] = []
    report(rules, guarded, told.append)
    assert "cannot open this site's data" in told[0] or not landlock_version()
    monkeypatch.setattr(sys, "prefix", str(opt))  # Python itself lies there: nothing can be left out
    report(of_node(home, tmp_path / "sockets" / "sock", [], guarded), guarded, told.append)
    assert "an app that you pin can read this" in told[1] or not landlock_version()


def test_a_folder_of_very_many_files_is_left_out_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confinement, "SYSTEM", (str(tmp_path / "opt"),))
    (tmp_path / "opt").mkdir()
    for number in range(1002):
        (tmp_path / "opt" / str(number)).touch()
    rules = of_node(tmp_path / "home", tmp_path / "sockets" / "sock", [], [tmp_path / "opt" / "0"])
    assert not rules.reaches(tmp_path / "opt" / "1")


def test_everything_that_a_sites_file_names_for_its_samples_is_guarded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("pictures", "shared", "cache", "roots/one", "roots/two"):
        (tmp_path / place).mkdir(parents=True)
    (tmp_path / "list.csv").touch()
    monkeypatch.setenv("FEDSIFT_DATA", f"{tmp_path / 'roots' / 'one'}:{tmp_path / 'roots' / 'two'}")
    monkeypatch.setenv("FEDSIFT_CACHE", str(tmp_path / "cache"))
    data = {"name": "folder", "path": str(tmp_path / "pictures"), "table": "../list.csv", "label": "x" * 5000}
    head = read_head(write_site(tmp_path / "site", data=data, public={"name": "npz", "path": "../shared"}))
    found = {path.resolve().relative_to(tmp_path) for path in head.guarded}
    wanted = ("site/site.toml", "site/notebook/north", "site/notebook/privacy", "pictures", "list.csv")
    assert found == {Path(place) for place in (*wanted, "shared", "cache", "roots/one", "roots/two")}


STRAY = """
import os, socket, sys
try:
    os.kill(os.getppid(), 0)
    print("may-signal")
except PermissionError:
    print("refused")
try:
    socket.socket(socket.AF_UNIX).connect("\\0" + sys.argv[1])
    print("connected")
except PermissionError:
    print("refused")
os.kill(os.getpid(), 0)
print("works")
"""


@pytest.mark.skipif(landlock_version() < 6, reason="this kernel's Landlock has no scopes")
def test_an_app_cannot_signal_others_or_reach_their_sockets_without_a_path(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0" + tmp_path.name)
        listener.listen()
        rules = of_node(tmp_path, Path(folder) / "sock", [])
        done = subprocess.run(
            [sys.executable, "-c", STRAY, tmp_path.name],
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=rules.apply,
        )
        rules.close()
    assert done.stdout.split() == ["refused", "refused", "works"], done.stderr


def test_the_operator_is_told_what_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    rules = Confinement([tmp_path], [])
    report(rules, [tmp_path / "data.npz"], told.append)
    monkeypatch.setattr(confinement, "landlock_version", lambda: 0)
    report(Confinement([], []), [tmp_path / "data.npz"], told.append)
    assert "move it elsewhere" in told[0] or not landlock_version()
    assert "cannot confine" in told[1]
