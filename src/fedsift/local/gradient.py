"""The gradient of an objective over all of a site's samples at once."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from fedsift.contract.messages import Weights
from fedsift.local.objective import Objective, View
from fedsift.local.predict import BATCH
from fedsift.local.site import Site


def mean_gradient(site: Site, weights: Weights, objective: Objective) -> Weights:
    """The gradient of the mean objective at these weights, by the name of each trained parameter.

    In inference mode and without augmentation; for objectives of terms that look at logits and labels alone.
    """
    network = site.network(weights).eval()
    parameters = {name: value for name, value in network.named_parameters() if value.requires_grad}
    n, labels = len(site.samples), site.labels
    total = {name: torch.zeros_like(value) for name, value in parameters.items()}
    for start in range(0, n, BATCH):
        places = torch.arange(start, min(start + BATCH, n))
        logits = network(site.samples.take(places))
        own = labels[places].to(logits.device)
        target = (own if site.multilabel else F.one_hot(own, site.n_classes)).to(logits.dtype)
        present = torch.ones(len(places), dtype=logits.dtype, device=logits.device)
        value = objective.value(View(logits=logits, target=target, present=present))
        gradients = torch.autograd.grad(value, list(parameters.values()))
        for name, gradient in zip(parameters, gradients):
            total[name] += gradient * (len(places) / n)
    return {name: value.cpu() for name, value in total.items()}
