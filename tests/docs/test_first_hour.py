"""docs/first-hour.md, performed: its tables are written and its commands run, in order, on made data."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.commands import typed
from tests.docs.blocks import blocks

PAGE = Path(__file__).parents[2] / "docs" / "first-hour.md"


def make_data(root: Path, sites: int = 5, each: int = 24) -> None:
    """Pictures whose colour is their class; the last clinic has labels at random."""
    rng = np.random.default_rng(0)
    rows, images = [], []
    (root / "own/pictures").mkdir(parents=True)
    for k in range(sites * each):
        kind, site = int(rng.integers(2)), k % sites
        pixels = rng.integers(0, 90, (16, 16, 3)).astype(np.uint8)
        pixels[3:13, 3:13, 2 * kind] += 120
        Image.fromarray(pixels).save(root / f"own/pictures/p{k:03d}.png")
        label = int(rng.integers(2)) if site == sites - 1 else kind
        rows.append((f"p{k:03d}", f"pictures/p{k:03d}.png", ("benign", "malignant")[label], f"clinic-{'abcde'[site]}"))
        images.append(pixels)
    with (root / "own/labels.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("id", "path", "label", "site"), *rows])
    labels = np.array([row[2] == "malignant" for row in rows], np.int64)
    np.savez(root / "own.npz", images=np.array(images), labels=labels, site=np.array([row[3] for row in rows]))


def texts(kind: str) -> list[str]:
    return [block.text for block in blocks(PAGE) if block.kind == kind]


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """The folder in which the page was performed, and what each command said."""
    root = tmp_path_factory.mktemp("hour")
    make_data(root)
    for text in texts("toml"):
        name = "arrays.toml" if '"npz"' in text else "study.toml"
        (root / name).write_text(text, encoding="utf-8")
    env = {"FEDSIFT_CACHE": str(root / "cache")}
    said = {command: typed(command, root, env) for command in "".join(texts("sh")).splitlines()}
    return root, said


def test_every_kind_of_command_is_on_the_page(spoken: tuple[Path, dict[str, str]]) -> None:
    words = {command.split()[1] for command in spoken[1]}
    assert words == {"doctor", "plan", "run", "report", "audit", "review"}


def test_the_sites_are_the_clinics_and_nothing_is_called_a_false_alarm(
    spoken: tuple[Path, dict[str, str]],
) -> None:
    root, said = spoken
    for command, text in said.items():
        if command.split()[1] == "run":
            assert all(f"clinic-{letter}" in text for letter in "abcde")
            assert "false alarm" not in text
            assert "precision" not in text
    assert not list(root.glob("runs/*/truth.csv"))


def test_another_method_says_what_it_leaves_out(spoken: tuple[Path, dict[str, str]]) -> None:
    [text] = [text for command, text in spoken[1].items() if "method.name=fedavg" in command]
    assert "note: method.name = 'fedavg': warm_up of 'fednoro' is left out; kept: rounds = 4" in text


def test_the_report_is_there(spoken: tuple[Path, dict[str, str]]) -> None:
    root, said = spoken
    [text] = [text for command, text in said.items() if command.startswith("fedsift report")]
    assert (root / text.removeprefix("report: ").strip()).is_file()


def test_the_audit_lists_the_labels_of_the_clinic_that_guessed(spoken: tuple[Path, dict[str, str]]) -> None:
    root, said = spoken
    [text] = [text for command, text in said.items() if command.startswith("fedsift audit")]
    found = {line.split()[1]: line for line in text.splitlines() if "clinic-" in line and "│" in line}
    assert len(found) == 5
    assert "wrong labels" in found["clinic-e"]
    assert all("no evidence" in line for site, line in found.items() if site != "clinic-e")
    for name in ("labels.csv", "report.html", "review", "ledger.jsonl"):
        assert (root / "audit/sites/clinic-e" / name).exists()
    assert (root / "audit/consortium.html").is_file()
