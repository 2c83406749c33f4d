"""The label audit's product: from a typed result (`SiteAudit`) to table, page, review, ledger and corrections."""

from fedsift.audit.consortium import write_consortium
from fedsift.audit.findings import (
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
from fedsift.audit.originals import origin_of
from fedsift.audit.release import SiteRow, release
from fedsift.audit.write import array_thumbnails, open_site, write_site

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
    "release",
    "write_consortium",
    "write_site",
]
