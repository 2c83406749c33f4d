"""Additional inputs of a cohort's jobs (teachers, priors, labels), stacked along a first axis of sites."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fedsift.protocol.messages import Weights
from fedsift.training import native
from fedsift.training.job import TrainingJob
from fedsift.training.objective import FollowerNetwork, FrozenNetwork, PerParameter, PerSample, PerSite
from fedsift.training.stacked.batches import CohortStep
from fedsift.training.stacked.network import StackedNetwork
from fedsift.training.trainer import follow

Judge = Callable[[CohortStep], Tensor]


class CohortExtras:
    """What the terms of alike jobs need beyond the batch.

    network: the one that trains, whose parameters' layout the per-parameter tensors take.
    stacked: the stacked form of the same model for a slot of that name, for frozen networks that differ by site.
    """

    def __init__(
        self, jobs: Sequence[TrainingJob], network: StackedNetwork, stacked: Callable[[str], StackedNetwork]
    ) -> None:
        self._per_parameter: dict[str, list[Tensor]] = {}
        self._tables: dict[str, Tensor] = {}
        self._networks: dict[str, Judge] = {}
        self._per_site: dict[str, Tensor] = {}
        self._rates: dict[str, float] = {}
        self._replaced: dict[str, None] = {}
        self._followers: dict[str, tuple[StackedNetwork, list[FollowerNetwork]]] = {}
        self._steps = 0
        self._views, self._sites = jobs[0].recipe.shown, len(jobs)
        self._written: set[str] = set()
        needed = [job.needed() for job in jobs]
        for name in needed[0]:
            every = [own[name] for own in needed]
            if isinstance(every[0], PerParameter):
                tensors = [extra.tensors for extra in every if isinstance(extra, PerParameter)]
                self._per_parameter[name] = network.arrange(tensors)
            elif isinstance(every[0], PerSample):
                self._tables[name] = torch.cat([own.rows for own in every if isinstance(own, PerSample)])
            elif isinstance(every[0], PerSite):
                self._per_site[name] = torch.stack([own.tensor for own in every if isinstance(own, PerSite)])
                if every[0].lr > 0:
                    self._per_site[name].requires_grad_()
                    self._rates[name] = every[0].lr
            elif isinstance(every[0], FollowerNetwork):
                behind = [own for own in every if isinstance(own, FollowerNetwork)]
                self._followers[name] = stacked(f"following: {name}"), behind
                self._followers[name][0].load([own.weights for own in behind])
            else:
                self._networks[name] = _frozen(name, jobs, every, stacked)

    def at(self, step: CohortStep) -> dict[str, Any]:
        """For a step's k sites: tensors `[k, ...]` (`[1, ...]` where all share one), rows and logits `[k, B, *]`."""
        k = step.sites
        extras: dict[str, Any] = {
            name: [own[:k] if len(own) > 1 else own for own in tensors] for name, tensors in self._per_parameter.items()
        }
        extras |= {name: tensor[:k] for name, tensor in self._per_site.items()}
        extras |= {name: judge(step) for name, judge in self._networks.items()}
        extras |= {name: _follower_judges(network, step) for name, (network, _) in self._followers.items()}
        extras |= {name: step.mixed(table[step.places]) for name, table in self._tables.items()}
        return extras

    @property
    def leaves(self) -> list[Tensor]:
        """Per-site tensors that learn, `[C, *]` each."""
        return [self._per_site[name] for name in self._rates]

    def learn(self, gradients: Sequence[Tensor]) -> None:
        """One step of each of them; sites that are done have no gradient."""
        with torch.no_grad():
            for (name, lr), gradient in zip(self._rates.items(), gradients):
                self._per_site[name] -= lr * gradient

    def learnt(self) -> list[dict[str, Tensor]]:
        """Each site's per-site tensors that have learnt or were written to."""
        return [
            {name: self._per_site[name][site].detach().clone() for name in {**self._rates, **self._replaced}}
            for site in range(self._sites)
        ]

    def lead(self, network: StackedNetwork) -> None:
        """Let the active sites' followers follow the step just made."""
        self._steps += 1
        for follower, behind in self._followers.values():
            steps = [1 - own.decay_at(self._steps) for own in behind[: network.sites]]
            follow(follower.active(), network.active(), torch.tensor(steps, dtype=torch.float64))

    def followers(self) -> list[dict[str, Weights]]:
        """Each site's followers as training left them."""
        every = {name: network.weights() for name, (network, _) in self._followers.items()}
        return [{name: own[site] for name, own in every.items()} for site in range(self._sites)]

    def write(self, name: str, step: CohortStep, rows: Tensor) -> None:
        """Put new rows `[k, B, *]` of the first view in their places; padding has none.

        Per-site tensors are replaced as a whole, `[k, *]`, in a copy: the step's gradient may still need the old ones.
        """
        if name in self._per_site:
            self._replaced[name] = None
            self._per_site[name] = torch.cat([rows, self._per_site[name][len(rows) :]])
            return
        self._written.add(name)
        width = step.places.shape[1] // self._views
        places, new = step.places[:, :width], rows[:, :width]
        real = step.present[:, :width] > 0
        if bool(real.all()):  # choosing rows by a mask costs several times what writing them does
            self._tables[name].index_copy_(0, places.reshape(-1), new.reshape(-1, *new.shape[2:]))
        else:
            self._tables[name][places[real]] = new[real]

    def written(self, sizes: list[int]) -> list[dict[str, Tensor]]:
        """Each site's tables that were written to, `[n, *]`."""
        parts = {name: torch.split(self._tables[name], sizes) for name in sorted(self._written)}
        return [{name: part[site].clone() for name, part in parts.items()} for site in range(len(sizes))]


def _follower_judges(network: StackedNetwork, step: CohortStep) -> Tensor:
    """Logits `[k, B, K]` of the step's view for followers, or of its samples where there is none."""
    if step.sites < network.sites:
        network.activate(step.sites)
    with torch.no_grad():
        return network.forward(step.samples if step.aside is None else step.aside, train=False)


def _frozen(
    name: str, jobs: Sequence[TrainingJob], extras: Sequence[Any], stacked: Callable[[str], StackedNetwork]
) -> Judge:
    """Logits `[k, B, K]` of frozen networks: one for all sites where they share its weights, else a stacked one."""
    weights = [extra.weights for extra in extras if isinstance(extra, FrozenNetwork)]
    slot = f"frozen {name}"
    shares = all(own is weights[0] for own in weights)
    if shares and native.library() is not None:
        # a cohort of one that sees the batches of all sites as one: the kernels are the trainer's own
        one = stacked(slot)
        one.load(weights[:1])

        def judge_as_one(step: CohortStep) -> Tensor:
            with torch.no_grad():
                logits = one.forward(step.samples.flatten(0, 1).unsqueeze(0), train=False)
            return logits.view(step.sites, -1, logits.shape[-1])

        return judge_as_one
    if shares:
        shared = jobs[0].site.network(weights[0], slot=slot).eval().requires_grad_(False)

        def judge(step: CohortStep) -> Tensor:
            images = step.samples.flatten(0, 1)
            if images.dim() == 4:
                images = images.contiguous(memory_format=torch.channels_last)
            with torch.no_grad():
                logits: Tensor = shared(images)
            return logits.view(step.sites, -1, logits.shape[-1])

        return judge
    network = stacked(slot)
    network.load(weights)

    def judge_each(step: CohortStep) -> Tensor:
        if step.sites < network.sites:
            network.activate(step.sites)
        with torch.no_grad():
            return network.forward(step.samples, train=False)

    return judge_each
