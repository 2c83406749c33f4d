"""Writes a Flower app for a study: its folder, the operators' instructions, what leaves a site, and the policy it
needs.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

import tomli_w

from fedsift.core.errors import ConfigError
from fedsift.core.loopback import LOOPBACK_ONLY
from fedsift.core.text import argument
from fedsift.core.version import __version__
from fedsift.data.dataset import FederatedDataset
from fedsift.deploy.site.policy import AUDIT, Policy
from fedsift.deploy.trial_data import export_test, export_trial
from fedsift.formulas.small_counts import MIN_COUNT
from fedsift.protocol.disclosure import declared, declared_replies, disclosure_rows
from fedsift.runs.folder import FEDERATION, TRACK
from fedsift.study.study import Study
from fedsift.study.tracking import track_toml
from fedsift.training.features import unknown_network
from fedsift.training.requests import Evaluate
from fedsift.transports.remote.introduction import Introduction

# The texts of an app: its README with the commands of both sides, a site file to fill in, all that
# leaves a site
# ------------------------------------------------------------------------------


def one_line(text: str) -> str:
    return re.sub(r"[^\w .,-]", " ", text)


def site_template(federated: FederatedDataset | None, networks: Iterable[str] = ()) -> str:
    """A site.toml to fill in, with the federation's own values where they are known.

    `networks`: all that the study names; a site writes those that come by their address, or does not run them.
    """
    data = None if federated is None else federated.dataset
    classes = ["first class", "second class"] if data is None else list(data.classes)
    mean, std = ([0.5], [0.5]) if data is None else (list(data.mean), list(data.std))
    settings = tomli_w.dumps({"classes": classes, "mean": mean, "std": std})
    multilabel = data is not None and data.multilabel
    addresses = [name for name in dict.fromkeys(networks) if ":" in name and unknown_network(name)]
    if addresses:
        allowed = tomli_w.dumps({"networks": addresses})
        settings += f"# The study's own networks: code that this site imports and calls. Read it first.\n{allowed}"
    return f"""\
# This site, for its own eyes: the coordinator never sees this file, only what the README's list says.
name = "my-site"               # how the federation knows this site; unique, and kept for the whole run
# The next three must be the same at every site: class names in one order, and how pixels are normalised.
{settings}multilabel = {str(multilabel).lower()}             # true when a sample may have several labels
held_out = 0.2                 # share kept for evaluation here, when the data have no test part
notebook = "notebook"          # this site's own notes (corrected labels, private models); back it up, it never leaves
privacy_budget = 4.0           # epsilon that all releases of a label may spend together, ever (inf: no limit)
apps = []                      # the only apps that may run here: `fedsift flower pin APP site.toml`
# model = "resnet18_cifar"     # another network than the study's, for methods that allow it

# Any dataset of `fedsift datasets`; paths are relative to this file.
[data]
name = "folder"
path = "images"                # pictures
table = "labels.csv"           # a row for each picture: path, label
label_column = "label"

# Requests, replies, a minimum count, noise and a budget: `fedsift flower policy APP >> site.toml`, then cut it.
# Without the table the site answers what this fedsift knew when you pinned the app.

# Or arrays: images uint8 [n, h, w] or [n, c, h, w], labels [n], classes
# [data]
# name = "npz"
# path = "data.npz"
"""


def leaves(study: Study, *, central_test: bool) -> list[list[str]]:
    """Reply, field and words of all that this study's method declares to let out of a site."""
    by_stage = declared_replies(study.method, () if central_test else (Evaluate,))
    return disclosure_rows({"on joining": [Introduction], **by_stage})


def requested_fields(study: Study, *, spare: bool = True) -> tuple[list[str], list[str]]:
    """Names of all requests and reply fields that this study's method declares; also those that it can `spare`."""
    asks = [kind for kinds in declared(study.method, (Evaluate,)).values() for kind in kinds]
    replies = [reply for kinds in declared_replies(study.method, (Evaluate,)).values() for reply in kinds]
    requests = list(dict.fromkeys(kind.__name__ for kind in asks))
    fields = [
        f"{reply.__name__}.{field.name}"
        for reply in dict.fromkeys(replies)
        for field in dataclasses.fields(reply)
        if spare or not (field.metadata["spare"] or field.metadata["statistic"] == "replies")
    ]
    return requests, fields


def withheld(study: Study, policy: Policy) -> list[str]:
    """What this study's method asks or needs to hear and a site's policy does not allow, where that lists anything;
    without it the method cannot run here. Fields that it can spare are not among them."""
    requests, fields = requested_fields(study, spare=False)
    lacking = [name for name in requests if policy.requests is not None and name not in policy.requests]
    lacking += [name for name in fields if policy.fields is not None and name not in policy.fields]
    return lacking + (["audit = true"] if not policy.audit and not AUDIT.isdisjoint(requests) else [])


def narrowest_policy(study: Study) -> str:
    """A `[policy]` table with all that this study's method declares to ask and to let out, and nothing else."""
    requests, fields = requested_fields(study)
    table = {
        "requests": requests,
        "fields": fields,
        "min_count": MIN_COUNT,
        "audit": not AUDIT.isdisjoint(requests),
        "ask_first": False,
    }
    return tomli_w.dumps({"policy": table})


def readme(study: Study, name: str, trial_sites: list[Path], rows: list[list[str]]) -> str:
    table = "\n".join(f"| {reply} | {field} | {what} |" for reply, field, what in rows)
    trial = _TRIAL.format(
        name=name,
        nodes="\n".join(
            f"fedsift flower site {argument(file)} --superlink 127.0.0.1:8000 --insecure" for file in trial_sites
        )
        or "fedsift flower site SITE.toml --superlink 127.0.0.1:8000 --insecure     # once for each site",
    )
    return _README.format(
        name=name,
        study=one_line(study.name),
        method=study.method_name,
        model=study.model.name,
        trial=trial,
        why=LOOPBACK_ONLY,
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

Everybody needs Python 3.11 or newer and `pip install 'fedsift[deploy]'`, the same version everywhere.

## A trial on one machine

{trial}

Each command in its own terminal, run from the folder that holds `{name}/`.

## Across real sites

**{why}.** So Flower's own programs
stay on loopback behind a fedsift gateway on either side. The coordinator's gateway forwards only the calls that sites
need, for keys on the roster. A site's gateway accepts only the apps that the site has pinned, and logs what leaves. Do
not bypass them with Flower's own programs, a forwarded port or a tunnel. Nobody but you should have an account on the
coordinator's machine: on loopback the control calls are open.

The coordinator, once: a certificate for the name by which sites reach this machine (here fed.example.org).

```
openssl req -x509 -newkey rsa:4096 -nodes -days 825 -keyout ca.key -out ca.crt -subj "/CN=our federation"
openssl req -newkey rsa:4096 -nodes -keyout server.key -out server.csr -subj "/CN=fed.example.org"
printf "subjectAltName=DNS:fed.example.org,DNS:localhost,IP:127.0.0.1" > names.txt
openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -days 825 -extfile names.txt -out server.crt
```

Give `ca.crt` to every site (never `ca.key`) with the app's `sha256:...` that `fedsift deploy` printed, and get every
site's `node.pub`; compare fingerprints by telephone (`fedsift flower fingerprint node.pub`). Then:

```
fedsift flower roster add NAME node.pub --samples 400 --roster {name}/federation.toml   # once for each site
fedsift flower superlink --host 0.0.0.0 --port 8000 \\
    --certificate server.crt --key server.key --roster {name}/federation.toml
fedsift flower start {name} --run-folder runs/first                     # on the same machine
fedsift flower roster revoke NAME --roster {name}/federation.toml       # from its next message on
```

Edit `{name}/federation.toml` first: the sites' names, how many must be there, a test set if you have one. Progress is
shown and the report is written. After a crash or Ctrl-C, the same `start` goes on from the last finished round.

A site, once: a key pair, the site's description, and the app that it has read and allows.

```
ssh-keygen -t ecdsa -b 384 -N "" -f node              # send node.pub to the coordinator, keep node
cp {name}/site.template.toml site.toml                # then fill it in
fedsift flower pin {name} site.toml                   # or the sha256:... that the coordinator told you
fedsift flower policy {name} >> site.toml             # all that the study asks and receives; read it, cut it
```

Then, and after every restart:

```
fedsift flower site site.toml --superlink fed.example.org:8000 --ca ca.crt --key node
```

The data are checked before anything connects. The site may restart at any time: it is known by its key, continues
from its notebook, and answers a repeated request as before. Back up the notebook folder; without it the site is set
aside for the rest of the run, and the coordinator gets the reason. Every body that leaves is listed in the notebook
folder's `egress.jsonl`: when, to which call, how many bytes, their hash.

## What leaves a site

What the method declares; it cannot ask for anything else. A field that is not listed does not exist in the messages.

| message | field | what it discloses |
|---|---|---|
{table}

Besides, a failed request sends the kind of error, not its text; the text stays in the site's log.
"""


P = TypeVar("P")
PACKAGE = "fedsift_app"
NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,31}")


def write_app(study: Study, out: Path, *, sites: tuple[str, ...] = (), trial: Path | None = None) -> list[Path]:
    """Write the app directory; with `trial`, also the study's own data as site folders there.

    Returns the trial's site files, in the federation's order.
    """
    _check_name(out)
    if out.exists() and any(out.iterdir()):
        raise ConfigError(f"'{out}' is not empty: name a new folder")
    federated = study.load_data() if trial is not None else None
    files: list[Path] = []
    federation: dict[str, Any] = {"sites": list(sites), "at_least": len(sites) or 2, "wait": 600.0}
    if federated is not None and trial is not None:
        files = export_trial(federated, study.model.of_sites(federated.sites), trial / "sites")
        federation |= {"sites": list(federated.sites), "at_least": len(federated.sites), "wait": 300.0}
        federation |= export_test(federated, trial)
    texts = {
        "pyproject.toml": tomli_w.dumps(_project(study, out.name)),
        f"{PACKAGE}/__init__.py": f'"""The Flower app of study {one_line(study.name)}: all of it is in fedsift."""\n',
        f"{PACKAGE}/client.py": _MODULE.format(words="The site's side.", module="site.client_app"),
        f"{PACKAGE}/server.py": _MODULE.format(words="The coordinator's side.", module="coordinator.server_app"),
        "study.toml": portable_study(study).to_toml(),
        FEDERATION: _FEDERATION_WORDS + tomli_w.dumps(federation),
        "site.template.toml": site_template(federated, study.model.networks),
        "README.md": readme(study, out.name, files, leaves(study, central_test=bool(federation.get("test")))),
    }
    if study.track:
        texts[TRACK] = track_toml(study.track)
    for name, text in texts.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(text, "utf-8")
    return files


def portable_study(study: Study) -> Study:
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
            "dependencies": [f"fedsift[deploy]=={__version__}"],
        },
        "tool": {"flwr": {"app": app}},
    }


_MODULE = '''\
"""{words}"""

from fedsift.deploy.{module} import app

__all__ = ["app"]
'''

_FEDERATION_WORDS = """\
# Whom the coordinator waits for.
# sites:    names of the sites, in a fixed order; an empty list takes those of the roster ([[site]]) that are not
#           revoked, and without a roster every site that joins, by name
# at_least: go on with so many when `wait` (seconds) is over; without names, start when so many have joined
# classes:  class names in their order; without them those of [test] count, or what more than half of the sites have
# [test]:   a dataset's table (see `fedsift datasets`) for labelled samples of the coordinator's own;
#           without it every site evaluates on what it holds out and sends counts
"""
