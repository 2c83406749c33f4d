"""What a report needs to know of a run, read from its folder alone; what is missing is noted."""

from __future__ import annotations

import csv
import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedsift.contract import codec
from fedsift.contract.errors import ConfigError
from fedsift.engines.runfolder import RunFolder
from fedsift.methods import methods
from fedsift.study.results import CURVES, summarise

TEXT_COLUMNS = frozenset({"site", "model"})
"""Columns of sites.csv that stay text, whatever they look like: a site may well be called 12 or True."""
SAME_FEDERATION = ("seed", "data", "partition", "noise")
"""Parts of a study that make the federation; runs that agree in them can be compared."""


@dataclass(frozen=True)
class Span:
    """Consecutive rounds of one stage."""

    stage: str
    first: int
    last: int

    @property
    def words(self) -> str:
        return f"round {self.first}" if self.first == self.last else f"rounds {self.first}–{self.last}"


@dataclass(frozen=True)
class RunData:
    """One run, as far as its folder tells."""

    path: Path
    study: dict[str, Any]
    """The resolved study."""
    study_text: str
    rounds: list[dict[str, Any]]
    sites: list[dict[str, Any]]
    """One table line a site; of an unfinished run only what the methods recorded so far."""
    summary: dict[str, Any]
    """The written summary, or of an unfinished run one made from its rounds."""
    finished: bool
    planned: int | None
    """Rounds that the method has in all, if this version can still read the study."""
    missing: tuple[str, ...] = ()
    """What the folder lacks, in a person's words."""
    classes: tuple[str, ...] = field(default=())

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def method_key(self) -> str:
        return str(self.study.get("method", {}).get("name", "fedavg"))

    @property
    def method(self) -> str:
        """The method as its paper writes it."""
        try:
            return methods.get(self.method_key).__name__
        except ConfigError:
            return self.method_key

    @property
    def site_names(self) -> list[str]:
        return [str(line["site"]) for line in self.sites]

    @property
    def site_count(self) -> int | None:
        if self.sites:
            return len(self.sites)
        count = self.study.get("partition", {}).get("sites")
        return count if isinstance(count, int) else None

    @property
    def found(self) -> list[str] | None:
        """Sites that the method called noisy last; None when it never said."""
        claim = self.summary.get("noisy_sites_found")
        return None if claim is None else [str(site) for site in claim]

    @property
    def detection(self) -> dict[str, Any] | None:
        scores = self.summary.get("detection")
        return scores if isinstance(scores, dict) else None

    @property
    def tested(self) -> dict[str, Any] | None:
        """What the last test for noisy sites said: p_value, threshold, steadiness, borderline; None without one."""
        facts = self.summary.get("tested")
        return facts if isinstance(facts, dict) else None

    @property
    def truth(self) -> list[str] | None:
        """Sites that the simulation made noisy; None when nobody knows."""
        if not any(isinstance(line.get("truth_noisy"), bool) for line in self.sites):
            return None
        return [str(line["site"]) for line in self.sites if line.get("truth_noisy") is True]

    @property
    def curves(self) -> list[str]:
        return [name for name in CURVES if any(row.get(name) is not None for row in self.rounds)]

    def curve(self, name: str) -> list[tuple[int, float]]:
        """(round, value) wherever the value was measured."""
        return [(int(row["round"]), float(row[name])) for row in self.rounds if row.get(name) is not None]

    def spans(self) -> list[Span]:
        spans: list[Span] = []
        for row in self.rounds:
            stage, number = str(row.get("stage", "")), int(row["round"])
            if spans and spans[-1].stage == stage:
                spans[-1] = Span(stage, spans[-1].first, number)
            else:
                spans.append(Span(stage, number, number))
        return spans

    def last_value(self, name: str) -> Any:
        """The value of the last round that has one."""
        return next((row[name] for row in reversed(self.rounds) if row.get(name) is not None), None)

    def replies_by_stage(self) -> dict[str, list[str]] | None:
        """Reply classes that left the sites, by stage; None when some round does not say."""
        seen: dict[str, list[str]] = {}
        for row in self.rounds:
            if not isinstance(row.get("replies"), dict):
                return None
            names = seen.setdefault(str(row.get("stage", "")), [])
            for sent in row["replies"].values():
                names += [str(name) for name in sent if name not in names]
        return seen or None


def read_run(path: Path) -> RunData:
    """Read a run folder, finished or not. Raises RunError when it is no run folder at all."""
    folder = RunFolder.open(path)
    missing: list[str] = []
    text = folder.study_file.read_text("utf-8")
    study = _study(text, missing)
    rounds = [row for row in folder.rounds() if isinstance(row, dict) and "round" in row]
    summary, finished = _summary(folder, rounds, missing)
    sites = _sites(folder, finished, missing)
    if not rounds:
        missing.append("No round is finished yet: there are no curves and no measurements.")
    failure = folder.read_json("failure.json")
    if failure:
        missing.insert(0, f"The run stopped: {failure.get('error', 'no reason was written')}")
    return RunData(
        path=folder.path.absolute(),
        study=study,
        study_text=text,
        rounds=rounds,
        sites=sites,
        summary=summary,
        finished=finished,
        planned=_planned(folder.study_file),
        missing=tuple(missing),
        classes=_classes(summary, rounds, sites),
    )


def same_federation(runs: Sequence[RunData]) -> bool:
    first = runs[0]
    return all(run.study.get(key) == first.study.get(key) for run in runs for key in SAME_FEDERATION)


def labels_of(runs: Sequence[RunData]) -> list[str]:
    """A short name for each run: its method, and the folder where that does not tell two of them apart."""
    names = [run.method for run in runs]
    return [f"{n} ({run.id})" if names.count(n) > 1 else n for n, run in zip(names, runs)]


def numbers_of(values: Sequence[Any]) -> list[float | None]:
    """A recorded list as numbers; whatever is none becomes None."""
    return [float(v) if isinstance(v, int | float) and not isinstance(v, bool) else None for v in values]


def _study(text: str, missing: list[str]) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        missing.append(f"study.toml cannot be read: {error}.")
        return {}


def _planned(file: Path) -> int | None:
    from fedsift.study import Study

    try:
        return Study.from_file(file).method.total_rounds
    except ConfigError:
        return None  # written by another version, or with a method that is not installed here


def _summary(
    folder: RunFolder, rounds: list[dict[str, Any]], missing: list[str]
) -> tuple[dict[str, Any], bool]:
    try:
        written = folder.read_json("summary.json")
    except (json.JSONDecodeError, UnicodeDecodeError):
        written = None
        missing.append("summary.json cannot be read; its figures are made from the rounds.")
    if isinstance(written, dict):
        return written, True
    try:
        return summarise(rounds, None), folder.finished
    except (KeyError, TypeError) as error:
        missing.append(f"rounds.jsonl lacks what a summary needs ({error}).")
        return {}, folder.finished


def _sites(folder: RunFolder, finished: bool, missing: list[str]) -> list[dict[str, Any]]:
    file = folder.path / "sites.csv"
    if file.is_file():
        with file.open(newline="", encoding="utf-8") as text:
            return [_typed(line) for line in csv.DictReader(text) if line.get("site")]
    if finished:
        missing.append("sites.csv is missing: what is known of the sites comes from the checkpoint.")
    else:
        missing.append(
            "sites.csv is written when the run ends: counts of samples and labels and the truth come then."
        )
    return _sites_from_checkpoint(folder)


def _typed(line: dict[str, str]) -> dict[str, Any]:
    return {key: text if key in TEXT_COLUMNS else _value(text) for key, text in line.items() if key}


def _value(text: Any) -> Any:
    if text in ("True", "False"):
        return text == "True"
    if not isinstance(text, str) or text == "":
        return None
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _sites_from_checkpoint(folder: RunFolder) -> list[dict[str, Any]]:
    """Sites and their records from the checkpoint's header; its tensors, which may be large, stay unread."""
    fields = _checkpoint_fields(folder.checkpoint_file)
    try:
        accepted = codec.unpack(fields.get("accepted", {}), {})
        records = codec.unpack(fields.get("site_records", {}), {})
        tallies = codec.unpack(fields.get("tallies", {}), {})
    except ValueError:
        return []
    refusals = tallies.get("refusals", {})
    names = dict.fromkeys([*accepted, *(site for values in records.values() for site in values), *refusals])
    return [
        {
            "site": site,
            **{name: values.get(site) for name, values in records.items()},
            "replies_refused": refusals.get(site, 0),
        }
        for site in sorted(names)
    ]


def _checkpoint_fields(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as data:
            size = int.from_bytes(data.read(8), "little")
            header = json.loads(data.read(min(size, 100_000_000)))
        fields = json.loads(header["__metadata__"]["tree"])["fields"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return fields if isinstance(fields, dict) else {}


def _classes(
    summary: dict[str, Any], rounds: list[dict[str, Any]], sites: list[dict[str, Any]]
) -> tuple[str, ...]:
    """Names of the classes; of an unfinished run their numbers, as many as the measurements have."""
    if summary.get("classes"):
        return tuple(str(name) for name in summary["classes"])
    lists = [row["recall"] for row in rounds if isinstance(row.get("recall"), list)]
    lists += [line["indicator"] for line in sites if isinstance(line.get("indicator"), list)]
    return tuple(str(k) for k in range(max((len(values) for values in lists), default=0)))
