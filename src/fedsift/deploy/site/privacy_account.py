"""A site's privacy account: one line a release, written before anything leaves, added up over all runs.

The account belongs to a dataset, by the name that the site gives it, not to a run or to a file: corrected labels or a
few more samples do not make it a new one. Whatever is not an update leaves without noise and is no part of the
account; the list of what left says which fields these were.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from fedsift.core.errors import RunError
from fedsift.core.files import private_folder
from fedsift.core.process import file_lock

FOLDER = "privacy"


class BudgetRefused(RunError):
    """The site's policy does not allow it. The words may travel: they speak of rules, not of data."""


@dataclass(frozen=True)
class PrivacyCharge:
    """One release."""

    run: str
    request: str
    rho: float
    """Its cost in zero-concentrated differential privacy; for labels, the epsilon that it spends on each."""
    updates: int
    clip: float
    noise: float
    digest: str = ""
    """Of what left, where the same may leave again for nothing."""


class PrivacyAccount:
    """The releases of one dataset. `budget`: the most that they may cost together; None counts without a limit.

    `name`: what the budget is called where it refuses a release.
    """

    def __init__(self, path: Path, budget: float | None = None, name: str = "privacy budget") -> None:
        self.path, self.budget, self.name = path, budget, name

    @property
    def spent(self) -> float:
        return math.fsum(charge.rho for charge in self.charges())

    def charges(self) -> list[PrivacyCharge]:
        """Every release so far. A last line that was cut off in writing is none: nothing had left by then."""
        try:
            text = self.path.read_text("utf-8")
        except FileNotFoundError:
            return []
        whole, _, _ = text.rpartition("\n")
        try:
            rows = [json.loads(line) for line in whole.splitlines()]
            known = [field.name for field in dataclasses.fields(PrivacyCharge) if field.name != "digest"]
            return [PrivacyCharge(**{key: row[key] for key in known}, digest=row.get("digest", "")) for row in rows]
        except (ValueError, KeyError, TypeError):
            raise BudgetRefused(
                f"the privacy account {self.path.name} is damaged, so nothing is released: restore it from a copy"
            ) from None

    def objection(self, rho: float) -> str | None:
        """Why a release of this cost is not made, or None."""
        if self.budget is None or self.spent + rho <= self.budget * (1 + 1e-9):
            return None
        left = max(0.0, self.budget - self.spent)
        return (
            f"this site's {self.name} does not allow it: {left:.4g} of {self.budget:.4g} is left, a release costs "
            f"{rho:.4g}"
        )

    def charge(self, charge: PrivacyCharge) -> None:
        """Record a release before it leaves; raises `BudgetRefused` when the budget does not allow it."""
        private_folder(self.path.parent)
        with self._locked():
            if charge.digest and charge.digest in {known.digest for known in self.charges()}:
                return
            reason = self.objection(charge.rho)
            if reason is not None:
                raise BudgetRefused(reason)
            line = {"at": datetime.now(UTC).isoformat(timespec="seconds"), **vars(charge)}
            self._append(json.dumps(line) + "\n")

    def _append(self, line: str) -> None:
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "r+b") as file:
            content = file.read()
            file.seek(content.rfind(b"\n") + 1)  # over a line that was cut off
            file.truncate()
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())

    def _locked(self) -> AbstractContextManager[object]:
        return file_lock(self.path.with_suffix(".lock"))
