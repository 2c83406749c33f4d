"""Co-teaching at a site: each network learns from the samples that the other finds easy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedsift.contract.messages import Reply
from fedsift.local import losses
from fedsift.local.extras import Extra
from fedsift.local.forgetting import FORGOTTEN, MEMORY, NEEDS, forgetting, judge, note
from fedsift.local.objective import Term, View
from fedsift.local.pairs import TrainedPair, TrainPair
from fedsift.local.site import Site
from fedsift.local.trainer import Result

NAME = "co-teaching"


@dataclass(frozen=True)
class PeersChoice(Term):
    """Mean cross-entropy over the floor((1 - R) B) samples on which the *other* network's loss is smallest (Alg. 1
    lines 5-8). A mean once: the release divides it by their number again."""

    needs: ClassVar[frozenset[str]] = NEEDS | {"twin"}

    def memory(self, classes: int) -> Mapping[str, tuple[int, ...]]:
        return MEMORY

    def value(self, view: View) -> Tensor:
        assert view.twin is not None
        own = losses.cross_entropy(view.logits, view.target)
        chosen = losses.small_loss(
            losses.cross_entropy(view.twin, view.target), view.site(FORGOTTEN), view.present
        )
        note(view, own)
        return (own * chosen).sum(-1) / chosen.sum(-1).clamp(min=1)


@dataclass(frozen=True)
class TrainCoTaught(TrainPair):
    """Train two networks that choose samples for each other; then judge anew how many labels are wrong."""

    reply_type: ClassVar[type[Reply]] = TrainedPair

    ramp: float = 1.0
    """R(t) / tau: how much of the noise rate is left out by now."""
    noise_rate: float | None = None
    """tau; None: what the site itself estimated at its last visit, nothing before the first."""

    def extras(self, site: Site) -> dict[str, Extra]:
        return forgetting(site, self.ramp, self.noise_rate)

    def reply(self, site: Site, result: Result | None) -> TrainedPair:
        assert result is not None and result.twin is not None
        judge(site, NAME, result, result.twin)
        return super().reply(site, result)
