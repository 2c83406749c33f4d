"""Weights in, weights out."""

from fedsift.aggregate.average import Merge, average, server_step, weighted_average
from fedsift.aggregate.consensus import consensus_shares
from fedsift.aggregate.distance_aware import DistanceAware, distance_aware, pair_distances
from fedsift.aggregate.drift import (
    feddyn_anchor,
    feddyn_cloud,
    feddyn_memory,
    relative_sizes,
    scaffold_change,
    scaffold_correction,
    scaffold_server_variate,
    scaffold_variate,
)
from fedsift.aggregate.residual import ResidualAverage, residual_average
from fedsift.aggregate.robust import coordinate_median, trimmed_mean
from fedsift.aggregate.weights import flatten, shares_of, unflatten

__all__ = [
    "DistanceAware",
    "Merge",
    "ResidualAverage",
    "average",
    "consensus_shares",
    "coordinate_median",
    "distance_aware",
    "feddyn_anchor",
    "feddyn_cloud",
    "feddyn_memory",
    "flatten",
    "pair_distances",
    "relative_sizes",
    "residual_average",
    "scaffold_change",
    "scaffold_correction",
    "scaffold_server_variate",
    "scaffold_variate",
    "server_step",
    "shares_of",
    "trimmed_mean",
    "unflatten",
    "weighted_average",
]
