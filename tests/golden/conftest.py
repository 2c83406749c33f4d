"""Say at the end of a run which golden entries the product lacks."""

from __future__ import annotations

import pytest
from golden_harness import MISSING


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reasons = set()
    for report in terminalreporter.stats.get("failed", []):
        text = str(report.longrepr)
        if MISSING in text:
            reasons.add(text[text.index(MISSING) + len(MISSING) :].strip())
    if reasons:
        terminalreporter.write_line(f"golden entries missing: {', '.join(sorted(reasons))}", yellow=True)
