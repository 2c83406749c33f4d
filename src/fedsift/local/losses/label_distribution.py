"""Labels that are learnt as distributions d = softmax(u) beside the network (FedELC): logits, u and targets are
`[..., B, K]`."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from fedsift.local.losses.multiclass import expected_value
from fedsift.local.losses.robust import entropy


def label_distribution_loss(
    logits: Tensor, u: Tensor, target: Tensor, kept: Tensor, alpha: float, beta: float, scale: float
) -> Tensor:
    """scale KL(p || d) + alpha kept (-log d_y) + scale beta H(p), `[..., B]` (FedELC; scale = 1/K as released).

    kept: 1 where the given label still has a say, `[..., B]`; all are in FedELC, MaskedOptim leaves some out.
    """
    log_p, log_d = F.log_softmax(logits, dim=-1), F.log_softmax(u, dim=-1)
    divergence = (log_p.exp() * (log_p - log_d)).sum(-1)
    faithful = -expected_value(target, log_d) * kept
    return scale * divergence + alpha * faithful + scale * beta * entropy(logits)


def stepped_labels(
    u: Tensor, logits: Tensor, target: Tensor, kept: Tensor, alpha: float, scale: float, rate: Tensor | float
) -> Tensor:
    """u - rate [scale (d - p) + alpha kept (d - e_y)]: one step of plain descent on the loss above, `[..., B, K]`.

    Its fixed point is d = (scale p + alpha e_y) / (scale + alpha): the given label never loses its share.
    """
    p, d = F.softmax(logits.detach(), dim=-1), F.softmax(u, dim=-1)
    return u - rate * (scale * (d - p) + alpha * kept.unsqueeze(-1) * (d - target))
