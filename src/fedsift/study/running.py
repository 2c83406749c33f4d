"""Executes a study into a run folder over its transport, writes results, and scores them where the truth is known."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import tomli_w
from numpy.typing import NDArray
from safetensors.torch import save
from threadpoolctl import threadpool_limits

from fedsift.core.errors import ConfigError, FedsiftError, RunError, Stopped
from fedsift.core.numbers import plain
from fedsift.data.dataset import FederatedDataset
from fedsift.data.truth_ledger import ledger
from fedsift.formulas.metrics import (
    CorrectionScores,
    correction,
    correction_per_class,
    detect_samples,
    detect_sets,
    roc_area,
)
from fedsift.models.weights import read_state
from fedsift.protocol.federation import FederationFacts
from fedsift.protocol.findings import Findings
from fedsift.protocol.messages import Weights
from fedsift.protocol.notebook import evidence_of
from fedsift.runs.events import FAILED, FINISHED, STOPPED, Changed, Ended
from fedsift.runs.folder import FAILURE, STOP, RunFolder
from fedsift.runs.reading import refusals, summarise
from fedsift.runtime.evaluation import Evaluator
from fedsift.runtime.federation import Engine, EngineFederation, EngineParts, QuorumPolicy, SimulationSettings
from fedsift.runtime.gate.protection import GateLimits
from fedsift.runtime.in_process import InProcess, InProcessFederation
from fedsift.runtime.loop import Listener, run_rounds, write_plan
from fedsift.study.study import Study, read_toml
from fedsift.study.toml_tables import build, differences, with_settings
from fedsift.study.tracking import TrackedByStudy, keep_track, need_packages
from fedsift.study.transport import Transport, transports
from fedsift.training import native
from fedsift.training.processes import threads_of

NAME_LENGTH = 80
"""Characters of a study's name in its folder's name: file systems end at 255."""


def new_run(study: Study, parent: Path) -> RunFolder:
    """A fresh folder, named after the day and the study, with the resolved study in it."""
    need_packages(study.track)
    slug = re.sub(r"[^a-z0-9]+", "-", study.name.lower())[:NAME_LENGTH].strip("-") or "study"
    folder = RunFolder.create(Path(parent), f"{datetime.now():%Y-%m-%d}-{slug}")
    folder.write_text("study.toml", study.to_toml())
    keep_track(study, folder)
    return folder


def run(
    study: Study, folder: RunFolder, listen: Listener | None = None, federated: FederatedDataset | None = None
) -> dict[str, Any]:
    """Run or go on with a study in its folder, over the transport that it names; returns the summary.

    `federated` saves loading data that the caller has at hand. A run that fails before its first round leaves no
    folder.
    """
    return transports.get(study.engine.name)().run(study, folder, listen, federated)


class EngineTransport(Transport):
    """A transport that opens an engine in this process."""

    @abstractmethod
    def engine(self, study: Study, federated: FederatedDataset) -> Engine:
        """What opens the federation of a run."""

    def run(
        self,
        study: Study,
        folder: RunFolder,
        listen: Listener | None = None,
        data: FederatedDataset | None = None,
    ) -> dict[str, Any]:
        return execute_run(
            study, folder, lambda: self.engine(study, study.load_data() if data is None else data), listen
        )


@dataclass(frozen=True)
class InProcessTransport(EngineTransport):
    """All sites in this process, trained together."""

    summary: ClassVar[str] = "all sites in this process, trained together"
    federation: type[InProcess] = InProcess
    """A subclass can watch or disturb the messages."""

    def engine(self, study: Study, federated: FederatedDataset) -> InProcessFederation:
        return InProcessFederation(
            federated, study.model.of_sites(federated.sites), study.engine.compute(), self.federation
        )


def execute_run(
    study: Study, folder: RunFolder, engine: Callable[[], Engine], listen: Listener | None = None
) -> dict[str, Any]:
    """The sequence of every run, whatever carries its messages: lock, open, conduct, write the results.

    `engine` is called when the run is locked, so that data which cannot be loaded are a failure of this run.
    """
    folder.verify()
    folder.lock()
    federation: EngineFederation | None = None
    try:
        folder.forget(FAILURE)
        folder.forget(STOP)
        write_plan(study.method, folder)  # opening may take minutes: a viewer sees the plan at once
        # one thread unless asked: more are slower on busy cores and change the last bits of the weights
        with threads_of(study.engine.threads or 1), threadpool_limits(1, user_api="blas"):
            federation = engine().open(parts_of(study), folder)
            federation.say, federation.check_stop = folder.events(), folder.check_stop
            study = complete(study, folder, _facts(study, federation))
            summary = _after_rounds(study, folder, federation, listen)
            federation.say(Ended(FINISHED))
            return summary
    except BaseException as error:
        with suppress(OSError):  # a full disk is why it ended; that is what is to be reported
            folder.events()(ending(error))
        stopped = isinstance(error, Stopped) or not isinstance(error, Exception)
        if isinstance(error, FedsiftError) and not stopped:
            folder.write_failure(error)
        begun = federation is not None and federation.begun
        if not begun and not stopped and not folder.checkpoint_file.is_file():
            folder.discard()
        raise
    finally:
        folder.unlock()


def ending(error: BaseException) -> Ended:
    """The last event of a run that did not come to its end."""
    if isinstance(error, FedsiftError):
        return Ended(STOPPED if isinstance(error, Stopped) else FAILED, str(error), error.exit_code)
    if isinstance(error, Exception):
        return Ended(FAILED, f"{type(error).__name__}: {error}", FedsiftError.exit_code)
    return Ended(STOPPED, "interrupted; nothing is lost, the run can be resumed", Stopped.exit_code)


def _after_rounds(
    study: Study, folder: RunFolder, federation: EngineFederation, listen: Listener | None
) -> dict[str, Any]:
    simulation = federation.simulation
    if simulation is not None and simulation.federated.truth is not None:
        folder.write_text("truth.csv", ledger(simulation.federated).text())
    evaluator = Evaluator(federation, federation.test_set())
    with TrackedByStudy(study, folder, federation.classes, listen) as followed:
        state = run_rounds(
            study.method,
            federation,
            folder,
            evaluator,
            schedule=study.evaluate,
            listen=followed.listen,
            engine=study.engine.name,
        )
        if study.engine.trainer == "measure":
            # what a clock chose is said in the study, so that the run can be repeated
            settled = replace(study, engine=replace(study.engine, cohorts=dict(federation.cohorts)))
            folder.write_text("study.toml", settled.to_toml())
        summary = write_results(study, folder, federation, state)
    return followed.noted(summary)


def complete(study: Study, folder: RunFolder, facts: FederationFacts) -> Study:
    """The study with what follows from its federation, written down: a resumed run reads it instead of guessing."""
    done = study.completed(facts)
    if done != study:
        folder.write_text("study.toml", done.to_toml())
    return done


def _facts(study: Study, federation: EngineFederation) -> FederationFacts:
    """What is known of the federation: all of it in a simulation, else what the sites declared."""
    if federation.simulation is not None:
        return study.facts(federation.simulation.federated)
    return FederationFacts.of(federation.facts.values(), federation.classes, federation.multilabel)


def parts_of(study: Study) -> EngineParts:
    origin = study.model.origin
    given = None if origin is None else read_state(origin)
    return EngineParts(
        study.seed,
        study.model.name,
        study.gate,
        study.federation,
        given,
        others=study.model.networks,
        one_network=not study.method.mixed_networks,
        public="public" in study.method.needs,
    )


def open_in_process(
    study: Study, federated: FederatedDataset, run_id: str, kind: type[InProcess] = InProcess
) -> InProcess:
    """The in-process federation of a study, without a run folder."""
    here = InProcessFederation(federated, study.model.of_sites(federated.sites), study.engine.compute(), kind)
    return here.federation(parts_of(study), run_id)


CHANGEABLE = (
    "gate.heuristics",
    "gate.norm_factor",
    "gate.norm_cohort",
    "gate.statistics_factor",
    "gate.against",
    "gate.opposed",
    "gate.turned",
    "gate.flat",
    "gate.replays",
    "gate.readmit_after",
    "gate.largest_share",
    "gate.cross_check",
    "federation.quorum",
    "federation.deadline",
    "federation.grace",
    "federation.stages",
)
"""Keys that may be changed while a run stands: whom the gate refuses, how many replies are enough and how long they are
waited for. Method, data, seed and all else make another study."""


def is_changeable(key: str) -> bool:
    return any(key == known or key.startswith(f"{known}.") for known in CHANGEABLE)


def change_settings(folder: RunFolder, settings: Mapping[str, Any]) -> None:
    """Write other settings into the study of a run that stands, and into its events what they were; None takes a key
    out. Refuses keys that would make it another study, and values that its table would not take."""
    if not settings:
        return
    if folder.in_use:
        raise RunError(f"{folder.path} is under way: stop it, then change {', '.join(settings)}")
    for key in settings:
        if not is_changeable(key):
            raise ConfigError(
                f"{key} cannot be changed in a run that has begun: start a new one. What can be changed: "
                f"{', '.join(CHANGEABLE)}"
            )
    before = read_toml(folder.study_file)
    after = with_settings(before, settings)
    build(GateLimits, after.get("gate", {}), "gate")
    build(QuorumPolicy, after.get("federation", {}), "federation")
    found = differences(before, after)
    if not found:
        return
    folder.write_text("study.toml", tomli_w.dumps(after))
    old, new = ({key: pair[number] for key, pair in found.items()} for number in (0, 1))
    folder.events()(Changed(len(folder.rounds()), old, new))


def reopen(path: Path) -> tuple[Study, RunFolder]:
    """The study and folder of a run that was stopped; a finished one is refused."""
    folder = RunFolder.open(path)
    if folder.finished:
        raise RunError(f"{path} is finished; start a new run or read its report")
    try:
        study = Study.from_file(folder.study_file)
    except ConfigError as error:
        raise RunError(f"{folder.study_file} no longer fits this version: {error}") from error
    return study, folder


# What a finished run leaves behind
# ------------------------------------------------------------------------------


# What a method did to the labels, against the truth that only a simulation knows
# ------------------------------------------------------------------------------


def summarise_corrections(
    federated: FederatedDataset,
    notebooks: Mapping[str, Mapping[str, Any]],
    levels: Mapping[str, float] | None = None,
) -> dict[str, Any] | None:
    """The `corrections` part of a run's summary; None when no method touched a label or the truth is unknown.

    notebooks: pages by site. levels: noise levels that a method estimated, by site.
    """
    if federated.truth is None or all(evidence_of(pages).empty for pages in notebooks.values()):
        return None
    clean = {site: np.asarray(federated.truth.clean[site]) for site in federated.sites}
    labels_to_train_on = {site: _page(notebooks, site, "labels", federated.given[site]) for site in federated.sites}
    each = {site: correction(clean[site], federated.given[site], labels_to_train_on[site]) for site in federated.sites}
    true, before, after = (
        np.concatenate([part[site] for site in federated.sites])
        for part in (clean, federated.given, labels_to_train_on)
    )
    result: dict[str, Any] = {
        "overall": _shown(correction(true, before, after)),
        "per_class": {
            name: _shown(found)
            for name, found in zip(
                federated.dataset.classes, correction_per_class(true, before, after, federated.dataset.n_classes)
            )
        },
        "per_site": {site: _shown(found) for site, found in each.items()},
        "samples": _sample_detection(federated, notebooks, clean),
    }
    if levels:
        result["noise_level"] = _level_error(levels, each)
    plain_result: dict[str, Any] = plain(result)
    return plain_result


def _page(notebooks: Mapping[str, Mapping[str, Any]], site: str, page: str, default: NDArray[Any]) -> NDArray[Any]:
    """A field of the evidence as an array of the labels' shape, the default where a site has none that fits."""
    kept = getattr(evidence_of(notebooks.get(site, {})), page)
    if kept is None:
        return default
    values = np.asarray(kept)
    return values if values.shape == default.shape else default


def _shown(found: CorrectionScores) -> dict[str, Any]:
    counts: dict[str, Any] = plain(found)
    return {**counts, "noise_before": found.noise_before, "noise_after": found.noise_after}


def _sample_detection(
    federated: FederatedDataset, notebooks: Mapping[str, Mapping[str, Any]], clean: Mapping[str, NDArray[Any]]
) -> dict[str, Any]:
    """Flagged samples of all sites against wrong given labels; a site without flags flagged nothing.

    auroc: over all labels that have a suspicion; auroc_within_sites: the mean of the sites' own.
    """
    wrong: list[NDArray[np.bool_]] = []
    marked: list[NDArray[np.bool_]] = []
    scored: list[tuple[NDArray[np.bool_], NDArray[np.float64]]] = []
    for site in federated.sites:
        bad = clean[site] != federated.given[site]
        wrong.append(bad.ravel())
        unmarked = np.zeros(bad.shape, dtype=np.bool_)
        marked.append(_page(notebooks, site, "flagged", unmarked).astype(np.bool_).ravel())
        unscored = np.full(bad.shape, np.nan)
        suspicion = _page(notebooks, site, "suspicion", unscored).astype(np.float64)
        judged = ~np.isnan(suspicion)
        if judged.any():
            scored.append((bad[judged], suspicion[judged]))
    found = detect_samples(np.concatenate(wrong), np.concatenate(marked))
    own = [area for bad, score in scored if not np.isnan(area := roc_area(bad, score))]
    pooled = float("nan")
    if scored:
        pooled = roc_area(np.concatenate([b for b, _ in scored]), np.concatenate([s for _, s in scored]))
    return {
        "tp": found.tp,
        "fp": found.fp,
        "fn": found.fn,
        "tn": found.tn,
        "precision": found.precision,
        "recall": found.recall,
        "f1": found.f1,
        "auroc": pooled,
        "auroc_within_sites": float(np.mean(own)) if own else float("nan"),
    }


def _level_error(levels: Mapping[str, float], each: Mapping[str, CorrectionScores]) -> dict[str, float]:
    """Mean absolute error of the estimated noise levels, against the given and against the believed labels.

    A method that corrects as it goes estimates what is left (FedCorr Fig. 7); another one, what was given.
    """
    sites = [site for site in levels if site in each]
    return {
        "mean_error_given": float(np.mean([abs(levels[s] - each[s].noise_before) for s in sites])),
        "mean_error_believed": float(np.mean([abs(levels[s] - each[s].noise_after) for s in sites])),
        "sites": len(sites),
    }


def write_results(study: Study, folder: RunFolder, federation: EngineFederation, state: Any) -> dict[str, Any]:
    """The model, the site table and the summary; what a simulation knows besides goes into them."""
    rows = folder.rounds()
    simulation = federation.simulation
    federated = None if simulation is None else simulation.federated
    weights = study.method.model(state)
    if weights is not None:
        save_model(folder, weights)
        folder.write_json("model.json", model_card(study, federation, federated))
    folder.write_table("sites.csv", site_table(federation, federated, rows))
    summary = {
        "study": study.name,
        "method": study.method_name,
        "model": study.model.name,
        "dataset": federated.dataset.name if federated else "",
        "classes": list(federation.classes),
        "oracle": study.method.oracle,
        "seed": study.seed,
        "engine": study.engine.name,
        "sites": len(federation.sites),
        "trainers": dict(federation.cohorts),
        "kernels": "torch" if native.library() is None else "native",
        **summarise(rows),
        **({} if simulation is None else _against_the_truth(simulation, rows)),
        "notes": list(federated.notes) if federated else [],
    }
    folder.write_json("summary.json", summary)
    return summary


def model_card(study: Study, federation: EngineFederation, federated: FederatedDataset | None) -> dict[str, Any]:
    """What it takes to apply the model: its network, the shape of a sample, how pixels are normalised, the classes,
    and the scale of a table's features.

    Sites that are not simulated keep the normalisation to themselves: then `mean`, `std` and `scale` are null.
    """
    return {
        "model": study.model.name,
        "shape": list(federation.shape),
        "classes": list(federation.classes),
        "multilabel": federation.multilabel,
        "mean": None if federated is None else list(federated.dataset.mean),
        "std": None if federated is None else list(federated.dataset.std),
        "scale": None if federated is None else federated.dataset.scale,
    }


def save_model(folder: RunFolder, weights: Weights) -> None:
    """The weights as a plain safetensors file, readable by any tool."""
    folder.write_bytes("model.safetensors", bytes(save({key: value.contiguous() for key, value in weights.items()})))


def _against_the_truth(simulation: SimulationSettings, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How the sites called noisy compare with those that are, and what became of the labels."""
    federated, result = simulation.federated, {}
    found = Findings.last(rows)
    if found is not None and federated.truth is not None and not found.no_clean_reference:
        result["detection"] = site_detection(federated, list(found.noisy))
    corrections = summarise_corrections(federated, simulation.notebooks, None if found is None else found.level)
    if corrections is not None:
        result["corrections"] = corrections
    return result


def site_detection(federated: FederatedDataset, claimed: list[str]) -> dict[str, Any]:
    """Precision and recall of the sites called noisy, against those that the simulation made noisy."""
    assert federated.truth is not None
    truth = list(federated.truth.noisy)
    scores = detect_sets([claimed], truth)
    return {
        "precision": scores.precision,
        "recall": scores.recall,
        "exact": set(truth) == set(claimed),
        "truth": truth,
        "missed": sorted(set(truth) - set(claimed)),
        "false_alarms": sorted(set(claimed) - set(truth)),
    }


def site_table(
    federation: EngineFederation, federated: FederatedDataset | None, rows: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """One line a site: what it declared, what was found and recorded of it, and the truth where it is known."""
    refused = refusals(rows)
    table = []
    for site, facts in federation.facts.items():
        line: dict[str, Any] = {
            "site": site,
            "samples": facts.samples,
            "held_out": facts.held_out,
            "model": facts.model,
        }
        line.update({name: values.get(site) for name, values in federation.site_records.items()})
        line["replies_refused"] = refused.get(site, 0)
        if federated is not None:
            line.update(_truth_of(federated, site))
        table.append(line)
    return table


def _truth_of(federated: FederatedDataset, site: str) -> Mapping[str, Any]:
    given = federated.given[site]
    counts = given.sum(0) if given.ndim == 2 else np.bincount(given, minlength=federated.dataset.n_classes)
    line: dict[str, Any] = {"given_label_counts": counts.tolist()}
    if federated.truth is not None:
        line["truth_noisy"] = site in federated.truth.noisy
        line["truth_level"] = federated.truth.level.get(site, 0.0)
        line["truth_noise_rate"] = federated.truth.effective_rate(site, given)
    return line
