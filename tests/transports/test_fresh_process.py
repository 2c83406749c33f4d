"""A site's process knows every request that may arrive, the label audit's too, without anybody importing them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def printed(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120).stdout


def test_a_site_s_process_knows_the_requests_of_the_label_audit() -> None:
    code = "import fedsift.transports.remote.answering\nfrom fedsift.protocol.messages import Request\n"
    code += (
        "def below(kind):\n    return {kind.__name__}.union(*map(below, kind.__subclasses__()))\nprint(below(Request))"
    )
    assert {"CountLabels", "JudgeLabels", "Train"} <= set(printed(code).replace("'", " ").replace(",", " ").split())


def test_approval_counts_the_requests_of_the_label_audit(tmp_path: Path) -> None:
    code = "import sys, pathlib\nfrom fedsift.deploy.site.consent import approve\napprove(pathlib.Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=120)
    approved = (tmp_path / "approved.json").read_text("utf-8")
    assert "JudgeLabels" in approved and "LabelsJudged.evidence" in approved
