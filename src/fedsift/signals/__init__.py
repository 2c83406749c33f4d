"""What is measured on predictions and losses: pure functions that know no site, device or engine."""

from fedsift.signals.choice import forget_rate, power_of_choice
from fedsift.signals.confidence import confidence
from fedsift.signals.credibility import Credibility, credibility, held_out_credibility, shares_of_confidence
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
from fedsift.signals.per_class import Normalised, means_of_sums, normalise, per_class_mean, per_class_sums
from fedsift.signals.privacy import (
    Posterior,
    posterior,
    project_on_simplex,
    randomised_response,
    response_noise,
    response_probabilities,
    shrink_to_uniform,
)
from fedsift.signals.prototypes import Prototypes, global_prototypes, local_prototypes
from fedsift.signals.rampup import rampup
from fedsift.signals.relabel import Relabelled, clean_set, relabel, relabel_all, relabel_sites
from fedsift.signals.selection import UNTAGGED, Tagging, global_difficulty, local_difficulty, tag

__all__ = [
    "UNTAGGED",
    "Credibility",
    "Normalised",
    "Posterior",
    "Prototypes",
    "Relabelled",
    "Split",
    "Tagging",
    "Vote",
    "clean_set",
    "confidence",
    "credibility",
    "forget_rate",
    "global_difficulty",
    "global_prototypes",
    "held_out_credibility",
    "lid",
    "local_difficulty",
    "local_prototypes",
    "means_of_sums",
    "noisy_component",
    "normalise",
    "per_class_mean",
    "per_class_sums",
    "posterior",
    "power_of_choice",
    "project_on_simplex",
    "rampup",
    "randomised_response",
    "relabel",
    "relabel_all",
    "relabel_sites",
    "response_noise",
    "response_probabilities",
    "shares_of_confidence",
    "shrink_to_uniform",
    "site_lid",
    "split_by_vote",
    "split_matrix",
    "split_values",
    "tag",
    "vote",
]
