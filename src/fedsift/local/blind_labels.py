"""Ask sites how many of their labels look as if nobody had looked at the sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedsift.contract.messages import Reply, Request, Weights, disclosed
from fedsift.local.predict import site_logits
from fedsift.local.site import Site
from fedsift.signals.reference import blind_share


@dataclass(frozen=True)
class BlindShare(Reply):
    """What a site estimates of its own labels."""

    share: float = disclosed(
        "estimated share of its labels that look drawn at random, by the received model", least=0, most=1
    )


@dataclass(frozen=True)
class TellBlindShare(Request[BlindShare]):
    """Estimate the share of blind labels under this model (signals/reference.py); three classes at least."""

    reply_type: ClassVar[type[Reply]] = BlindShare

    weights: Weights

    def answer(self, site: Site) -> BlindShare:
        p = torch.softmax(site_logits(site, self.weights).double(), -1)
        return BlindShare(blind_share(p.numpy(), site.labels.numpy()))
