"""What is measured on predictions and losses: pure functions that know no site, device or engine."""

from fedsift.signals.confidence import confidence, site_confidence
from fedsift.signals.lid import lid, site_lid
from fedsift.signals.mixture import (
    Split,
    Vote,
    noisy_component,
    split_by_vote,
    split_matrix,
    split_values,
    vote,
)
from fedsift.signals.per_class import Normalised, normalise, per_class_mean
from fedsift.signals.rampup import rampup

__all__ = [
    "Normalised",
    "Split",
    "Vote",
    "confidence",
    "lid",
    "noisy_component",
    "normalise",
    "per_class_mean",
    "rampup",
    "site_confidence",
    "site_lid",
    "split_by_vote",
    "split_matrix",
    "split_values",
    "vote",
]
