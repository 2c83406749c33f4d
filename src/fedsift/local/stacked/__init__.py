"""The stacked cohort: many sites' copies of one network as one computation."""

from fedsift.local.stacked.layout import empty_samples
from fedsift.local.stacked.network import StackedNetwork
from fedsift.local.stacked.operations import Unstackable
from fedsift.local.stacked.optimiser import StackedOptimiser, clip_gradients

__all__ = ["StackedNetwork", "StackedOptimiser", "Unstackable", "clip_gradients", "empty_samples"]
