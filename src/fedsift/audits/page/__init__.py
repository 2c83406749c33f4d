"""A site's private page: one file without network, to look at the worst labels and to review them."""

from fedsift.audits.page.document import PAGE_LIMIT, render, shown_rows

__all__ = ["PAGE_LIMIT", "render", "shown_rows"]
