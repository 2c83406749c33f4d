"""Small pictures on disk for the tests: every class has its own colour, so that files differ and can be
told apart."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from PIL import Image


def picture(path: Path, seed: int, size: int = 12) -> None:
    """A random picture whose content depends on the seed alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (size, size, 3), np.uint8)
    Image.fromarray(pixels).save(path)


def table(path: Path, rows: list[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def labelled_folder(root: Path, count: int = 40, classes: tuple[str, ...] = ("benign", "malignant"), **columns) -> Path:
    """`root/pictures/*.png` and `root/labels.csv`; extra columns are functions of the row number."""
    rows = []
    for k in range(count):
        picture(root / "pictures" / f"p{k:03d}.png", k)
        row: dict[str, object] = {
            "id": f"p{k:03d}",
            "path": f"pictures/p{k:03d}.png",
            "label": classes[k % len(classes)],
        }
        rows.append({**row, **{name: value(k) for name, value in columns.items()}})
    table(root / "labels.csv", rows)
    return root
