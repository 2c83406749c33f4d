"""Weights in, weights out."""

from fedsift.aggregate.average import average, average_flat, server_step, weighted_average
from fedsift.aggregate.distance_aware import DistanceAware, distance_aware, pair_distances
from fedsift.aggregate.weights import flatten, shares_of, unflatten

__all__ = [
    "DistanceAware",
    "average",
    "average_flat",
    "distance_aware",
    "flatten",
    "pair_distances",
    "server_step",
    "shares_of",
    "unflatten",
    "weighted_average",
]
