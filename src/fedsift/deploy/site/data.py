"""Loads a deployed site's data as site.toml says, and protects what its replies release: clipping, noise, privacy
account.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import secrets
from collections.abc import Iterator, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsift.core.codec import digest_of
from fedsift.core.errors import DataError
from fedsift.core.files import cache_root, private_folder, write_private
from fedsift.core.randomness import numpy_generator
from fedsift.data.dataset import Dataset, Labels, Rows
from fedsift.data.sources.base import Source, sources
from fedsift.data.splits import split, units_of
from fedsift.deploy.site.consent import account_of, label_account_of, question_account_of, rules_of
from fedsift.deploy.site.embeddings import kind_of, note_embedding
from fedsift.deploy.site.forgetting import FORGOTTEN, forgotten_at
from fedsift.deploy.site.policy import judges, without_spares
from fedsift.deploy.site.privacy_account import PrivacyCharge
from fedsift.deploy.site.site_file import SiteFile, notebook_of, read_site_file
from fedsift.formulas.privacy import update_zcdp
from fedsift.models.head import PREFIX
from fedsift.protocol.messages import Reply, RequestEnvelope, SiteFacts
from fedsift.protocol.site import Samples
from fedsift.study.toml_tables import build_named
from fedsift.training.features import is_features, with_features
from fedsift.training.private_updates import protected
from fedsift.transports.remote.site_runtime import Release, SiteRuntime

log = logging.getLogger("fedsift.site")


def open_site(path: Path, model: str = "", file: SiteFile | None = None) -> SiteRuntime:
    """Read a site.toml and its data; kept in memory while neither the file nor its arrays change.

    `model`: the study's network; when it is a head on frozen features, the site's pictures become features here.
    `file`: the site.toml as a request was begun with, so that one answer follows one policy.
    """
    path = Path(path).resolve()
    file = read_site_file(path) if file is None else file
    network = file.model or model
    # heads of every kind share their features: one copy of them
    return _open_site(path, _stamp(path, file), f"{PREFIX}{kind_of(network)}" if is_features(network) else "")


def _stamp(path: Path, file: SiteFile) -> tuple[int, ...]:
    named = [path.parent / value for key in ("path", "table") if isinstance(value := file.data.get(key), str)]
    sources = (path, *named, notebook_of(path, file) / FORGOTTEN)
    try:
        return tuple(source.stat().st_mtime_ns for source in sources if source.is_file())
    except OSError:
        return ()


def site_data(path: Path) -> tuple[SiteFile, Dataset, Rows, Rows]:
    """A site's file and data in the federation's classes, the rows that it trains on and those that it holds out."""
    file = read_site_file(path)
    dataset = _load(file.data, path, file)
    labels = _in_vocabulary(dataset, file)
    train, held = (_remembered(dataset, rows, path, file) for rows in (dataset.train, dataset.test))
    if len(held) == 0 and file.held_out > 0:
        groups = None if dataset.groups is None else dataset.groups[train]
        larger, smaller = split(labels[train], file.held_out, numpy_generator(0, file.name, "held out"), groups)
        train, held = train[larger], train[smaller]
    if len(train) == 0:
        raise DataError(f"site '{file.name}' has no training sample: check the [data] table of {path}")
    return file, dataclasses.replace(dataset, labels=labels, classes=file.classes), train, held


@lru_cache(maxsize=8)  # every kind of features is a copy of the data
def _open_site(path: Path, stamp: tuple[int, ...], features: str) -> SiteRuntime:
    file, raw, train, held = site_data(path)
    for note in raw.notes:  # samples that are left out would be missed by nobody else
        log.warning("site '%s': %s", file.name, note)
    keeping = partial(note_embedding, notebook_of(path, file), features)
    dataset = with_features(raw, features, device=file.device, keeping=keeping)
    labels = dataset.labels
    pool = torch.from_numpy(dataset.images).to(file.device)
    public = _public(file, path)
    annotated = file.annotated
    return SiteRuntime(
        name=file.name,
        classes=file.classes,
        multilabel=file.multilabel,
        mean=file.mean,
        std=file.std,
        model=file.model,
        annotated=None if annotated is None else tuple(sorted(map(file.classes.index, annotated))),
        privacy_budget=file.privacy_budget,
        device=file.device,
        notebook=notebook_of(path, file),
        history=file.notebook_history,
        samples=_samples(pool, train, file),
        given=torch.from_numpy(labels[train]),
        groups=_groups(dataset, train),
        audit_min_count=file.audit_min_count
        if file.policy is None
        else max(file.audit_min_count, file.policy.min_count),
        min_count=0 if file.policy is None else file.policy.min_count,
        release=releasing(path, file),
        held_out=_samples(pool, held, file) if len(held) else None,
        held_out_given=torch.from_numpy(labels[held]) if len(held) else None,
        public=public,
        public_digest="" if public is None else public.digest(),
        secret=own_secret(notebook_of(path, file)),
    )


def releasing(path: Path, file: SiteFile) -> Release:
    """What a site does to a reply before it is kept: labels that are released are paid for; by its policy, what is not
    listed and can be spared is left out, and every statistic passes the last step for its kind."""
    account, labels = account_of(path, file), label_account_of(path, file)
    questions = question_account_of(path, file)

    def release(envelope: RequestEnvelope, reply: Reply, facts: SiteFacts) -> Reply:
        policy = rules_of(file, notebook_of(path, file))
        if policy is not None:
            reply = without_spares(reply, policy.fields or ())
        for kind, epsilon, digest in label_releases(reply):
            labels.charge(PrivacyCharge(envelope.run, kind, epsilon, 0, 0.0, 0.0, digest))
        if policy is None:
            return reply
        request, mechanism = envelope.request, policy.mechanism
        if request.models_judged and judges(reply):
            questions.charge(PrivacyCharge(envelope.run, type(request).__name__, request.models_judged, 0, 0.0, 0.0))
        outcome = protected(reply, request, mechanism, min_count=policy.min_count, samples=facts.seen)
        if outcome.updates and mechanism is not None and mechanism.noise > 0:
            rho = update_zcdp(mechanism.noise, outcome.updates)
            name = type(request).__name__
            account.charge(PrivacyCharge(envelope.run, name, rho, outcome.updates, mechanism.clip, mechanism.noise))
        return outcome.reply

    return release


def label_releases(reply: Any) -> Iterator[tuple[str, float, str]]:
    """Releases of labels in a reply: its class, the epsilon that it spends on each label, and its digest."""
    if isinstance(reply, tuple):
        for part in reply:
            yield from label_releases(part)
    elif isinstance(reply, Reply):
        for f in dataclasses.fields(reply):
            value = getattr(reply, f.name)
            if f.metadata.get("label_loss"):
                yield type(reply).__name__, math.inf if value is None else float(value), digest_of(reply)
            yield from label_releases(value)


def _remembered(dataset: Dataset, rows: Rows, path: Path, file: SiteFile) -> Rows:
    """The rows without what the site has forgotten; where samples have no names, a row's number is none."""
    forgotten = forgotten_at(notebook_of(path, file))
    if not len(forgotten) or dataset.ids is None:
        return rows
    return rows[[dataset.id_of(int(row)) not in forgotten for row in rows]]


def _groups(dataset: Dataset, rows: Rows) -> Tensor | None:
    """Equal numbers for samples of one group, int64 `[n]`."""
    if dataset.groups is None:
        return None
    return torch.from_numpy(units_of(dataset.groups[rows]))


def _public(file: SiteFile, path: Path) -> Samples | None:
    if not file.public:
        return None
    data = _load(file.public, path, file)
    pool = torch.from_numpy(data.images).to(file.device)
    mean, std = file.public_mean or file.mean, file.public_std or file.std
    return Samples(pool, torch.from_numpy(data.train), mean, std)


def own_secret(notebook: Path) -> str:
    """Entropy that only this site knows, drawn once and kept beside its notebook."""
    file = notebook / "secret"
    private_folder(notebook.parent)
    private_folder(notebook)
    if not file.is_file():
        beside = notebook / f"secret.{os.getpid()}.new"
        write_private(beside, secrets.token_hex(32).encode("ascii"))
        try:
            os.link(beside, file)  # the first of two processes wins; both then read the same
        except FileExistsError:
            pass
        finally:
            beside.unlink()
    return file.read_text("ascii").strip()


def source_of(table: Mapping[str, Any], site_file: Path, classes: tuple[str, ...]) -> Source:
    """The source that a table describes, with paths relative to the site's file."""
    filled = dict(table)
    if filled.get("name") in ("folder", "table") and not filled.get("label_columns"):
        filled.setdefault("classes", list(classes))  # a site may lack classes that others have
    source: Source = build_named(sources, filled, "data")
    here = {
        f.name: site_file.parent / value
        for f in dataclasses.fields(source)
        if isinstance(value := getattr(source, f.name), Path)
    }
    located: Source = dataclasses.replace(source, **here)  # type: ignore[arg-type]
    return located


def _load(table: Mapping[str, Any], site_file: Path, file: SiteFile) -> Dataset:
    """The dataset of a table, with the labels that were given. What its files lack is an error that names the site."""
    try:
        dataset = source_of(table, site_file, file.classes).load()
    except DataError as error:
        raise DataError(f"site '{file.name}': {error}") from error
    except OSError as error:
        raise DataError(
            f"site '{file.name}': '{error.filename}' cannot be read or written ({error.strerror or error}); what is "
            f"made of its data is kept in {cache_root()}: FEDSIFT_CACHE names another folder"
        ) from error
    return dataset if dataset.given is None else dataclasses.replace(dataset, labels=dataset.given)


def _in_vocabulary(dataset: Dataset, file: SiteFile) -> Labels:
    """The labels as numbers of the federation's classes."""
    if dataset.multilabel != file.multilabel:
        kind = "several labels" if dataset.multilabel else "one label"
        raise DataError(f"site '{file.name}': its data have {kind} a sample, its site.toml says otherwise (multilabel)")
    unknown = [name for name in dataset.classes if name not in file.classes]
    if unknown:
        raise DataError(
            f"site '{file.name}': its data have class '{unknown[0]}', which is not one of its site.toml's "
            f"classes {', '.join(file.classes)}"
        )
    _check_range(dataset, file)
    if dataset.classes == file.classes:
        return dataset.labels
    number = np.array([file.classes.index(name) for name in dataset.classes])
    if not dataset.multilabel:
        return number[dataset.labels].astype(np.int64)
    labels = np.zeros((len(dataset.labels), len(file.classes)), np.int64)
    labels[:, number] = dataset.labels
    return labels


def _check_range(dataset: Dataset, file: SiteFile) -> None:
    """Labels are numbers of the data's classes, or 0 and 1 for each of them."""
    most = 1 if dataset.multilabel else len(dataset.classes) - 1
    odd = np.argwhere((dataset.labels < 0) | (dataset.labels > most))
    if len(odd):
        row = int(odd[0][0])
        raise DataError(
            f"site '{file.name}': sample {dataset.id_of(row)} has the label {dataset.labels[tuple(odd[0])]}, labels go "
            f"from 0 to {most} ({len(odd)} in all are outside): correct them in the data of its site.toml"
        )


def _samples(pool: Tensor, rows: Rows, file: SiteFile) -> Samples:
    return Samples(pool, torch.from_numpy(rows), file.mean, file.std)
