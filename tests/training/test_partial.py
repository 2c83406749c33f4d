"""Terms for missing classes against transcriptions: a mean teacher, relations between classes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from fedsift.core.errors import ConfigError
from fedsift.formulas import losses
from fedsift.methods import fedirm
from fedsift.methods.fedirm import RELATED, RELATIONS, SameRelations
from fedsift.training.objective import AVERAGE, MissingTo, View


def sigmoid(z: Any) -> Any:
    return 1 / (1 + np.exp(-np.asarray(z, dtype=np.float64)))


def seen(logits: Any, known: Any, present: Any = None, teacher: Any = None, **extras: torch.Tensor) -> View:
    z = torch.as_tensor(logits, dtype=torch.float64)
    real = torch.ones(z.shape[:-1]).double() if present is None else torch.as_tensor(present, dtype=torch.float64)
    mask = torch.as_tensor(known, dtype=torch.float64).expand_as(z)
    guide = None if teacher is None else torch.as_tensor(teacher, dtype=torch.float64)
    return View(z, torch.zeros_like(z), real, known=mask, teacher=guide, extras=extras)


class TestTeachers:
    z, t = [[0.0, 1.0, -2.0], [3.0, 0.0, 0.5]], [[1.0, 0.0, 0.0], [0.0, -1.0, 2.0]]

    def test_mean_and_sum_over_missing_classes(self) -> None:
        squares = (sigmoid(self.z) - sigmoid(self.t)) ** 2
        average = torch.tensor(self.t).double()
        at = seen(self.z, [1, 0, 0], **{AVERAGE: average})
        assert float(MissingTo("average").value(at)) == pytest.approx(squares[:, 1:].mean())
        every = MissingTo("average", total=True, everywhere=True)
        assert float(every.value(at)) == pytest.approx(squares.sum(1).mean())
        assert float(MissingTo("average", total=True).value(at)) == pytest.approx(squares[:, 1:].sum(1).mean())

    def test_the_received_model_with_a_temperature(self) -> None:
        """FedNoRo's T sharpens the teacher alone."""
        squares = (sigmoid(self.z) - sigmoid(np.array(self.t) / 0.8)) ** 2
        at = seen(self.z, [1, 0, 0], teacher=self.t)
        assert float(MissingTo(temperature=0.8).value(at)) == pytest.approx(squares[:, 1:].mean())

    def test_what_each_teacher_needs(self) -> None:
        assert MissingTo().needs == {"teacher"}
        assert MissingTo("average").needs == {AVERAGE, "aside"}


# Relations -----------------------------------------------------------------------------------------------------------


def relations_by_numpy(z: Any, members: Any, temperature: float) -> tuple[Any, Any]:
    k = z.shape[1]
    rows, held = np.full((k, k), 0.5), np.zeros(k, bool)
    for c in range(k):
        chosen = z[members[:, c] > 0]
        if len(chosen):
            rows[c], held[c] = sigmoid(chosen.mean(0) / temperature), True
    return rows, held


def test_the_matrix_equals_its_transcription() -> None:
    rng = np.random.default_rng(0)
    z, members = rng.normal(size=(6, 4)), rng.integers(0, 2, (6, 4))
    members[:, 3] = 0
    rows, held = fedirm.relation_matrix(torch.from_numpy(z), torch.from_numpy(members), 2.0)
    expected, exists = relations_by_numpy(z, members, 2.0)
    np.testing.assert_allclose(rows.numpy(), expected)
    assert held.tolist() == exists.tolist() == [True, True, True, False]


def test_the_divergence_by_hand() -> None:
    """p = 1/2, q = 1/4: (1/4) log 2 / 2; as yes/no distributions (1/4) log 3 / 2. A row adds its classes."""
    p, q = torch.tensor([[0.5, 0.3]]).double(), torch.tensor([[0.25, 0.3]]).double()
    assert fedirm.relation_divergence(p, q).tolist() == pytest.approx([math.log(2) / 8])
    assert fedirm.relation_divergence(q, p).tolist() == pytest.approx([math.log(2) / 8])
    assert fedirm.relation_divergence(p, q, "binary").tolist() == pytest.approx([math.log(3) / 8])
    ends = fedirm.relation_divergence(torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 0.0]]), "binary")
    assert bool(torch.isfinite(ends).all())
    with pytest.raises(ConfigError, match="divergence = 'other'"):
        fedirm.relation_divergence(p, q, "other")  # type: ignore[arg-type]


RECEIVED = torch.tensor([[0.9, 0.2, 0.1], [0.3, 0.8, 0.2], [0.2, 0.4, 0.7]]).double()


def same(logits: Any, known: Any, related: list[float], **more: Any) -> View:
    given = {RELATIONS: RECEIVED, RELATED: torch.tensor(related).double()}
    return seen(logits, known, **more, **given)


class TestSameRelations:
    z = np.array([[-2.0, 3.0, -3.0], [-3.0, 2.5, 4.0], [0.1, 5.0, -5.0]])
    """Class 0 is annotated. Rows 0 and 1 are sure of everything; row 2 is not sure of class 0."""

    def expected(self, classes: list[int]) -> float:
        members = np.array([[0, 1, 0], [0, 1, 1], [0, 0, 0]])
        rows, _ = relations_by_numpy(self.z, members, 2.0)
        q = RECEIVED.numpy()
        apart = ((rows - q) * (np.log(rows) - np.log(q))).sum(1) / 2
        return float(apart[classes].mean())

    def test_the_mean_over_classes_that_both_have(self) -> None:
        term = SameRelations()
        assert float(term.value(same(self.z, [1, 0, 0], [1, 1, 1]))) == pytest.approx(self.expected([1, 2]))
        assert float(term.value(same(self.z, [1, 0, 0], [1, 0, 1]))) == pytest.approx(self.expected([2]))

    def test_nothing_to_compare_is_nothing_to_learn(self) -> None:
        """No row received, nothing missing, nobody sure, everybody too uncertain: 0 and a gradient of 0, not NaN."""
        cases = [
            (SameRelations(), self.z, [1, 0, 0], [0, 0, 0]),
            (SameRelations(), self.z, [1, 1, 1], [1, 1, 1]),
            (SameRelations(), 0 * self.z, [1, 0, 0], [1, 1, 1]),
            (SameRelations(most_entropy=0.0), self.z, [1, 0, 0], [1, 1, 1]),
        ]
        for term, z, known, related in cases:
            at = same(z, known, [float(r) for r in related])
            at.logits.requires_grad_()
            value = term.value(at)
            [gradient] = torch.autograd.grad(value, at.logits)
            assert float(value.detach()) == 0.0
            assert bool((gradient == 0).all())

    def test_entropy_leaves_samples_out(self) -> None:
        """Row 0 is less sure of its classes than row 1; a bound between the two leaves row 1 alone."""
        z = torch.from_numpy(self.z)
        first, second = losses.binary_entropy(z).sum(-1).tolist()[:2]
        assert second < 0.7 < first
        only = SameRelations(most_entropy=0.7).value(same(self.z, [1, 0, 0], [0, 1, 0]))
        row, q = sigmoid(self.z[1] / 2), RECEIVED.numpy()[1]
        assert float(only) == pytest.approx(float(((row - q) * np.log(row / q)).sum() / 2))

    def test_padding_does_not_count_and_a_cohort_is_its_sites(self) -> None:
        term = SameRelations()
        short = same(self.z, [1, 0, 0], [1, 1, 1], present=[1.0, 0.0, 0.0])
        alone = term.value(same(self.z[:1], [1, 0, 0], [1, 1, 1]))
        assert float(term.value(short)) == pytest.approx(float(alone))
        z = np.stack([self.z, self.z])
        both = View(
            torch.from_numpy(z),
            torch.zeros(2, 3, 3),
            torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]]).double(),
            known=torch.tensor([1.0, 0.0, 0.0]).expand(2, 3, 3),
            extras={RELATIONS: RECEIVED.expand(2, 3, 3), RELATED: torch.ones(2, 3)},
        )
        whole = term.value(same(self.z, [1, 0, 0], [1, 1, 1]))
        assert term.value(both).tolist() == pytest.approx([float(whole), float(alone)])
