"""The label audit's product: from a typed result (`SiteAudit`) to table, page, review, ledger and corrections."""

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
from fedsift.audits.release import SiteRow, release
from fedsift.audits.write import array_thumbnails, open_site, write_site

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
