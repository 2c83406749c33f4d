"""Networks as the papers use them, by name; one file a family.

`build_model(name, shape, n_classes, seed)` takes a registered name or `package.module:callable`. Every
registered network splits into `features(x) -> [B, F]` and `head(features) -> [B, K]`.

Batch norm cannot train on one value a channel: a network whose last map is 1x1 fails on a batch of one
sample. The trainer therefore joins a last batch of one sample to the batch before it; a caller with a loop of
its own should too.

Dropout layers are exchanged for `Dropout`, whose draws a cohort trainer can repeat site by site.
"""

from fedsift.core.registry import import_modules

import_modules(__name__, __path__)
