"""The losses of FedMLP, FedAvg-PL and FedDPCont train the same in a stacked cohort as one site at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedsift.methods.feddpcont import Contrastive
from fedsift.models.factory import initial_weights
from fedsift.protocol.messages import RequestMoment, SiteFacts
from fedsift.protocol.notebook import EVIDENCE, LabelEvidence, Notebook
from fedsift.protocol.site import Samples
from fedsift.training.cohort import can_stack, train_cohort
from fedsift.training.job import TrainingJob, TrainingResult
from fedsift.training.objective import (
    LabelsAndTeacher,
    MissingTo,
    Objective,
    PartialClass,
    PositiveWeighted,
    as_objective,
)
from fedsift.training.recipe import Augment, Recipe
from fedsift.training.requests import LocalSite
from fedsift.training.trainer import train_each

torch.set_num_threads(1)
CLASSES = ("a", "b", "c")
SIZES = (11, 5, 8)
SHAPE = (1, 8, 8)


def jobs(objective: Objective, *, multilabel: bool, views: int, tagged: bool) -> list[TrainingJob]:
    """Three sites of different sizes; the first annotates every class, the others one each."""
    random = np.random.default_rng(4)
    pool = torch.from_numpy(random.integers(0, 256, (sum(SIZES), *SHAPE), dtype=np.uint8))
    weights = initial_weights("mlp", SHAPE, len(CLASSES), seed=2)
    recipe = Recipe(
        epochs=2,
        batch_size=4,
        lr=0.05,
        momentum=0.5,
        views=views,
        augment=Augment(flip=True, degrees=10.0),
        objective=objective,
    )
    made, start = [], 0
    for k, n in enumerate(SIZES):
        rows = torch.arange(start, start + n)
        start += n
        labels = random.integers(0, 2, (n, 3)) if multilabel else random.integers(0, 2, n)
        known = torch.from_numpy(random.random((n, 3)) < 0.6)
        pages = {EVIDENCE: LabelEvidence(known=known)} if tagged and k else {}
        made.append(
            TrainingJob(
                LocalSite(
                    facts=SiteFacts(f"s{k}", n, model="mlp", annotated=(k,) if multilabel and k else None),
                    samples=Samples(pool, rows),
                    given=torch.from_numpy(labels),
                    classes=CLASSES,
                    moment=RequestMoment(3, "stage", 0, 0),
                    notebook=Notebook(pages),
                    multilabel=multilabel,
                ),
                weights,
                recipe,
            )
        )
    return made


CASES = {
    "stage 1": (as_objective(PartialClass()), True, 2, False),
    "stage 1 as released": (PartialClass(0.0) + MissingTo(), True, 2, False),
    "stage 2": (as_objective(LabelsAndTeacher()), True, 1, True),
    "stage 2, prior over tags": (as_objective(LabelsAndTeacher(1.0, "known", "separate")), True, 1, True),
    "partial": (as_objective(PositiveWeighted(weigh=True)), True, 1, False),
    "contrast": (as_objective(Contrastive((0.2, 0.3, 0.5))), False, 1, False),
    "local contrast": (as_objective(Contrastive(peers="expectation")), False, 1, False),
    "local contrast, drawn, two views": (as_objective(Contrastive(eps=1e-3)), False, 2, False),
}


@pytest.mark.parametrize("case", CASES)
def test_cohort_equals_one_at_a_time(case: str) -> None:
    objective, multilabel, views, tagged = CASES[case]
    work = jobs(objective, multilabel=multilabel, views=views, tagged=tagged)
    assert all(can_stack(job) for job in work)
    alone, together = train_each(work), train_cohort(work)
    for one, other in zip(alone, together, strict=True):
        assert isinstance(one, TrainingResult), one
        assert isinstance(other, TrainingResult), other
        assert other.loss == pytest.approx(one.loss, rel=1e-4, abs=1e-5)
        for name, value in one.weights.items():
            torch.testing.assert_close(other.weights[name], value, rtol=1e-3, atol=1e-5)
