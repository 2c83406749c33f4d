"""docs/api.md: the audit's example, performed on arrays whose wrong labels are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.docs.blocks import blocks

PAGE = Path(__file__).parents[2] / "docs" / "api.md"


def test_the_audit_example_finds_wrong_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two classes that a line parts, 300 rows at each of two sites; 60 of north's labels are turned round."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    true = np.arange(600) % 2
    rows = (rng.normal(size=(600, 4)) + 6.0 * true[:, None]).astype(np.float32)
    turned = np.arange(0, 300, 5)
    labels = true.copy()
    labels[turned] = 1 - labels[turned]
    sure = np.where(np.eye(2)[true] > 0, 0.97, 0.03)
    scope = {
        "images": rows,
        "labels": labels,
        "hospital": np.repeat(["north", "south"], 300),
        "probabilities": sure,
    }
    [script] = [block.text for block in blocks(PAGE) if "fedsift.audit(" in block.text]
    exec(compile(f"import fedsift\n{script}", "docs/api.md", "exec"), scope)
    listed = {int(issue.id) for issue in scope["found"].issues}  # type: ignore[attr-defined]
    assert listed == set(turned.tolist())
    suspects = scope["audit"].issues("north")  # type: ignore[attr-defined]
    assert len(suspects) >= 40
    assert all(issue.given_label != issue.proposed_label for issue in suspects)
    assert scope["audit"].issues("south") == []  # type: ignore[attr-defined]
    assert (tmp_path / "audit/sites/north/labels.csv").is_file()
