"""The label audit's product: from a typed result (`SiteAudit`) to table, page, review, ledger and corrections."""

from typing import TYPE_CHECKING

from fedsift.contract.lazy import lazy

if TYPE_CHECKING:
    from fedsift.audits.consortium import write_consortium
    from fedsift.audits.findings import (
        Evidence,
        Finding,
        Issue,
        Issues,
        Origin,
        Rate,
        SiteAudit,
        Thumbnails,
        issues,
    )
    from fedsift.audits.originals import origin_of
    from fedsift.audits.release import SiteRow
    from fedsift.audits.write import array_thumbnails, open_site, write_site

_HOMES = {
    "consortium": ("write_consortium",),
    "findings": (
        "Evidence",
        "Finding",
        "Issue",
        "Issues",
        "Origin",
        "Rate",
        "SiteAudit",
        "Thumbnails",
        "issues",
    ),
    "originals": ("origin_of",),
    "release": ("SiteRow",),
    "write": (
        "array_thumbnails",
        "open_site",
        "write_site",
    ),
}

__getattr__ = lazy(__name__, {name: f"{__name__}.{home}" for home, names in _HOMES.items() for name in names})

__all__ = [
    "Evidence",
    "Finding",
    "Issue",
    "Issues",
    "Origin",
    "Rate",
    "SiteAudit",
    "SiteRow",
    "Thumbnails",
    "array_thumbnails",
    "issues",
    "open_site",
    "origin_of",
    "write_consortium",
    "write_site",
]
