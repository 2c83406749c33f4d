"""Co-teaching at a site: each network learns from the samples that the other finds easy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedsift.contract.messages import Reply
from fedsift.local import losses
from fedsift.local.extras import Extra, PerSite
from fedsift.local.objective import Term, View
from fedsift.local.pairs import TrainedPair, TrainPair
from fedsift.local.site import Site
from fedsift.local.trainer import Result
from fedsift.signals.noise_rate import noise_rate

NAME = "co-teaching"
LOSSES = "co-teaching losses"
"""The notebook page of each sample's loss when it was last trained on, `[n]`."""
FORGOTTEN = "co-teaching forgotten share"
"""What the term below needs: R(t), the share of a batch that is left out."""
SURENESS = "co-teaching sureness"
"""The notebook page of each sample's largest probability then, and whether that was the given label's: `[n, 2]`."""
ESTIMATE = "co-teaching noise rate"
"""The notebook page of the site's own estimate of its noise rate."""


@dataclass(frozen=True)
class PeersChoice(Term):
    """Mean cross-entropy over the floor((1 - R) B) samples on which the *other* network's loss is smallest (Alg. 1
    lines 5-8). A mean once: the release divides it by their number again."""

    needs: ClassVar[frozenset[str]] = frozenset({"twin", FORGOTTEN, LOSSES, SURENESS})

    def memory(self, classes: int) -> Mapping[str, tuple[int, ...]]:
        return {LOSSES: (), SURENESS: (2,)}

    def value(self, view: View) -> Tensor:
        assert view.twin is not None
        own = losses.cross_entropy(view.logits, view.target)
        chosen = losses.small_loss(
            losses.cross_entropy(view.twin, view.target), view.site(FORGOTTEN), view.present
        )
        view.keep(LOSSES, own)
        view.keep(SURENESS, losses.sureness(view.logits, view.target))
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
        rate = site.notebook.get(ESTIMATE, 0.0) if self.noise_rate is None else self.noise_rate
        return {FORGOTTEN: PerSite(torch.tensor(self.ramp * rate, dtype=torch.float64))}

    def reply(self, site: Site, result: Result | None) -> TrainedPair:
        assert result is not None and result.twin is not None
        self.judge(site, result, result.twin)
        return super().reply(site, result)

    def judge(self, site: Site, *networks: Result) -> None:
        """The estimate: of the mean loss of both networks, and of the mean of what each says of its surest samples."""
        seen = torch.stack([network.rows[LOSSES] for network in networks]).mean(0)
        found = [noise_rate(seen, *network.rows[SURENESS].unbind(-1)) for network in networks]
        flagged = torch.zeros(len(seen), dtype=torch.bool)
        flagged[torch.from_numpy(found[0][1])] = True
        site.notebook[ESTIMATE] = sum(rate for rate, _ in found) / len(found)
        site.keep_evidence(NAME, suspicion=seen, flagged=flagged)
