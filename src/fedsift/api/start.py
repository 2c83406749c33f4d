"""`fedsift.run`, `fedsift.resume`, `fedsift.load` and `fedsift.audit`: start or open a run from Python."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsift.api import folder
from fedsift.api.progress import Listener, api_progress
from fedsift.api.run import Run
from fedsift.core.errors import ConfigError, RunError
from fedsift.core.text import short

if TYPE_CHECKING:
    from fedsift.data.sources.base import Source
    from fedsift.label_audit.running import Audit
    from fedsift.study.study import Study

OBJECTS = ("data", "partition", "noise", "method")
"""Tables in whose place an object may be passed."""


def run(
    study: Study | Mapping[str, Any] | Path | str | None = None,
    *,
    method: Any = None,
    data: Any = None,
    model: Any = None,
    seed: int | None = None,
    out: Path | str = "runs",
    progress: bool | None = None,
    listen: Listener | None = None,
    **tables: Any,
) -> Run:
    """Simulate a study in this process and return its run.

    study: a TOML file, a scenario's name, tables as a dict, or a `Study`; None starts from the defaults.
    method, data, model and every other table by name (partition, noise, train, engine, ...): a dict whose keys come
    before the study's, a name, or an object of one's own: a `Method`, `Source` (such as `Arrays`), `Partition`,
    `Noise`; for the model a factory `(shape, classes) -> nn.Module`.
    out: the folder in which the run's folder is made.
    progress: None shows it in a terminal and in a notebook; `listen` is called with each finished round's dict.
    """
    changes = {"method": method, "data": data, "model": model, "seed": seed, **tables}
    given = {key: value for key, value in changes.items() if value is not None}
    whole = assembled(study, given)
    return _go(whole, folder.start(whole, Path(out)), progress, listen, given.get("model"))


def resume(
    path: Path | str,
    *,
    method: Any = None,
    data: Any = None,
    model: Any = None,
    partition: Any = None,
    noise: Any = None,
    gate: Mapping[str, Any] | None = None,
    federation: Mapping[str, Any] | None = None,
    progress: bool | None = None,
    listen: Listener | None = None,
) -> Run:
    """Go on with a run that was stopped; the result is the unbroken run's.

    What was an object of a Python session, and is in no file or module, is passed again. `gate` and `federation`:
    settings of these tables from now on, which the run's events note.
    """
    table, place = folder.unfinished(Path(path))
    if gate or federation:
        folder.change(place, {"gate": gate or {}, "federation": federation or {}})
        table, place = folder.unfinished(Path(path))
    objects = {"method": method, "data": data, "partition": partition, "noise": noise}
    for key, value in objects.items():
        if value is not None:
            _check_same(key, value, table, path)
            table[key] = value
    if method is not None:
        table.pop("train", None)
    if model is not None:
        table["model"] = {**table.get("model", {}), "name": model}
    from fedsift.study.study import Study

    try:
        whole = Study.from_table(table)
    except ConfigError as error:
        raise RunError(f"{path} cannot go on: {error}") from error
    return _go(whole, place, progress, listen, model)


def load(path: Path | str, *, model: Callable[..., Any] | None = None) -> Run:
    """A run from its folder, finished or not. model: the network's factory, where the run's was one of a session."""
    return Run(path, model=model)


def assembled(study: Any, changes: Mapping[str, Any]) -> Study:
    """A study with changes over it, tables merged key by key.

    Paths in a file are relative to the file, paths in the changes to the working directory.
    """
    from fedsift.study.study import Study
    from fedsift.study.toml_tables import BasePaths

    typed = {f"{key}.{name}" for key, own in changes.items() if isinstance(own, Mapping) for name in own}
    bases = BasePaths(Path.cwd())
    if isinstance(study, Study):
        if not changes:
            return study
        table = _as_objects(study)
    elif study is None or isinstance(study, Mapping):
        table = dict(study or {})
    elif isinstance(study, str | Path):
        table = _read(Path(study))
        if Path(study).is_file():
            bases = BasePaths(Path(study).absolute().parent, frozenset(typed))
    else:
        raise ConfigError(f"a study is a file, a scenario's name, a dict or a Study, not a {type(study).__name__}")
    for key, value in changes.items():
        table[key] = _merged(key, table.get(key), value)
    return Study.from_table(table, bases)


def _merged(key: str, below: Any, over: Any) -> Any:
    if key == "model" and not isinstance(over, Mapping):
        over = {"name": over}
    if key in OBJECTS and isinstance(over, str):
        over = {"name": over}
    if not isinstance(over, Mapping):
        return over
    if not isinstance(below, Mapping):
        if below is not None and "name" not in over and key in OBJECTS:
            raise ConfigError(f"{key}={dict(over)!r} changes keys, but the study's {key} is an object: give its name")
        return dict(over)
    renamed = key in OBJECTS and over.get("name", below.get("name")) != below.get("name")
    return dict(over) if renamed else {**below, **over}


def _as_objects(study: Study) -> dict[str, Any]:
    """A study's tables, with objects where a table could not bring them back."""
    from fedsift.core.registry import importable

    table = study.to_table()
    for key, part in zip(OBJECTS, (study.source, study.partition, study.noise, study.method)):
        if not importable(type(part)) or (key == "data" and getattr(part, "held", None) is not None):
            table[key] = part
    return {**table, "track": dict(study.track)}


def _read(path: Path) -> dict[str, Any]:
    from fedsift.study.scenarios import preset_names, preset_table
    from fedsift.study.study import read_toml

    if not path.is_file() and path.as_posix() in preset_names():
        return preset_table(path.as_posix())
    return read_toml(path)


def _check_same(key: str, value: Any, table: Mapping[str, Any], path: Path | str) -> None:
    """Arrays that are not those with which the run began would give a result of neither."""
    written = table.get(key, {})
    digest = getattr(value, "digest", None)
    if key == "data" and digest is not None and written.get("digest", digest) != digest:
        raise RunError(
            f"{path} began with other arrays ({written.get('samples')} samples, digest {written['digest']}): "
            "pass the same ones, or start a new run"
        )


def _go(whole: Study, place: Any, progress: bool | None, listen: Listener | None, model: Any) -> Run:
    done = folder.rounds_done(place)
    name, total = whole.method_name, whole.method.total_rounds
    with api_progress(name, total, done=done, wanted=progress, folder=place.path) as shown:

        def on_round(row: dict[str, Any]) -> None:
            shown(row)
            if listen is not None:
                listen(row)

        with _said(place.path):
            folder.go(whole, place, on_round)
    return Run(place.path, model=model if callable(model) else None)


@contextlib.contextmanager
def _said(path: Path) -> Iterator[None]:
    """Ctrl-C, or the notebook's stop button, says how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"stopped; nothing is lost. Go on with: fedsift.resume('{path}')") from None


# Label audits
# ------------------------------------------------------------------------------


def audit(
    study: Study | Source | Mapping[str, Any] | Path | str | None = None,
    *,
    out: Path | str = "audit",
    model: str | Mapping[str, Any] = "",
    folds: int = 5,
    rounds: int = 12,
    fast: bool = False,
    progress: bool | None = None,
    listen: Listener | None = None,
    **tables: Any,
) -> Audit:
    """Judge every label by a model that never saw it; files for each site are written under `out`.

    study: a TOML file, a scenario's name, tables, a `Study`, or data alone: `Arrays`, or the path of a folder, a CSV or
    an .npz. model: the name of the network that judges (frozen features by default where a network would take long).
    folds, rounds, fast: as `fedsift audit`.
    """
    from fedsift.data.sources.base import Source
    from fedsift.label_audit.running import audit as carry_out
    from fedsift.label_audit.running import prepare_audit
    from fedsift.study.study import names_data, study_of_data

    changes = {key: value for key, value in tables.items() if value is not None}
    if isinstance(study, Source):
        whole = assembled(None, {"data": study, **changes})
    elif isinstance(study, str | Path) and names_data(study):
        whole = assembled(study_of_data(study), changes)
    else:
        whole = assembled(study, changes)
    made = prepare_audit(whole, folds=1 if fast else folds, rounds=rounds, model=_network(model))
    with api_progress("audit", made.study.method.total_rounds, wanted=progress) as show:

        def on_round(row: dict[str, Any]) -> None:
            show(row)
            if listen is not None:
                listen(row)

        return carry_out(made.study, Path(out), listen=on_round, federated=made.federated)


def _network(model: Any) -> str:
    """A network's name, as it is or as `fedsift.run` takes it."""
    name = model.get("name") if isinstance(model, Mapping) and set(model) == {"name"} else model
    if not isinstance(name, str):
        raise ConfigError(
            f"model={short(repr(model))}: an audit takes a network's name, such as 'cnn' or 'package.module:Name'"
        )
    return name
