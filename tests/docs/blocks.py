"""Code blocks of a Markdown page, and the files and commands that they are."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

BLOCK = re.compile(r"^(`{3,})(\w*)\n(.*?)^\1$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"(?:# |<!-- )(\S+\.(?:py|toml|md))(?: -->)?\n")


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, its text, and its file when the first line names one."""

    kind: str
    text: str

    @property
    def file(self) -> str | None:
        named = FILE.match(self.text)
        return named[1] if named else None


def blocks(page: Path) -> list[Block]:
    return [Block(kind, text) for _, kind, text in BLOCK.findall(page.read_text("utf-8"))]


def files(page: Path) -> dict[str, str]:
    """The files that a page writes out in full; the line that names a file is no part of it."""
    return {block.file: FILE.sub("", block.text, count=1) for block in blocks(page) if block.file is not None}


def write(texts: Mapping[str, str], root: Path) -> None:
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")


def environment(root: Path, **more: str) -> dict[str, str]:
    """An environment in which `fedsift`, `pytest` and `python` are this Python's, without colours."""
    programs = root / "programs"
    programs.mkdir(exist_ok=True)
    for name, arguments in {"fedsift": " -m fedsift", "pytest": " -m pytest", "python": ""}.items():
        script = programs / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}"{arguments} "$@"\n')
        script.chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "FEDSIFT_CACHE": str(root / "cache"),
        "COLUMNS": "80",
        "NO_COLOR": "1",
        **more,
    }


def perform(command: str, root: Path, env: Mapping[str, str], seconds: float = 240) -> str:
    """What a command says; it must succeed, without a traceback."""
    done = subprocess.run(
        command,
        shell=True,
        cwd=root,
        env=dict(env),
        text=True,
        capture_output=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stderr}{done.stdout}"
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr
