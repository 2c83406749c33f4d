"""The texts of an app: its README with the commands of both sides, a site file to fill in, all that leaves a site."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import tomli_w

from fedsift.contract.disclosure import declared, declared_replies, disclosure_rows
from fedsift.contract.plaintext import argument
from fedsift.data.dataset import Spread
from fedsift.deploy.addresses import LOOPBACK_ONLY
from fedsift.deploy.policy import AUDIT, Policy
from fedsift.engines.flower.hello import Introduction
from fedsift.local.networks import unknown_network
from fedsift.local.requests import Evaluate
from fedsift.signals.label_counts import FLOOR
from fedsift.study.study import Study


def one_line(text: str) -> str:
    return re.sub(r"[^\w .,-]", " ", text)


def site_template(spread: Spread | None, networks: Iterable[str] = ()) -> str:
    """A site.toml to fill in, with the federation's own values where they are known.

    `networks`: all that the study names; a site writes those that come by their address, or does not run them.
    """
    data = None if spread is None else spread.dataset
    classes = ["first class", "second class"] if data is None else list(data.classes)
    mean, std = ([0.5], [0.5]) if data is None else (list(data.mean), list(data.std))
    settings = tomli_w.dumps({"classes": classes, "mean": mean, "std": std})
    multilabel = data is not None and data.multilabel
    addresses = [name for name in dict.fromkeys(networks) if ":" in name and unknown_network(name)]
    if addresses:
        allowed = tomli_w.dumps({"networks": addresses})
        settings += (
            f"# The study's own networks: code that this site imports and calls. Read it first.\n{allowed}"
        )
    return f"""\
# This site, for its own eyes: the coordinator never sees this file, only what the README's list says.
name = "my-site"               # how the federation knows this site; unique, and kept for the whole run
# The next three must be the same at every site: class names in one order, and how pixels are normalised.
{settings}multilabel = {str(multilabel).lower()}             # true when a sample may have several labels
held_out = 0.2                 # share kept for evaluation here, when the data have no test part
notebook = "notebook"          # this site's own notes (corrected labels, private models); back it up, it never leaves
apps = []                      # the only apps that may run here: `fedsift flower pin APP site.toml`
# model = "resnet18_cifar"     # another network than the study's, for methods that allow it

# Any dataset of `fedsift datasets`; paths are relative to this file.
[data]
name = "folder"
path = "images"                # pictures
table = "labels.csv"           # a row for each picture: path, label
label_column = "label"

# What may be asked, what may leave, a floor, noise, a budget: `fedsift flower policy APP >> site.toml`, then cut it.
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


def asked_of_sites(study: Study) -> tuple[list[str], list[str]]:
    """Names of all requests and reply fields that this study's method declares."""
    asks = [kind for kinds in declared(study.method, (Evaluate,)).values() for kind in kinds]
    replies = [reply for kinds in declared_replies(study.method, (Evaluate,)).values() for reply in kinds]
    requests = list(dict.fromkeys(kind.__name__ for kind in asks))
    fields = list(dict.fromkeys(f"{reply}.{field}" for reply, field, _ in disclosure_rows({"": replies})))
    return requests, fields


def withheld(study: Study, policy: Policy) -> list[str]:
    """What this study's method asks or wants to hear and a site's policy does not allow, where that lists anything."""
    requests, fields = asked_of_sites(study)
    lacking = [name for name in requests if policy.requests is not None and name not in policy.requests]
    lacking += [name for name in fields if policy.fields is not None and name not in policy.fields]
    return lacking + (["audit = true"] if not policy.audit and not AUDIT.isdisjoint(requests) else [])


def narrowest_policy(study: Study) -> str:
    """A `[policy]` table with all that this study's method declares to ask and to let out, and nothing else."""
    requests, fields = asked_of_sites(study)
    table = {
        "requests": requests,
        "fields": fields,
        "floor": FLOOR,
        "audit": not AUDIT.isdisjoint(requests),
        "ask_first": False,
    }
    return tomli_w.dumps({"policy": table})


def readme(study: Study, name: str, trial_sites: list[Path], rows: list[list[str]]) -> str:
    table = "\n".join(f"| {reply} | {field} | {what} |" for reply, field, what in rows)
    trial = _TRIAL.format(
        name=name,
        nodes="\n".join(
            f"fedsift flower site {argument(file)} --superlink 127.0.0.1:8000 --insecure"
            for file in trial_sites
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

Everybody needs Python 3.11 or newer and `pip install 'fedsift[flower]'`, the same version everywhere.

## A trial on one machine

{trial}

Each command in its own terminal, run from the folder that holds `{name}/`.

## Across real sites

**{why}.** So Flower's own programs
stay on loopback, and a door of fedsift's stands in front of them on either side: the coordinator's lets only the calls
that sites need through, for listed keys; a site's lets only apps in that the site has pinned, and writes down what
leaves. Do not get around them with Flower's own programs, a forwarded port or a tunnel. Nobody but you should have an
account on the coordinator's machine: on loopback the control calls are open.

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
fedsift flower roster add NAME node.pub --samples 12000 --roster {name}/federation.toml   # once for each site
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
fedsift flower pin {name} site.toml                   # or the sha256:... that you were told
fedsift flower policy {name} >> site.toml             # all that the study asks and receives; read it, cut it
```

Then, and after every restart:

```
fedsift flower site site.toml --superlink fed.example.org:8000 --ca ca.crt --key node
```

The data are checked before anything connects. The site may restart at any time: it is known by its key, continues
from its notebook, and answers a repeated request as before. Back up the notebook folder; without it the site is set
aside for the rest of the run, and the coordinator is told so. Every body that leaves is listed in the notebook
folder's `egress.jsonl`: when, to which call, how many bytes, their hash.

## What leaves a site

What the method declares; it cannot ask for anything else. A field that is not listed does not exist in the messages.

| message | field | what it tells |
|---|---|---|
{table}

Besides, a failed request sends the kind of error, not its text; the text stays in the site's log.
"""
