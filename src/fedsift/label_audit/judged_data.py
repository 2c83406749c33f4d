"""A digest of the data that an audit judged, so that its evidence is used for no other labels or models."""

from __future__ import annotations

import hashlib

from torch import Tensor

from fedsift.protocol.site import Samples, Site

DATA = "label audit data"
"""The notebook's page: the network that looked at the samples, and the fingerprint of all that it was shown."""
MODELS = "label audit models"
"""The page with the digest of the models that judged, which the site's ledger names."""


def data_of(site: Site) -> tuple[str, str]:
    """The network, and a fingerprint of the site's classes, given and annotated labels, groups and samples."""
    hasher = hashlib.blake2b(repr((site.classes, site.multilabel)).encode(), digest_size=16)
    for part in (site.given, site.known, site.groups):
        hasher.update(_fingerprint(part))
    for samples, labels in ((site.samples, None), (site.held_out, site.held_out_given)):
        if samples is not None and len(samples):
            hasher.update(_fingerprint(samples))
            hasher.update(_fingerprint(labels))
    return site.facts.model, hasher.hexdigest()


def _fingerprint(part: Tensor | Samples | None) -> bytes:
    if isinstance(part, Samples):
        return part.digest().encode()
    if part is None:
        return b"-"
    return repr(tuple(part.shape)).encode() + part.long().cpu().numpy().tobytes()


def note_data(site: Site) -> None:
    """Write the page where there is none yet: data that change during an audit are not those that it began with."""
    if DATA not in site.notebook:
        site.notebook[DATA] = data_of(site)
