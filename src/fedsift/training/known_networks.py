"""Checks network names in messages: registered networks, or exactly those that the user of this machine listed.

A study, a site.toml and the API may name a network by its address, `package.module:Name`, which imports and calls code.
That decision belongs to this machine's user; a message never makes it.
"""

from __future__ import annotations

from collections.abc import Collection

from fedsift.core.errors import ConfigError
from fedsift.core.text import short
from fedsift.core.type_checks import shown
from fedsift.models.factory import models
from fedsift.models.head import parse_features
from fedsift.training.features import extractors, is_features

LONGEST_NAME = 200
SIDES = range(16, 512 + 1)
"""Of the pictures that a message may ask a site to embed: smaller ones show nothing, larger ones only cost."""
MOST_HIDDEN = 8192
"""Units of a head's hidden layer that a message may ask for."""


def unknown_network(name: str, written: Collection[str] = ()) -> str | None:
    """Why a network that a message names is not built here, or None. `written`: names that a person here wrote.

    "" stands for the study's own network and is nobody's choice.
    """
    if not name or name in written:
        return None
    if len(name) > LONGEST_NAME:
        return f"a network's name has {len(name)} characters"
    if is_features(name):
        return _unknown_features(name)
    if name in models:
        return None
    kind = "an address, which only a person at this side may write" if ":" in name else "not registered here"
    return f"the network '{shown(name)}' is {kind}"


def _unknown_features(name: str) -> str | None:
    try:
        extractor, side, hidden = parse_features(name)
    except ConfigError as error:
        return short(error)
    if extractor not in extractors:
        return f"the feature extractor '{shown(extractor)}' is not registered here"
    if side is not None and side not in SIDES:
        wanted = f"the network '{shown(name)}' wants pictures of side {side}"
        return f"{wanted}, a message may ask for {SIDES[0]} to {SIDES[-1]}"
    if hidden > MOST_HIDDEN:
        return f"the network '{shown(name)}' wants {hidden} hidden units, {MOST_HIDDEN} is the most"
    return None
