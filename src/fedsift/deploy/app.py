"""A ready Flower app from a study: the app directory, what the coordinator and the sites type, what leaves a site."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any, TypeVar

import tomli_w

from fedsift.contract.errors import ConfigError
from fedsift.contract.version import __version__
from fedsift.deploy.texts import leaves, one_line, readme, site_template
from fedsift.deploy.trial import export_test, export_trial
from fedsift.runs.folder import FEDERATION, TRACK
from fedsift.study.study import Study
from fedsift.study.track import track_toml

P = TypeVar("P")
PACKAGE = "fedsift_app"
NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,31}")


def write_app(
    study: Study, out: Path, *, sites: tuple[str, ...] = (), trial: Path | None = None
) -> list[Path]:
    """Write the app directory; with `trial`, also the study's own data as site folders there.

    Returns the trial's site files, in the federation's order.
    """
    _check_name(out)
    if out.exists() and any(out.iterdir()):
        raise ConfigError(f"'{out}' is not empty: name a new folder")
    spread = study.spread() if trial is not None else None
    files: list[Path] = []
    federation: dict[str, Any] = {"sites": list(sites), "at_least": len(sites) or 2, "wait": 600.0}
    if spread is not None and trial is not None:
        files = export_trial(spread, study.model.of_sites(spread.sites), trial / "sites")
        federation |= {"sites": list(spread.sites), "at_least": len(spread.sites), "wait": 300.0}
        federation |= export_test(spread, trial)
    texts = {
        "pyproject.toml": tomli_w.dumps(_project(study, out.name)),
        f"{PACKAGE}/__init__.py": f'"""The Flower app of study {one_line(study.name)}: all of it is in fedsift."""\n',
        f"{PACKAGE}/client.py": _MODULE.format(words="The site's side.", side="client"),
        f"{PACKAGE}/server.py": _MODULE.format(words="The coordinator's side.", side="server"),
        "study.toml": travelling(study).to_toml(),
        FEDERATION: _FEDERATION_WORDS + tomli_w.dumps(federation),
        "site.template.toml": site_template(spread, study.model.networks),
        "README.md": readme(study, out.name, files, leaves(study, central_test=bool(federation.get("test")))),
    }
    if study.track:
        texts[TRACK] = track_toml(study.track)
    for name, text in texts.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(text, "utf-8")
    return files


def travelling(study: Study) -> Study:
    """The study as the sites receive it: on Flower, protected as real sites are, and with files' names where the
    coordinator's own paths were.

    Nobody opens these files there, since sites have their own data; their folders are nobody else's business.
    """
    public = study.public
    if public is not None and public.source is not None:
        public = dataclasses.replace(public, source=_without_folders(public.source))
    return dataclasses.replace(
        study,
        source=_without_folders(study.source),
        partition=_without_folders(study.partition),
        noise=_without_folders(study.noise),
        public=public,
        method=study.method.deployed(),
        engine=dataclasses.replace(study.engine, name="flower"),
    )


def _without_folders(part: P) -> P:
    items = {f.name: getattr(part, f.name) for f in dataclasses.fields(part) if f.init}  # type: ignore[arg-type]
    paths = {name: Path(item.name) for name, item in items.items() if isinstance(item, Path)}
    return dataclasses.replace(part, **paths) if paths else part  # type: ignore[type-var]


def _check_name(out: Path) -> None:
    if not NAME.fullmatch(out.resolve().name):
        raise ConfigError(
            f"'{out.name}' cannot be a Flower app's folder: a letter first, then letters, digits and hyphens, "
            "at most 32 in all"
        )


def _project(study: Study, name: str) -> dict[str, Any]:
    app = {
        "publisher": "fedsift",
        "fab-exclude": [
            FEDERATION,
            *([TRACK] if study.track else []),
        ],  # the coordinator's own; Flower wants them there
        "components": {"serverapp": f"{PACKAGE}.server:app", "clientapp": f"{PACKAGE}.client:app"},
        "config": {"run-folder": ""},
    }
    return {
        "project": {
            "name": name,
            "version": "1.0.0",
            "description": f"{study.method_name}: {one_line(study.name)}",
            "license": "Apache-2.0",
            "dependencies": [f"fedsift[flower]=={__version__}"],
        },
        "tool": {"flwr": {"app": app}},
    }


_MODULE = '''\
"""{words}"""

from fedsift.deploy.{side} import app

__all__ = ["app"]
'''

_FEDERATION_WORDS = """\
# Whom the coordinator waits for.
# sites:    names of the sites, in a fixed order; an empty list takes those of the roster ([[site]]) that are not
#           revoked, and without a roster whoever comes, by name
# at_least: go on with so many when `wait` (seconds) is over; without names, start when so many have joined
# classes:  class names in their order; without them those of [test] count, or what more than half of the sites have
# [test]:   a dataset's table (see `fedsift datasets`) for labelled samples of the coordinator's own;
#           without it every site evaluates on what it holds out and sends counts
"""
