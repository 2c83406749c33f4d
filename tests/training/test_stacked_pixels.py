"""Bytes to the training layout: the same images as augmenting them one site at a time, only faster."""

from __future__ import annotations

import pytest
import torch

from fedsift.models.factory import initial_weights
from fedsift.protocol.messages import RequestMoment, SiteFacts
from fedsift.protocol.site import Samples
from fedsift.training.cohort import train_cohort
from fedsift.training.job import TrainingJob, TrainingResult
from fedsift.training.plan import plan
from fedsift.training.recipe import Augment, Recipe
from fedsift.training.requests import LocalSite
from fedsift.training.stacked import pixels
from fedsift.training.stacked.batches import CohortBatches
from fedsift.training.trainer import prepare, train_each

pytestmark = pytest.mark.usefixtures("kernels")

SIZES = (9, 7, 4)


def make_jobs(
    channels: int, augment: Augment, model: str = "lenet5", shared: bool = True, **options: float
) -> list[TrainingJob]:
    generator = torch.Generator().manual_seed(0)
    pool = torch.randint(0, 256, (40, channels, 12, 10), dtype=torch.uint8, generator=generator)
    recipe = Recipe(epochs=2, batch_size=4, lr=0.01, augment=augment, **options)  # type: ignore[arg-type]
    weights = initial_weights(model, (channels, 12, 10), 3, 0)
    jobs, rows = [], torch.randperm(40, generator=generator)
    for number, n in enumerate(SIZES):
        own, rows = rows[:n], rows[n:]
        samples = Samples(pool, own, (0.4, 0.5, 0.6)[:channels], (0.2, 0.3, 0.25)[:channels])
        if not shared:
            samples = Samples(pool[own], torch.arange(n), samples.mean, samples.std)
        site = LocalSite(
            SiteFacts(f"site {number}", n, model=model),
            samples,
            torch.randint(0, 3, (n,), generator=generator),
            ("a", "b", "c"),
            RequestMoment(0, "train", 0, 0),
        )
        jobs.append(TrainingJob(site, weights, recipe))
    return jobs


AUGMENTS = [Augment(), Augment(flip=True), Augment(crop=3), Augment(flip=True, crop=2)]


@pytest.mark.parametrize("channels", [1, 2, 3])
@pytest.mark.parametrize("augment", AUGMENTS, ids=["none", "flip", "crop", "both"])
@pytest.mark.parametrize("options", [{}, {"mixup": 0.5, "views": 2}], ids=["plain", "mixed views"])
def test_images_are_those_of_one_site_at_a_time(channels: int, augment: Augment, options: dict[str, float]) -> None:
    jobs = make_jobs(channels, augment, **options)
    plans = [list(plan(len(job.site.samples), job.recipe, job.generator())) for job in jobs]
    targets = [job.targets() for job in jobs]
    batches = CohortBatches(jobs)
    assert batches._pixels is not None
    assert batches.steps == [len(own) for own in plans]
    for number, step in enumerate(batches):
        for site in range(step.sites):
            images, target = prepare(jobs[site].site, plans[site][number], jobs[site].recipe, targets[site])
            real = step.present[site] != 0
            assert int(real.sum()) == len(images)
            assert torch.allclose(step.samples[site][real], images, rtol=1e-5, atol=1e-5)
            assert torch.allclose(step.target[site][real], target, rtol=1e-6, atol=1e-6)


def test_one_site_alone() -> None:
    [job] = make_jobs(3, Augment(flip=True, crop=2))[:1]
    for step, batch in zip(CohortBatches([job]), plan(len(job.site.samples), job.recipe, job.generator())):
        images, _ = prepare(job.site, batch, job.recipe, job.targets())
        assert torch.allclose(step.samples[0], images, rtol=1e-5, atol=1e-5)


def test_padding_is_exactly_zero() -> None:
    jobs = make_jobs(3, Augment(crop=4))
    black = [torch.zeros_like(job.site.samples.pool) for job in jobs]
    for job, pool in zip(jobs, black):
        job.site.samples = Samples(pool, job.site.samples.rows, (0.4, 0.5, 0.6), (0.2, 0.3, 0.25))
    values = torch.cat([step.samples.flatten() for step in CohortBatches(jobs)]).unique()
    assert values.tolist() == pytest.approx(sorted([0.0, -0.4 / 0.2, -0.5 / 0.3, -0.6 / 0.25]), rel=1e-6)
    assert 0.0 in values.tolist()


def test_pools_too_large_to_keep_are_packed_cohort_by_cohort(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = make_jobs(3, Augment(flip=True, crop=2))
    kept = [step.samples for step in CohortBatches(jobs)]
    monkeypatch.setattr(pixels, "LARGEST_PACKED_POOL", 0)
    monkeypatch.setattr(pixels, "_PACKED", [])
    for ours, theirs in zip(CohortBatches(jobs), kept):
        assert torch.equal(ours.samples, theirs)
    apart = make_jobs(3, Augment(flip=True, crop=2), shared=False)
    for ours, theirs in zip(CohortBatches(apart), kept):
        assert torch.equal(ours.samples, theirs)


def test_a_packed_pool_goes_with_its_pool() -> None:
    pool = torch.zeros(3, 1, 4, 4, dtype=torch.uint8)
    packed = pixels.packed_pool(pool)
    assert packed is not None
    assert pixels.packed_pool(pool) is packed
    assert packed.unique().tolist() == [1 << 8]
    del pool
    assert pixels._PACKED == []


@pytest.mark.parametrize("options", [{}, {"mixup": 0.4}], ids=["plain", "mixup"])
def test_training_from_bytes(options: dict[str, float]) -> None:
    jobs = make_jobs(3, Augment(flip=True, crop=2), momentum=0.5, **options)
    for ours, theirs in zip(train_cohort(jobs), train_each(jobs)):
        assert isinstance(ours, TrainingResult)
        assert isinstance(theirs, TrainingResult)
        for name, value in theirs.weights.items():
            assert float((ours.weights[name] - value).norm() / value.norm()) < 1e-5


def test_efficiency_counts_padding() -> None:
    # batches of the two epochs of 9, 7 and 4 samples: 4 5 4 5, 4 3 4 3 and 4 4; steps are 4, 5, 4 and 5 rows wide
    assert CohortBatches(make_jobs(3, Augment())).efficiency == pytest.approx(40 / (12 + 15 + 8 + 10))
    assert CohortBatches(make_jobs(3, Augment())[:1]).efficiency == 1.0
