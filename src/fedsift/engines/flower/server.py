"""The coordinator's side on Flower: from a run folder and a grid to a finished run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from torch import Tensor

from fedsift.contract import codec
from fedsift.contract.codec import Wire
from fedsift.contract.errors import ConfigError, FedsiftError
from fedsift.contract.facts import FederationFacts
from fedsift.data.dataset import Spread
from fedsift.data.sources import sources
from fedsift.engines.evaluate import Evaluator
from fedsift.engines.flower.federation import SIMULATED, FlowerFederation, Pace, Post, agree, gather
from fedsift.engines.flower.hello import Introduction
from fedsift.engines.flower.simulation import FEDERATION_FILE
from fedsift.engines.flower.sites import read_notebooks
from fedsift.engines.loop import Listener, conduct
from fedsift.engines.runfolder import RunFolder
from fedsift.local.features import with_features
from fedsift.local.site import Samples
from fedsift.study.results import write_results
from fedsift.study.running import complete, reopen
from fedsift.study.study import Study, read_toml
from fedsift.study.tables import build, build_named

ROSTER_FILE = "roster.safetensors"
FAILURE_FILE = "failure.json"


@dataclass(frozen=True)
class FederationFile:
    """The keys of `federation.toml`, which says whom the coordinator waits for."""

    sites: tuple[str, ...] = ()
    """Names of the sites, in the federation's order; none named takes whoever comes, by name."""
    at_least: int = 2
    """Without names: start when so many sites have joined. With names: go on with so many when `wait` is over."""
    wait: float = 300.0
    """Seconds to wait for the sites to join."""
    test: dict[str, Any] = field(default_factory=dict)
    """A dataset's table for the coordinator's own test set; without it the sites evaluate on their held-out parts."""


@dataclass(frozen=True)
class Roster(Wire):
    """Who took part from the start: kept with the run, so that a resumed one has the same sites in the same order."""

    sites: dict[str, Introduction]


def run_on_grid(
    grid: Grid,
    study: Study,
    folder: RunFolder,
    federation_file: FederationFile,
    *,
    note: dict[str, str] | None = None,
    pace: Pace | None = None,
    spread: Spread | None = None,
    site_files: Sequence[Path] = (),
    listen: Listener | None = None,
) -> dict[str, Any]:
    """Run or go on with a study over Flower; `spread` and `site_files` are what a simulation knows besides."""
    post = Post(grid, {"model": study.model.name, **(note or {})}, pace)
    roster = call_the_roll(post, folder, federation_file, study.federation.quorum)
    federation = FlowerFederation(
        post,
        roster,
        run=folder.id,
        seed=study.seed,
        model=study.model.name,
        limits=study.gate,
        patience=study.federation,
    )
    test = (
        _test_of(spread)
        if spread is not None
        else _own_test(federation_file, next(iter(roster.values())), folder)
    )
    evaluator = Evaluator(federation, test)
    facts = FederationFacts.of(federation.facts.values(), federation.classes, federation.multilabel)
    study = complete(study, folder, study.facts(spread) if spread is not None else facts)
    state = conduct(study.method, federation, folder, evaluator, schedule=study.evaluate, listen=listen)
    notebooks = read_notebooks(site_files, folder.id, federation.accepted) if site_files else None
    return write_results(study, folder, federation, state, spread, notebooks)


def call_the_roll(
    post: Post, folder: RunFolder, federation_file: FederationFile, quorum: float
) -> dict[str, Introduction]:
    """The sites of this run: those that join now, or those that it began with."""
    file = folder.path / ROSTER_FILE
    if folder.checkpoint_file.is_file() and file.is_file():
        roster: dict[str, Introduction] = codec.load(file).sites
        enough = max(1, math.ceil(quorum * len(roster) - 1e-9))
        gather(post, list(roster), at_least=enough, wait=federation_file.wait)
        return roster
    sites = gather(post, federation_file.sites, at_least=federation_file.at_least, wait=federation_file.wait)
    roster = {site: post.introductions[site] for site in sites}
    agree(roster)
    codec.save(file, Roster(roster))
    return roster


def _test_of(spread: Spread) -> tuple[Samples, Tensor] | None:
    data = spread.dataset
    if len(data.test) == 0:
        return None
    samples = Samples(torch.from_numpy(data.images), torch.from_numpy(data.test), data.mean, data.std)
    return samples, torch.from_numpy(data.labels[data.test])


def _own_test(file: FederationFile, common: Introduction, folder: RunFolder) -> tuple[Samples, Tensor] | None:
    """The coordinator's own labelled samples, if it has any: the test part of its dataset, or all of it."""
    if not file.test:
        return None
    data = with_features(build_named(sources, file.test, "test").load(), common.facts.model)
    if data.classes != common.classes or data.shape != common.shape:
        raise ConfigError(
            f"the test set of {folder.path / FEDERATION_FILE} has classes {', '.join(data.classes)} and shape "
            f"{data.shape}, the sites have {', '.join(common.classes)} and {common.shape}"
        )
    rows = data.test if len(data.test) else data.train
    samples = Samples(torch.from_numpy(data.images), torch.from_numpy(rows), common.mean, common.std)
    return samples, torch.from_numpy(data.labels[rows])


def read_federation_file(path: Path) -> FederationFile:
    return build(FederationFile, read_toml(path), "") if path.is_file() else FederationFile()


# A deployment --------------------------------------------------------------------------------------------------------

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Conduct the run whose folder the run config names. Started again on the same folder, it goes on."""
    place = str(context.run_config.get("run-folder", ""))
    if not place:
        raise ConfigError("the run config has no 'run-folder': start the app with `fedsift flower start`")
    torch.set_num_threads(1)
    study, folder = reopen(Path(place))
    folder.lock()
    try:
        folder.forget(FAILURE_FILE)
        run_on_grid(grid, study, folder, read_federation_file(folder.path / FEDERATION_FILE))
    except FedsiftError as error:
        folder.write_json(FAILURE_FILE, {"error": str(error), "exit_code": error.exit_code})
        raise
    finally:
        folder.unlock()


__all__ = ["SIMULATED", "FederationFile", "app", "read_federation_file", "run_on_grid"]
