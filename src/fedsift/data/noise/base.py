"""The interface of a noise model: clean labels in, given labels and the nominal noise level of each site out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedsift.core.errors import ConfigError
from fedsift.core.ranges import RangeChecked
from fedsift.core.registry import Registry
from fedsift.data.dataset import Dataset, Labels, Rows

POOL = "pool"
"""The name of the whole training set where it is corrupted at once, before it is divided among sites."""

Generators = Callable[..., np.random.Generator]
"""Names and numbers to a generator: the same names give the same draws, in whatever order."""


@dataclass(frozen=True)
class NoiseInput:
    """What a noise model sees: each site's clean labels, their rows in the dataset, generators by name.

    clean[site]: `[n]` class numbers or `[n, K]` zeros and ones. rows[site]: rows into `dataset`.
    """

    clean: Mapping[str, Labels]
    n_classes: int
    generator: Generators
    rows: Mapping[str, Rows] = field(default_factory=dict)
    dataset: Dataset | None = None

    @property
    def sites(self) -> list[str]:
        return list(self.clean)

    @property
    def multilabel(self) -> bool:
        return any(labels.ndim == 2 for labels in self.clean.values())


@dataclass(frozen=True)
class NoisyLabels:
    """The labels that sites get (`given`), nominal rates (`level`), and the sites that are noisy.

    annotated[site]: boolean `[K]`, classes that the site annotates (None: all of them, everywhere).
    known: whether the clean labels are the truth; False when nobody knows it.
    """

    given: dict[str, Labels]
    level: dict[str, float]
    noisy: tuple[str, ...]
    annotated: dict[str, NDArray[np.bool_]] | None = None
    known: bool = True
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Noise(RangeChecked):
    """Base of all noise models. Subclasses add the paper's symbols as fields and say how they corrupt labels."""

    summary: ClassVar[str] = ""
    tasks: ClassVar[tuple[str, ...]] = ("multiclass",)

    @property
    def before_partition(self) -> bool:
        """True: the whole training set is corrupted once, and then divided among sites (the site is `POOL`)."""
        return False

    def corrupt(self, scene: NoiseInput) -> NoisyLabels:
        raise TypeError(f"{type(self).__name__} does not implement how it corrupts labels")


noises: Registry[type[Noise]] = Registry("noise model", base=Noise, group="fedsift.noises")


def need_rate(name: str, symbol: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise ConfigError(f"noise '{name}': {symbol} is a rate in [0, 1], not {value}")


# Labels that are not touched
# ------------------------------------------------------------------------------


@noises.register("clean")
@dataclass(frozen=True)
class Clean(Noise):
    """No noise: every site gets the labels of the source, which are taken for the truth."""

    summary: ClassVar[str] = "labels as they are, taken for the truth"
    tasks: ClassVar[tuple[str, ...]] = ("multiclass", "multilabel")

    @property
    def before_partition(self) -> bool:
        return True

    def corrupt(self, scene: NoiseInput) -> NoisyLabels:
        known = scene.dataset is None or scene.dataset.trusted
        return NoisyLabels(
            given={site: labels.copy() for site, labels in scene.clean.items()},
            level=dict.fromkeys(scene.sites, 0.0),
            noisy=(),
            known=known,
        )


@noises.register("as-given")
@dataclass(frozen=True)
class AsGivenLabels(Noise):
    """Labels as the annotators gave them.

    The truth is known only if the source brings true labels beside the given ones; otherwise nothing is
    measured against it. This is the model for a user's own data.
    """

    summary: ClassVar[str] = "labels as annotated; the truth is unknown unless the source brings it"
    tasks: ClassVar[tuple[str, ...]] = ("multiclass", "multilabel")

    @property
    def before_partition(self) -> bool:
        return True

    def corrupt(self, scene: NoiseInput) -> NoisyLabels:
        annotations = None if scene.dataset is None else scene.dataset.given
        if annotations is None:
            given = {site: labels.copy() for site, labels in scene.clean.items()}
        else:
            given = {site: annotations[scene.rows[site]].copy() for site in scene.sites}
        wrong = {site: float((given[site] != scene.clean[site]).mean()) for site in scene.sites}
        return NoisyLabels(
            given=given,
            level=wrong,
            noisy=tuple(site for site in scene.sites if wrong[site] > 0),
            known=annotations is not None,
        )
