"""What a data manager does works without anything that only Unix has: it is blocked, and the commands are run.

This stands in for Windows as far as a Unix machine can: modules and functions that Windows lacks are taken away from
fedsift. Paths, encodings and consoles of Windows, and the Windows side of the library that locks files, are not tried.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

PREAMBLE = """
import builtins, os, signal, socket, sys
import torch, sklearn.linear_model, scipy.optimize, PIL.Image, pydantic, rich, typer, multiprocessing.connection
real = builtins.__import__
UNIX = {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty"}
def without_unix(name, globals=None, locals=None, fromlist=(), level=0):
    importer = (globals or {}).get("__name__", "")
    if name.partition(".")[0] in UNIX and importer.partition(".")[0] == "fedsift":
        raise ModuleNotFoundError(f"No module named '{name}'", name=name)
    return real(name, globals, locals, fromlist, level)
builtins.__import__ = without_unix
for name in ("fork", "forkpty", "getuid", "geteuid", "getgid", "killpg", "getpgid", "setsid", "chown",
             "mkfifo", "sched_getaffinity", "uname", "statvfs", "nice", "sysconf"):
    if hasattr(os, name):
        delattr(os, name)
for name in ("SIGKILL", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGQUIT", "SIGPIPE", "alarm", "setitimer",
             "pthread_sigmask"):
    if hasattr(signal, name):
        delattr(signal, name)
for name in ("AF_UNIX", "send_fds", "recv_fds"):
    if hasattr(socket, name):
        delattr(socket, name)
import glob, json
from fedsift.cli.main import main
for words in json.loads(sys.argv[1]):
    sys.argv = ["fedsift", *(name for word in words for name in glob.glob(word) or [word])]
    print("$", *sys.argv, flush=True)
    try:
        main()
    except SystemExit as stop:
        if stop.code not in (0, None, 7):
            raise
"""


def test_a_data_manager_s_commands_need_nothing_that_only_unix_has(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    true = draw.integers(0, 3, 150)
    site = np.array(["north", "east", "west"])[np.arange(150) % 3]
    wrong = (draw.random(150) < 0.4) & (site == "west")
    np.savez(
        tmp_path / "own.npz",
        images=(3.0 * np.eye(3, 6)[true] + draw.normal(size=(150, 6))).astype(np.float32),
        labels=np.where(wrong, (true + 1) % 3, true),
        site=site,
        ids=np.array([f"s{k:03d}" for k in range(150)]),
        classes=np.array(["cat", "cow", "dog"]),
    )
    (tmp_path / "study.toml").write_text(
        'name = "own"\nseed = 1\n[data]\nname = "npz"\npath = "own.npz"\n[model]\nname = "linear"\n'
        '[train]\nepochs = 1\nlr = 0.1\n[method]\nname = "fedavg"\nrounds = 2\n',
        "utf-8",
    )
    west = "audited/sites/west"
    commands = [
        ["doctor", "study.toml"],
        ["audit", "study.toml", "--out", "audited", "--folds", "3", "--rounds", "4", "--model", "linear"],
        ["review", "plan", west],
        ["review", "export", west],
        ["review", "status", west],
        ["labels", "apply", west, "--who", "manager"],
        ["labels", "verify", west],
        ["plan", "study.toml"],
        ["run", "study.toml", "--out", "runs"],
        ["report", "runs/*"],
        ["predict", "runs/*", "own.npz"],
        ["bench", "list"],
    ]
    done = subprocess.run(
        [sys.executable, "-c", PREAMBLE, json.dumps(commands)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "COLUMNS": "200", "NO_COLOR": "1", "FEDSIFT_CACHE": str(tmp_path / "cache")},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / west / "labels.csv").is_file() and list((tmp_path / "runs").glob("*/report.html"))
