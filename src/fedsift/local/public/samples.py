"""Public samples: which of them, in which order, how augmented; the same at every site."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedsift.contract.codec import Wire
from fedsift.contract.errors import ConfigError, DataError
from fedsift.contract.federation import Federation
from fedsift.contract.randomness import derive, torch_generator
from fedsift.local import augment as augmentation
from fedsift.local.recipe import Augment
from fedsift.local.site import Samples, Site


def public_size(federation: Federation) -> int:
    """N_0, after making sure that every site has the same public samples in the same order."""
    without = [site for site, facts in federation.facts.items() if not facts.public]
    if without:
        raise ConfigError(f"site '{without[0]}' has no public samples: give it the set that [public] names")
    first = federation.facts[federation.sites[0]]
    for site, facts in federation.facts.items():
        if (facts.public, facts.public_digest) != (first.public, first.public_digest):
            raise ConfigError(
                f"site '{site}' has other public samples than '{first.name}' "
                f"({facts.public} and {first.public}, fingerprints {facts.public_digest[:8]} and "
                f"{first.public_digest[:8]}): copy one set to all sites"
            )
    return first.public


@dataclass(frozen=True)
class PublicPart(Wire):
    """Samples `start` to `stop` of one shuffle of the public set."""

    shuffle: int
    """Number of the shuffle: every communication epoch has its own."""
    start: int
    stop: int
    augment: Augment = field(default_factory=Augment)
    """Drawn alike at every site, so that teacher and student see the same image."""

    def __len__(self) -> int:
        return self.size

    @property
    def size(self) -> int:
        """As `len`, of any part that a message may name: of one that ends before it starts, 0."""
        return max(self.stop - self.start, 0)

    def positions(self, seed: int, total: int) -> Tensor:
        """int64 `[n]` into the public set."""
        return torch.randperm(total, generator=torch_generator(seed, "public order", self.shuffle))[
            self.start : self.stop
        ]

    def images(self, site: Site, order: Tensor) -> Tensor:
        """The samples at these places of the part, normalised and augmented: `[B, *shape]`."""
        public, seed = public_of(site), site.moment.seed
        positions = self.positions(seed, len(public))[order]
        generator = torch_generator(seed, "public augmentation", self.shuffle)
        draws = _at(augmentation.draw(self.augment, len(public), generator), self.start + order)
        return augmentation.apply(public.take(positions), self.augment, draws).to(site.compute.device)


def _at(draws: augmentation.Draws, places: Tensor) -> augmentation.Draws:
    columns = (draws.flip, draws.shift, draws.angle, draws.move)
    return augmentation.Draws(*(None if column is None else column[places] for column in columns))


def public_of(site: Site) -> Samples:
    if site.public is None:
        raise DataError(f"site '{site.name}' has no public samples: give it the set that [public] names")
    return site.public


class shared_dropout:
    """Dropout draws from torch's own stream: lend it one that all sites share, then put torch's back.

    Sites that learn the same lesson from the same weights must end with the same weights (FedDF).
    """

    def __init__(self, site: Site, purpose: str, shuffle: int) -> None:
        self._seed = derive(site.moment.seed, "public dropout", purpose, shuffle)
        self._fork = torch.random.fork_rng(devices=[])

    def __enter__(self) -> None:
        self._fork.__enter__()
        torch.manual_seed(self._seed)

    def __exit__(self, *problem: Any) -> None:
        self._fork.__exit__(*problem)
