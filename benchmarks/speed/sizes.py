"""`python -m benchmarks.speed.sizes`: time a sample by cohort size, for networks, images and batches of many kinds.

What `engine.trainer = "auto"` chooses (`training.dispatch.suggested_size`) rests on this table. Processor time of
the fastest of a few steps in one thread, so that a shared machine disturbs it little; the choice's loss against the
best size tried is printed for every line.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from benchmarks.files import write_list
from benchmarks.speed.workload import CLASSES

from fedsift.models.factory import build_model, initial_weights
from fedsift.protocol.messages import RequestMoment, SiteFacts
from fedsift.protocol.site import Samples
from fedsift.training.cohort import ALONE, try_steps
from fedsift.training.dispatch import LARGE, suggested_size
from fedsift.training.job import TrainingJob
from fedsift.training.recipe import Augment, Recipe
from fedsift.training.requests import LocalSite

RESULTS = Path(__file__).parent / "results" / "sizes.csv"
STEPS, SECONDS = 7, 1.0
SIZES = (1, ALONE, 2, 5, 10)
KINDS = [
    ("mlp", (1, 8, 8)),
    ("mlp", (3, 32, 32)),
    ("lenet5", (1, 28, 28)),
    ("lenet5", (3, 32, 32)),
    ("cnn", (1, 8, 8)),
    ("cnn", (1, 28, 28)),
    ("cnn", (3, 32, 32)),
    ("cnn", (3, 64, 64)),
    ("resnet8-cifar", (3, 16, 16)),
    ("resnet8-cifar", (3, 32, 32)),
    ("shufflenet-g2-cifar", (3, 32, 32)),
    ("mobilenetv2-cifar", (3, 32, 32)),
    ("resnet10-cifar", (3, 32, 32)),
    ("vgg11-cifar", (3, 32, 32)),
    ("resnet18-cifar", (3, 32, 32)),
]
BATCHES = (10, 16, 64)


def job_of(model: str, shape: tuple[int, ...], batch: int) -> TrainingJob:
    """A site's training with steps enough to time."""
    rows = batch * (STEPS + 1)
    generator = torch.Generator().manual_seed(0)
    pool = torch.randint(0, 256, (rows, *shape), dtype=torch.uint8, generator=generator)
    site = LocalSite(
        SiteFacts("site", rows, model=model),
        Samples(pool, torch.arange(rows)),
        torch.randint(0, CLASSES, (rows,), generator=generator),
        tuple(str(k) for k in range(CLASSES)),
        RequestMoment(0, "train", 0, 0),
    )
    recipe = Recipe(batch_size=batch, lr=0.01, momentum=0.5, augment=Augment(flip=True, crop=2))
    return TrainingJob(site, initial_weights(model, shape, CLASSES, 0), recipe)


def microseconds(job: TrainingJob, size: int) -> float:
    """Processor time a sample of the fastest step but the first."""
    times: list[float] = []
    began = started = time.process_time()
    for samples in try_steps([job] * max(size, 1), STEPS, size != ALONE):
        now = time.process_time()
        times.append((now - started) / samples)
        if len(times) > 1 and now - began > SECONDS:
            break
        started = now
    return round(1e6 * min(times[1:] or times), 2)


def measure(model: str, shape: tuple[int, ...], batch: int) -> dict[str, Any]:
    job = job_of(model, shape, batch)
    parameters = sum(value.numel() for value in build_model(model, shape, CLASSES).parameters())
    sizes = [size for size in SIZES if parameters <= LARGE or size <= 2]
    times = {size: microseconds(job, size) for size in sizes}
    chosen = suggested_size(job.site, job.recipe)
    nearest = min((size for size in sizes if size != ALONE), key=lambda size: abs(size - chosen))
    return {
        "model": model,
        "shape": list(shape),
        "batch": batch,
        "parameters": parameters,
        "microseconds a sample": {str(size): value for size, value in times.items()},
        "chosen": chosen,
        "times the best": round(times[nearest] / min(times.values()), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for model, shape in KINDS:
        for batch in BATCHES:
            rows.append(measure(model, shape, batch))
            print(json.dumps(rows[-1]), flush=True)
            write_list(options.out, rows, ("model", "batch"))


if __name__ == "__main__":
    main()
