"""Networks as the papers use them, by name; one file a family.

`build_model(name, shape, n_classes, seed)` takes a registered name or `package.module:callable`. Every
registered network splits into `features(x) -> [B, F]` and `head(features) -> [B, K]`.

Batch norm cannot train on one value a channel: a network whose last map is 1x1 fails on a batch of one
sample. The trainer therefore joins a last batch of one sample to the batch before it; a caller with a loop of
its own should too.

Dropout layers are exchanged for `Dropout`, whose draws a cohort trainer can repeat site by site.
"""

from fedsift.contract.registry import import_modules
from fedsift.models.dropout import Dropout, dropout_mask, with_repeatable_dropout
from fedsift.models.network import Network, has_features, require_features
from fedsift.models.registry import (
    Builder,
    ModelCard,
    buffers_of,
    build_model,
    check_model,
    describe,
    drawing_name,
    initial_weights,
    models,
    name_of_model,
)

import_modules(__name__, __path__)

__all__ = [
    "Builder",
    "Dropout",
    "ModelCard",
    "Network",
    "buffers_of",
    "build_model",
    "check_model",
    "describe",
    "drawing_name",
    "dropout_mask",
    "has_features",
    "initial_weights",
    "models",
    "name_of_model",
    "require_features",
    "with_repeatable_dropout",
]
