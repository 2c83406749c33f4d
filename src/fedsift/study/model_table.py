"""The `[model]` table: which network every site trains, and what it starts from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fedsift.contract.errors import ConfigError
from fedsift.data.places import data_roots
from fedsift.models.weights import IMAGENET, Origin, find_weights


@dataclass(frozen=True)
class ModelTable:
    """`[model]`: the network that the sites train."""

    name: str = "cnn"
    cycle: tuple[str, ...] = ()
    """Networks for the sites in turn, instead of `name`: the first site trains the first, and so on."""
    sites: dict[str, str] = field(default_factory=dict)
    """Another network for a site, by the site's name; it comes before `cycle`."""
    weights: str = ""
    """Initial weights: a .safetensors or torch state file, `package.module:name`, or "imagenet" for the network's file
    in a folder `weights` of the data folders. Sites with models of their own draw theirs."""

    def __post_init__(self) -> None:
        if self.weights and (self.cycle or self.sites):
            raise ConfigError("model.weights serve one network: leave model.cycle and model.sites out")

    @property
    def origin(self) -> Origin | None:
        """Where the initial weights come from; None draws them."""
        return find_weights(self.weights, self.name, data_roots()) if self.weights else None

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person must know of the initial weights."""
        if self.weights != IMAGENET or self.origin is not None:
            return ()
        return (
            f"architecture only: {self.name} is to start from ImageNet weights, which are not at hand and are drawn "
            f"instead; set model.weights, or put {self.name}.safetensors or .pth into a folder weights of FEDSIFT_DATA",
        )

    @property
    def networks(self) -> tuple[str, ...]:
        """Every network that the table names."""
        return (self.name, *self.cycle, *self.sites.values())

    def of_sites(self, sites: Sequence[str]) -> dict[str, str]:
        """The network of each site."""
        turn = self.cycle or (self.name,)
        return {site: self.sites.get(site, turn[number % len(turn)]) for number, site in enumerate(sites)}
