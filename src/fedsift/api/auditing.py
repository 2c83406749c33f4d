"""`fedsift.audit`: from Python to every site's list of wrong labels."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsift.api.progress import Listener, api_progress
from fedsift.api.start import assembled
from fedsift.core.errors import ConfigError
from fedsift.core.text import short

if TYPE_CHECKING:
    from fedsift.data.sources.base import Source
    from fedsift.label_audit.running import Audit
    from fedsift.study.study import Study


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
    from fedsift.label_audit.running import audit_study
    from fedsift.study.own_data import names_data, study_of_data

    changes = {key: value for key, value in tables.items() if value is not None}
    if isinstance(study, Source):
        whole = assembled(None, {"data": study, **changes})
    elif isinstance(study, str | Path) and names_data(study):
        whole = assembled(study_of_data(study), changes)
    else:
        whole = assembled(study, changes)
    made, _ = audit_study(whole, folds=1 if fast else folds, rounds=rounds, model=_network(model))
    with api_progress("audit", made.method.total_rounds, wanted=progress) as show:

        def told(row: dict[str, Any]) -> None:
            show(row)
            if listen is not None:
                listen(row)

        return carry_out(made, Path(out), listen=told)


def _network(model: Any) -> str:
    """A network's name, as it is or as `fedsift.run` takes it."""
    name = model.get("name") if isinstance(model, Mapping) and set(model) == {"name"} else model
    if not isinstance(name, str):
        raise ConfigError(
            f"model={short(repr(model))}: an audit takes a network's name, such as 'cnn' or 'package.module:Name'"
        )
    return name
