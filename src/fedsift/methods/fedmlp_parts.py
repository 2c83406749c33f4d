"""What FedMLP's server makes of a federation, its replies and its network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedsift.contract import ConfigError, Federation, Replies, Reply, Weights
from fedsift.local.partial import annotated_classes
from fedsift.local.requests import Trained
from fedsift.methods.fedmlp_site import Portrait, TagCounts, measured_classes
from fedsift.signals.prototypes import Prototypes, global_prototypes
from fedsift.signals.selection import global_difficulty


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


def record_tags(replies: Replies[Trained], federation: Federation) -> None:
    """How far tagging is; a stall is warned of."""
    counts = {site: part for site, part in parts_of(replies) if isinstance(part, TagCounts)}
    new = sum(count.new for count in counts.values())
    left = sum(count.left for count in counts.values())
    federation.record(tags_new=new, tags_left=left)
    federation.record_sites("tags_left", {site: count.left for site, count in counts.items()})
    if left and not new:
        federation.warn(
            "no site tagged a label in some round though some are left: the floor in tau stalls; "
            "method.min_select = 1 goes on"
        )


def average_prototypes(
    portraits: Mapping[str, Portrait],
    sizes: Sequence[int],
    federation: Federation,
    weighting: Literal["size", "equal"],
) -> Prototypes:
    """P_n^c over the sites that annotate c and hold that side, eq. 6."""
    k = len(federation.classes)
    local = []
    for site, portrait in portraits.items():
        active = annotated_classes(federation.facts[site], k)
        vectors = np.zeros((k, *portrait.prototypes.shape[1:]))
        held = np.zeros((k, 2), np.bool_)
        vectors[active], held[active] = portrait.prototypes.double().numpy(), portrait.held.numpy()
        local.append(Prototypes(vectors, held))
    return global_prototypes(local, sizes, weighting)


def average_difficulty(
    portraits: Mapping[str, Portrait],
    sizes: Sequence[int],
    federation: Federation,
    over: Literal["missing", "active"],
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """d_c^G by size, eq. 10, `[K]`; and which classes anybody measured."""
    k = len(federation.classes)
    local, active = np.zeros((len(portraits), k)), np.zeros((len(portraits), k), np.bool_)
    measured = np.zeros(k, np.bool_)
    for row, (site, portrait) in enumerate(portraits.items()):
        facts = federation.facts[site]
        classes = measured_classes(facts, k, over)
        local[row, classes] = portrait.difficulty.numpy()
        active[row, annotated_classes(facts, k)] = True
        measured[classes] = True
    return global_difficulty(local, sizes, active, over), measured
