"""A site's notebook: what it keeps for itself between requests, restarts and rounds."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any


class Notebook(MutableMapping[str, Any]):
    """Named pages (tensors and plain values) that never leave the site.

    A request works on a copy; only when it has been answered does the copy become the notebook. Values are replaced,
    never changed in place: an older copy must stay what it was.
    """

    def __init__(self, pages: dict[str, Any] | None = None) -> None:
        self._pages: dict[str, Any] = dict(pages or {})
        self.written = False
        """Whether anything was written since this copy was opened."""

    def __getitem__(self, page: str) -> Any:
        return self._pages[page]

    def __setitem__(self, page: str, value: Any) -> None:
        self._pages[page] = value
        self.written = True

    def __delitem__(self, page: str) -> None:
        del self._pages[page]
        self.written = True

    def __iter__(self) -> Iterator[str]:
        return iter(self._pages)

    def __len__(self) -> int:
        return len(self._pages)

    def pages(self) -> dict[str, Any]:
        return dict(self._pages)
