"""Lists of dicts that become a pandas table where pandas is installed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fedsift.core.errors import ConfigError


class Rows(list[dict[str, Any]]):
    """Rounds or sites, one dict each, in order."""

    def __init__(self, rows: Iterable[dict[str, Any]] = ()) -> None:
        super().__init__(rows)

    def column(self, name: str) -> list[Any]:
        """One value of every row; None where a row has none."""
        if self and not any(name in row for row in self):
            known = dict.fromkeys(key for row in self for key in row)
            raise ConfigError(f"no row has '{name}': there are {', '.join(known)}")
        return [row.get(name) for row in self]

    def frame(self) -> Any:
        """A pandas DataFrame, one line a row."""
        try:
            import pandas
        except ImportError:
            raise ConfigError(
                "frame() needs pandas, which is not installed: pip install pandas, or use the rows as they are"
            ) from None
        return pandas.DataFrame(list(self))
