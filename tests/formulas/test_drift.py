"""SCAFFOLD and FedDyn: one round by hand, and the fixed points that the papers promise."""

from __future__ import annotations

import numpy as np
import torch

from fedsift.formulas.aggregation import average, relative_sizes, server_step
from fedsift.formulas.losses import proximal
from fedsift.methods.feddyn import feddyn_anchor, feddyn_cloud, feddyn_memory
from fedsift.methods.scaffold import (
    scaffold_change,
    scaffold_correction,
    scaffold_server_variate,
    scaffold_variate,
)
from fedsift.protocol.messages import Weights


def one(*values: float) -> Weights:
    return {"w": torch.tensor(values, dtype=torch.float64)}


def test_relative_sizes() -> None:
    assert relative_sizes(None, 3) == [1.0, 1.0, 1.0]
    np.testing.assert_allclose(relative_sizes([10, 30, 20], 3), [0.5, 1.5, 1.0])


def test_scaffold_by_hand() -> None:
    own, server = one(1.0), one(4.0)
    assert scaffold_correction(own, server)["w"].item() == 3.0  # c - c_k
    assert scaffold_correction(own, server, 2.0)["w"].item() == 1.0  # c / 2 - c_k
    # (w - y) / (steps lr) - c = (5 - 3) / (2 * 0.5) - 4 = -2, so c_k becomes 1 - 2 = -1
    change = scaffold_change(server, one(5.0), one(3.0), 2, 0.5)
    assert change["w"].item() == -2.0
    assert scaffold_variate(own, change)["w"].item() == -1.0
    # c + (1 / 4) (1 * -2 + 2 * 3) = 4 + 1 = 5
    updated = scaffold_server_variate(server, [change, one(3.0)], [1.0, 2.0], 4)
    assert updated["w"].item() == 5.0


def test_feddyn_by_hand() -> None:
    # (0.1 / 2) ||v - (w - h)||^2 with v = 3, w = 1, h = 0.5 pulls by 0.1 (3 - 1 + 0.5) = 0.25
    v = one(3.0)["w"].requires_grad_()
    proximal([v], [feddyn_anchor(one(1.0), one(0.5))["w"]], 0.05).backward()
    assert v.grad is not None
    assert v.grad.item() == 0.25
    assert feddyn_memory(one(0.5), one(3.0), one(1.0))["w"].item() == 2.5
    assert feddyn_cloud(one(2.0), [one(1.0), one(3.0)], 4)["w"].item() == 3.0


def quadratics() -> tuple[list[torch.Tensor], list[torch.Tensor], torch.Tensor]:
    rng = np.random.default_rng(0)
    curves = [torch.from_numpy(np.diag(rng.uniform(1, 3, 2))) for _ in range(3)]
    pulls = [torch.from_numpy(rng.normal(size=2) * 3) for _ in range(3)]
    optimum = torch.linalg.solve(sum(curves), sum(pulls))
    return curves, pulls, optimum


def test_scaffold_converges_to_the_common_optimum_where_averaging_does_not() -> None:
    curves, pulls, optimum = quadratics()

    def train(corrected: bool) -> torch.Tensor:
        w, server, own = one(0.0, 0.0), one(0.0, 0.0), [one(0.0, 0.0)] * 3
        for _ in range(300):
            ends, changes = [], []
            for k in range(3):
                y = w["w"]
                extra = scaffold_correction(own[k], server)["w"] if corrected else torch.zeros(2)
                for _ in range(5):
                    y = y - 0.1 * (curves[k] @ y - pulls[k] + extra)
                ends.append({"w": y})
                changes.append(scaffold_change(server, w, ends[-1], 5, 0.1))
            server = scaffold_server_variate(server, changes, [1.0] * 3, 3)
            own = [scaffold_variate(c, change) for c, change in zip(own, changes)]
            w = server_step(w, ends)
        return w["w"]

    torch.testing.assert_close(train(True), optimum, rtol=1e-6, atol=1e-8)
    assert (train(False) - optimum).norm() > 1e-3


def test_feddyn_converges_to_the_common_optimum() -> None:
    curves, pulls, optimum = quadratics()
    cloud, memory = one(0.0, 0.0), [one(0.0, 0.0)] * 3
    for _ in range(60):
        ends = []
        for k in range(3):
            v = {"w": cloud["w"].clone()}
            for _ in range(40):
                pulled = v["w"] - feddyn_anchor(cloud, memory[k])["w"]
                gradient = curves[k] @ v["w"] - pulls[k] + pulled
                v = {"w": v["w"] - 0.1 * gradient}
            ends.append(v)
        memory = [feddyn_memory(h, v, cloud) for h, v in zip(memory, ends)]
        cloud = feddyn_cloud(average(ends), memory, 3)
    torch.testing.assert_close(average(ends)["w"], optimum, rtol=1e-4, atol=1e-6)
