"""What FedMLP's server reads from a federation, its replies and its network."""

from __future__ import annotations

from fedsift.contract import ConfigError, Federation, Replies, Reply, Weights
from fedsift.local.partial import annotated_classes
from fedsift.local.requests import Trained


def warn_of_gaps(federation: Federation) -> None:
    """Say which classes no site annotates."""
    seen = {
        c for facts in federation.facts.values() for c in annotated_classes(facts, len(federation.classes))
    }
    for c, name in enumerate(federation.classes):
        if c not in seen:
            federation.warn(f"no site annotates '{name}': nothing can be learnt about it")


def parts_of(replies: Replies[Trained]) -> list[tuple[str, Reply]]:
    """Everything that was asked beside training, with its site."""
    return [(site, part) for site, reply in replies.items() for part in reply.then]


def feature_width(weights: Weights) -> int:
    """F: inputs of the network's head."""
    head = weights.get("head.weight")
    if head is None or head.dim() != 2:
        raise ConfigError(
            "method 'fedmlp' compares features: its network needs a linear layer called 'head' on top of "
            "features(x); use a registered model, or name the last layer of your own so"
        )
    return int(head.shape[1])
