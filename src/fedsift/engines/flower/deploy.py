"""A ready Flower app from a study: the app directory, what the coordinator and the sites type, what leaves a site."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from fedsift import __version__
from fedsift.contract.disclosure import declared_replies, disclosure_rows
from fedsift.contract.errors import ConfigError
from fedsift.data.dataset import Spread
from fedsift.engines.flower.hello import Introduction
from fedsift.engines.flower.simulation import FEDERATION_FILE
from fedsift.engines.flower.sites import export_sites
from fedsift.local.requests import Evaluate
from fedsift.study.study import Study

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
        files = export_sites(spread, study.model.of_sites(spread.sites), trial / "sites", simulated=False)
        federation |= {"sites": list(spread.sites), "at_least": len(spread.sites), "wait": 300.0}
        federation |= _export_test(spread, trial)
    texts = {
        "pyproject.toml": tomli_w.dumps(_project(study, out.name)),
        f"{PACKAGE}/__init__.py": f'"""The Flower app of study {_words(study.name)}: all of it is in fedsift."""\n',
        f"{PACKAGE}/client.py": _MODULE.format(words="The site's side.", side="client"),
        f"{PACKAGE}/server.py": _MODULE.format(words="The coordinator's side.", side="server"),
        "study.toml": dataclasses.replace(
            study, engine=dataclasses.replace(study.engine, name="flower")
        ).to_toml(),
        FEDERATION_FILE: _FEDERATION_WORDS + tomli_w.dumps(federation),
        "site.template.toml": site_template(spread),
        "README.md": readme(study, out.name, files, leaves(study, central_test=bool(federation.get("test")))),
    }
    for name, text in texts.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(text, "utf-8")
    return files


def _check_name(out: Path) -> None:
    if not NAME.fullmatch(out.resolve().name):
        raise ConfigError(
            f"'{out.name}' cannot be a Flower app's folder: a letter first, then letters, digits and hyphens, "
            "at most 32 in all"
        )


def _words(text: str) -> str:
    return re.sub(r"[^\w .,-]", " ", text)


def _project(study: Study, name: str) -> dict[str, Any]:
    app = {
        "publisher": "fedsift",
        "fab-exclude": [FEDERATION_FILE],  # the coordinator's own
        "components": {"serverapp": f"{PACKAGE}.server:app", "clientapp": f"{PACKAGE}.client:app"},
        "config": {"run-folder": ""},
    }
    return {
        "project": {
            "name": name,
            "version": "1.0.0",
            "description": f"{study.method_name}: {_words(study.name)}",
            "license": "Apache-2.0",
            "dependencies": [f"fedsift[flower]=={__version__}"],
        },
        "tool": {"flwr": {"app": app}},
    }


def _export_test(spread: Spread, trial: Path) -> dict[str, Any]:
    data = spread.dataset
    if len(data.test) == 0:
        return {}
    path = (trial / "test.npz").resolve()
    np.savez(
        path, images=data.images[data.test], labels=data.labels[data.test], classes=np.array(data.classes)
    )
    return {"test": {"name": "npz", "path": str(path)}}


_MODULE = '''\
"""{words}"""

from fedsift.engines.flower.{side} import app

__all__ = ["app"]
'''

_FEDERATION_WORDS = """\
# Whom the coordinator waits for.
# sites:    names of the sites, in a fixed order; an empty list takes whoever comes, by name
# at_least: start when so many have joined; with names, go on with so many when `wait` (seconds) is over
# [test]:   a dataset's table (see `fedsift datasets`) for labelled samples of the coordinator's own;
#           without it every site evaluates on what it holds out and sends counts
"""


def site_template(spread: Spread | None) -> str:
    """A site.toml to fill in, with the federation's own values where they are known."""
    data = None if spread is None else spread.dataset
    classes = ["first class", "second class"] if data is None else list(data.classes)
    mean, std = ([0.5], [0.5]) if data is None else (list(data.mean), list(data.std))
    settings = tomli_w.dumps({"classes": classes, "mean": mean, "std": std})
    multilabel = data is not None and data.multilabel
    return f"""\
# This site, for its own eyes: the coordinator never sees this file, only what the README's list says.
name = "my-site"               # how the federation knows this site; unique, and kept for the whole run
# The next three must be the same at every site: class names in one order, and how pixels are normalised.
{settings}multilabel = {str(multilabel).lower()}             # true when a sample may have several labels
held_out = 0.2                 # share kept for evaluation here, when the data have no test part
notebook = "notebook"          # this site's own notes (corrected labels, private models); back it up, it never leaves
# model = "resnet18_cifar"     # another network than the study's, for methods that allow it

# Any dataset of `fedsift datasets`; paths are relative to this file.
[data]
name = "folder"
path = "images"                # pictures
table = "labels.csv"           # a row for each picture: path, label
label_column = "label"

# Or arrays: images uint8 [n, h, w] or [n, c, h, w], labels [n], classes
# [data]
# name = "npz"
# path = "data.npz"
"""


def leaves(study: Study, *, central_test: bool) -> list[list[str]]:
    """Reply, field and words of all that this study's method declares to let out of a site."""
    by_stage = declared_replies(study.method, () if central_test else (Evaluate,))
    return disclosure_rows({"on joining": [Introduction], **by_stage})


def readme(study: Study, name: str, trial_sites: list[Path], rows: list[list[str]]) -> str:
    table = "\n".join(f"| {reply} | {field} | {what} |" for reply, field, what in rows)
    trial = _TRIAL.format(
        name=name,
        nodes="\n".join(
            f"fedsift flower site {file} --superlink 127.0.0.1:8000 --insecure" for file in trial_sites
        )
        or "fedsift flower site SITE.toml --superlink 127.0.0.1:8000 --insecure     # once for each site",
    )
    return _README.format(
        name=name,
        study=_words(study.name),
        method=study.method_name,
        model=study.model.name,
        trial=trial,
        table=table,
        rounds=study.method.total_rounds,
    )


_TRIAL = """\
```
fedsift flower superlink --insecure                   # terminal 1: the meeting point, on this machine only
{nodes}
fedsift flower start {name} --run-folder runs/first --superlink 127.0.0.1:8000 --insecure
```"""

_README = """\
# {study}

A Flower app that runs **{method}** ({rounds} rounds, network `{model}`) across sites with fedsift. Data never
travel: every site answers requests from its own disk, and the list at the end is all that leaves it. The tables
`[data]`, `[partition]` and `[noise]` of study.toml are for simulations; a deployed site uses its own `site.toml`.

Everybody needs Python 3.11 or newer and `pip install 'fedsift[flower]'`, the same version everywhere.

## A trial on one machine

{trial}

Each command in its own terminal, run from the folder that holds `{name}/`. Without encryption these commands refuse
any address but the machine's own.

## The coordinator

Once: a certificate for the machine's name (here `fed.example.org`), and one key pair from each site.

```
openssl req -x509 -newkey rsa:4096 -nodes -days 825 -keyout ca.key -out ca.crt -subj "/CN=our federation"
openssl req -newkey rsa:4096 -nodes -keyout server.key -out server.csr -subj "/CN=fed.example.org"
printf "subjectAltName=DNS:fed.example.org,DNS:localhost,IP:127.0.0.1" > names.txt
openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -days 825 -extfile names.txt -out server.crt
```

Give `ca.crt` to every site (never `ca.key`), get every site's `node.pub`. Then:

```
fedsift flower superlink --host 0.0.0.0 --ca ca.crt --certificate server.crt --key server.key --database sites.db
fedsift flower register node.pub --superlink fed.example.org:8000 --ca ca.crt        # once for each site
fedsift flower start {name} --run-folder runs/first --superlink fed.example.org:8000 --ca ca.crt
```

Edit `{name}/federation.toml` first: the sites' names, how many must be there, a test set if you have one. Start the run
on the machine where the SuperLink runs: the run folder lies there. Progress is shown and the report is written. After
a crash or Ctrl-C, the same `start` goes on from the last finished round.

## A site

Once: a key pair, and the site's description.

```
ssh-keygen -t ecdsa -b 384 -N "" -f node              # send node.pub to the coordinator, keep node
cp {name}/site.template.toml site.toml                # then fill it in
```

Then, and after every restart:

```
fedsift flower site site.toml --superlink fed.example.org:8000 --ca ca.crt --key node
```

The data are checked before anything connects. The site may restart at any time: it is known by its name, continues
from its notebook, and answers a repeated request as before. Back up the notebook folder; without it the site is set
aside for the rest of the run, and the coordinator is told so.

Know what you join: Flower sends this app's code (two files that import fedsift) to every site and runs it there. Join
only a coordinator whom you trust with that.

## What leaves a site

Found by running one round of every stage. A field that is not listed does not exist in the messages.

| message | field | what it tells |
|---|---|---|
{table}

Besides, a failed request sends the kind of error, not its text; the text stays in the site's log.
"""
