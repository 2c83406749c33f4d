"""A run is a folder: the resolved study, one line a round, the last checkpoint, tables, the report.

Nothing in it is ever half written. The checkpoint is the commit point: lines and notebooks that a killed run wrote
after its last checkpoint are not part of it and are dropped on resume.
"""

from __future__ import annotations

import csv
import fcntl
import io
import json
import math
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from fedsift.contract import codec
from fedsift.contract.codec import Wire
from fedsift.contract.errors import RunError
from fedsift.contract.messages import Weights
from fedsift.contract.plaintext import cell


@dataclass(frozen=True)
class Checkpoint(Wire):
    """Everything that a run needs to go on as if it had never stopped."""

    rounds_done: int
    state: Any
    accepted: dict[str, str]
    site_records: dict[str, dict[str, Any]]
    notebooks: dict[str, str] = field(default_factory=dict)
    """Site to the file that holds its notebook (in-process engine)."""
    tallies: dict[str, Any] = field(default_factory=dict)


class RunFolder:
    """Paths and safe writing; knows nothing of methods or metrics."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self._lock: TextIO | None = None
        self._notebook_files: dict[str, str] = {}

    @classmethod
    def create(cls, parent: Path, name: str) -> RunFolder:
        """A new folder `parent/name`, numbered on if that exists."""
        parent.mkdir(parents=True, exist_ok=True)
        for number in range(1, 10_000):
            path = parent / (name if number == 1 else f"{name}-{number}")
            try:
                path.mkdir()
            except FileExistsError:
                continue
            return cls(path)
        raise RunError(f"{parent} already holds thousands of runs called {name}")

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        folder = cls(path)
        if not folder.study_file.is_file():
            raise RunError(f"{path} is not a run folder (it has no study.toml)")
        return folder

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def study_file(self) -> Path:
        return self.path / "study.toml"

    @property
    def rounds_file(self) -> Path:
        return self.path / "rounds.jsonl"

    @property
    def checkpoint_file(self) -> Path:
        return self.path / "checkpoint.safetensors"

    @property
    def finished(self) -> bool:
        return (self.path / "summary.json").is_file()

    def lock(self) -> None:
        """Refuse a second process on the same run; the lock goes with the process, however that ends."""
        self._lock = (self.path / ".lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunError(f"{self.path} is in use by another process") from None

    def unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def write_text(self, name: str, text: str) -> Path:
        codec.write_atomically(self.path / name, text.encode("utf-8"))
        return self.path / name

    def write_json(self, name: str, value: Any) -> Path:
        return self.write_text(name, json.dumps(plain(value), indent=2) + "\n")

    def write_table(self, name: str, rows: Sequence[Mapping[str, Any]]) -> Path:
        """A CSV file with the union of the rows' columns, in the order in which they appear."""
        columns = list(dict.fromkeys(key for row in rows for key in row))
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({key: _cell(row.get(key)) for key in columns})
        return self.write_text(name, text.getvalue())

    def forget(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    def read_json(self, name: str) -> Any:
        file = self.path / name
        return json.loads(file.read_text("utf-8")) if file.is_file() else None

    # Rounds and checkpoints ----------------------------------------------------------------------------------------

    def append_round(self, row: Mapping[str, Any]) -> None:
        with self.rounds_file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(plain(row)) + "\n")

    def rounds(self) -> list[dict[str, Any]]:
        if not self.rounds_file.is_file():
            return []
        rows = []
        for line in self.rounds_file.read_text("utf-8").splitlines():
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                break  # the line that a kill cut short; the checkpoint does not count it
        return rows

    def checkpoint(
        self, point: Checkpoint, notebooks: Mapping[str, dict[str, Any]], touched: set[str]
    ) -> None:
        """Write what changed, then the checkpoint that refers to it, then drop what nothing refers to any more."""
        for site in sorted(touched):
            name = f"notebooks/{safe_name(site)}/{point.rounds_done}.safetensors"
            codec.save(self.path / name, notebooks[site])
            self._notebook_files[site] = name
        files = dict(self._notebook_files)
        codec.save(
            self.checkpoint_file,
            Checkpoint(
                point.rounds_done, point.state, point.accepted, point.site_records, files, point.tallies
            ),
        )
        for site in touched:
            keep = files[site]
            for file in (self.path / keep).parent.iterdir():
                if f"notebooks/{file.parent.name}/{file.name}" != keep:
                    file.unlink()

    def restore(self) -> tuple[Checkpoint, dict[str, dict[str, Any]]] | None:
        """The last checkpoint and the notebooks of its moment; later lines and notebooks are dropped."""
        for leftover in self.path.glob("**/*.tmp"):
            leftover.unlink()
        if not self.checkpoint_file.is_file():
            self.rounds_file.unlink(missing_ok=True)
            shutil.rmtree(self.path / "notebooks", ignore_errors=True)
            return None
        point: Checkpoint = codec.load(self.checkpoint_file)
        rows = self.rounds()[: point.rounds_done]
        if len(rows) < point.rounds_done:
            raise RunError(
                f"{self.rounds_file} has {len(rows)} lines, the checkpoint counts {point.rounds_done}"
            )
        self.write_text("rounds.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        self._notebook_files = dict(point.notebooks)
        return point, {site: codec.load(self.path / name) for site, name in point.notebooks.items()}

    def save_model(self, weights: Weights, name: str = "model.safetensors") -> Path:
        """The weights as a plain safetensors file, readable by any tool."""
        from safetensors.torch import save

        data = save({key: value.contiguous() for key, value in weights.items()})
        codec.write_atomically(self.path / name, bytes(data))
        return self.path / name


def safe_name(site: str) -> str:
    """A file name for a site: readable, without separators, different for different sites."""
    plain_part = re.sub(r"[^A-Za-z0-9._-]", "_", site)[:60].lstrip(".") or "site"
    return plain_part if plain_part == site else f"{plain_part}-{codec.digest_of(site)[:8]}"


def plain(value: Any) -> Any:
    """JSON without NaN or infinities: those become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [plain(item) for item in value]
    if hasattr(value, "item") and getattr(value, "size", 1) == 1:
        return plain(value.item())
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, os.PathLike):
        return str(value)
    return value


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, list | tuple | dict):
        return json.dumps(plain(value))
    return cell(value) if isinstance(value, str) else plain(value)
