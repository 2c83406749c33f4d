"""Sites that lie about their scores: how well noisy sites are still found, by the claims and by checks of them.

`python -m benchmarks.attacks.lying`. After a warm-up every site trains once more and tells its per-class losses
(FedNoRo) and its LID (FedCorr). A liar tells what suits it: a noisy one the scores of the cleanest site, a clean one
those of the noisiest. Two checks need no site's word for itself: the loss of a site's model on the coordinator's own
labelled samples, and the median of what the other sites say of that model, liars among them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.files import write_tree
from numpy.typing import NDArray
from torch.nn import functional as F

from fedsift.benchmark.rows import read_rows, rows_text
from fedsift.detection.indicators import normalise
from fedsift.detection.mixtures import split_matrix, split_values
from fedsift.formulas.metrics import precision_recall
from fedsift.methods.fedcorr import ScoreModel
from fedsift.protocol.federation import Round
from fedsift.runtime.in_process import InProcess
from fedsift.study.running import open_in_process
from fedsift.study.study import Study
from fedsift.training.requests import Indicate, Train
from fedsift.training.workers import predict

FILE = Path(__file__).parent / "results" / "lying.csv"
KEY = ("liars", "check")
CHECKS = ("claimed losses (FedNoRo)", "claimed LID (FedCorr)", "check: own 100 samples", "check: the others' median")
SITES, SEEDS, DRAWS, OWN = 15, 3, 10, 100
SHARES = (0.0, 0.1, 0.2, 0.3, 0.4)
Array = NDArray[np.float64]


def study_of(seed: int) -> Study:
    return Study.from_table(
        {
            "name": "lying scores",
            "seed": seed,
            "data": {"name": "digits"},
            "partition": {"name": "iid", "sites": SITES},
            "noise": {"name": "fedcorr", "rho": 0.4, "tau": 0.5, "sites": "exact"},
            "model": {"name": "mlp"},
            "train": {"epochs": 2, "batch_size": 16, "lr": 0.1, "momentum": 0.5},
            "method": {"name": "fedavg", "rounds": 5},
            "engine": {"threads": 1},
        }
    )


def measured(seed: int) -> tuple[dict[str, Array], NDArray[np.bool_]]:
    """Honest scores of every site, what the checks find, and who is noisy in truth."""
    study = study_of(seed)
    federation = open_in_process(study, study.load_data(), f"lying {seed}", InProcess)
    method: Any = study.method
    state = warmed_up(method, federation)
    federation.begin(Round("judge", 0, method.rounds), (Indicate, Train, ScoreModel))
    losses = federation.ask(Indicate(state.weights, len(federation.classes)))
    recipe = method.recipe(method.objective(federation))
    trained = federation.ask(Train(state.weights, recipe, then=(ScoreModel(None, k=10),)))
    models = [reply.weights for reply in trained.values()]
    test = federation.test_set()
    assert test is not None
    own, labels = test
    classes = len(federation.classes)
    on_own = [
        float(F.cross_entropy(predict(federation.model, w, own, classes, federation.compute)[:OWN], labels[:OWN]))
        for w in models
    ]
    found = {
        "losses": np.stack([reply.values.numpy() for reply in losses.values()]),
        "lid": np.array([reply.then[0].lid for reply in trained.values()]),  # type: ignore[attr-defined]
        "own samples": np.array(on_own),
        "others": _said_of_each_other(federation, models),
    }
    truth = federation.federated.truth
    assert truth is not None
    return found, np.array([site in truth.noisy for site in federation.sites])


def warmed_up(method: Any, federation: InProcess) -> Any:
    """The state after all rounds of a method of one stage."""
    federation.begin(Round("start", 0, -1), ())
    state = method.start(federation)
    [stage] = method.stages()
    for index in range(stage.rounds):
        federation.begin(Round(stage.name, index, index), stage.asks)
        state = stage.step(state, federation)
    return state


def _said_of_each_other(federation: InProcess, models: list[Any]) -> Array:
    """Mean loss of site i's model on the labels of site j, `[sites, sites]`."""
    federated, classes = federation.federated, len(federation.classes)
    table = np.zeros((len(models), len(models)))
    for i, weights in enumerate(models):
        for j, site in enumerate(federation.sites):
            logits = predict(
                federation.model, weights, federation._samples(federated.rows[site]), classes, federation.compute
            )
            table[i, j] = float(F.cross_entropy(logits, torch.from_numpy(federated.given[site])))
    return table


def f1(found: Any, noisy: NDArray[np.bool_]) -> float:
    precision, recall = precision_recall((int(i) for i in found), np.flatnonzero(noisy).tolist())
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def verdicts(found: Mapping[str, Array], noisy: NDArray[np.bool_], liars: NDArray[np.bool_]) -> dict[str, float]:
    """F1 of finding the noisy sites, by each kind of score, when these sites lie."""
    losses, lid = found["losses"].copy(), found["lid"].copy()
    cleanest, noisiest = losses.sum(1).argmin(), losses.sum(1).argmax()
    for site in np.flatnonzero(liars):
        like = cleanest if noisy[site] else noisiest
        losses[site] = found["losses"][like]
        lid[site] = found["lid"].min() if noisy[site] else found["lid"].max()
    said = found["others"].copy()
    for site in np.flatnonzero(liars):  # of others' models it says the opposite
        said[:, site] = said[:, site].max() + said[:, site].min() - said[:, site]
    np.fill_diagonal(said, np.nan)
    by_others = np.nanmedian(said, axis=1)
    named = (
        split_matrix(normalise(losses).values), split_values(lid), split_values(found["own samples"]),
        split_values(by_others),
    )  # fmt: skip
    return {check: f1(one.noisy, noisy) for check, one in zip(CHECKS, named)}


def run() -> dict[float, Any]:
    table: dict[float, dict[str, list[float]]] = {share: {} for share in SHARES}
    for seed in range(1, SEEDS + 1):
        found, noisy = measured(seed)
        random = np.random.default_rng(seed)
        for share in SHARES:
            for _ in range(DRAWS if share else 1):
                liars = np.zeros(SITES, dtype=bool)
                liars[random.choice(SITES, round(share * SITES), replace=False)] = True
                for kind, value in verdicts(found, noisy, liars).items():
                    table[share].setdefault(kind, []).append(value)
    common = {"sites": SITES, "seeds": SEEDS, "draws": DRAWS, "own": OWN}
    return {
        share: {kind: {"f1": round(float(np.mean(values)), 3), **common} for kind, values in row.items()}
        for share, row in table.items()
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    result = run()
    write_tree(FILE, result, KEY)
    print(rows_text(read_rows(FILE), KEY))
