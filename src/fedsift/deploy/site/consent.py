"""Records what a site's operator has agreed to: pinned apps, allowed runs, withdrawal; and lists what left."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import json
import re
import shutil
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedsift.core.errors import ConfigError
from fedsift.core.files import append_private, private_folder, rewrite, safe_name, write_private
from fedsift.core.version import __version__
from fedsift.deploy.site.forgetting import FORGOTTEN
from fedsift.deploy.site.policy import Policy, fields_in, held_in, requests_in
from fedsift.deploy.site.privacy_account import FOLDER, PrivacyAccount
from fedsift.deploy.site.site_file import SiteFile, notebook_of, read_site_file
from fedsift.deploy.site.site_file_head import APP_PIN, EGRESS_FILE
from fedsift.protocol.disclosure import EVALUATION, declared, replies_of, undeclared
from fedsift.protocol.messages import ReplyEnvelope, Request, RequestEnvelope
from fedsift.protocol.method import Method
from fedsift.study.study import Study
from fedsift.training.recipe import Recipe
from fedsift.training.requests import Evaluate
from fedsift.transports.remote.messages import EncodedMessage
from fedsift.transports.remote.notebooks import run_folders

ALLOWED_RUNS = "allowed-runs.json"
APPROVED = "approved.json"
WITHDRAWN = "withdrawn.json"


# Runs that the operator lets in --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunTerms:
    """What an operator approves of a run: not its name, but what it may ask here, by which code, under which limits."""

    study: str
    """The resolved study, as the app has it."""
    code: dict[str, str]
    """Digests of fedsift's source and of the plugins that the site's file names."""
    limits: dict[str, Any]
    """The site's `[policy]`, its other limits and the dataset."""

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(vars(self), sort_keys=True).encode()).hexdigest()

    @classmethod
    def now(cls, study: str, file: SiteFile) -> RunTerms:
        """The terms under which a run of this study would be served at this moment."""
        code = {"fedsift": _source_digest("fedsift"), **{name: _source_digest(name) for name in file.plugins}}
        limits = {
            **dataclasses.asdict(file.policy or Policy()),
            **{name: getattr(file, name) for name in ("privacy_budget", "audit_min_count", "networks", "model")},
        }
        return cls(study, code, json.loads(json.dumps(limits)))

    def differences(self, now: RunTerms) -> list[str]:
        """What has changed since these terms were approved, in words."""
        mine, theirs = self._parts(), now._parts()
        keys = [key for key in {**mine, **theirs} if mine.get(key) != theirs.get(key)]
        return [key if key.startswith("code of ") else f"{key}: {mine.get(key)} -> {theirs.get(key)}" for key in keys]

    def _parts(self) -> dict[str, Any]:
        return {
            **_flat(tomllib.loads(self.study)),
            **{f"code of {name}": digest for name, digest in self.code.items()},
            **{f"policy.{name}": value for name, value in self.limits.items()},
        }


def _flat(table: dict[str, Any], path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in table.items():
        found |= _flat(value, f"{path}{key}.") if isinstance(value, dict) else {f"{path}{key}": value}
    return found


@lru_cache(maxsize=32)
def _source_digest(package: str) -> str:
    """Of all Python files of a package or module, as this process finds them first."""
    spec = importlib.util.find_spec(package)
    places = [] if spec is None else list(spec.submodule_search_locations or ()) or [spec.origin or ""]
    files = [
        file for place in map(Path, places) for file in (sorted(place.rglob("*.py")) if place.is_dir() else [place])
    ]
    hasher = hashlib.sha256()
    for file in files:
        hasher.update(hashlib.sha256(file.read_bytes() if file.is_file() else b"").digest())
    return hasher.hexdigest()


def allowed_runs(notebook: Path) -> dict[str, RunTerms]:
    """The runs that the operator has let in, each with what was approved. A file that cannot be read lets none in."""
    try:
        table = json.loads((notebook / ALLOWED_RUNS).read_text("utf-8"))
        found = {run: (RunTerms(row["study"], row["code"], row["limits"]), row["digest"]) for run, row in table.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    return {run: terms for run, (terms, digest) in found.items() if terms.digest == digest}


def allow_run(notebook: Path, run: str, terms: RunTerms) -> list[str]:
    """Let a run in on these terms; it is asked again by the coordinator's next request. Returns what changed since an
    earlier permission."""
    private_folder(notebook)
    known = allowed_runs(notebook)
    changed = known[run].differences(terms) if run in known else []
    table = {name: {**vars(each), "digest": each.digest} for name, each in {**known, run: terms}.items()}
    write_private(notebook / ALLOWED_RUNS, json.dumps(table, sort_keys=True).encode())
    return changed


def objection_to_run(asked: RequestEnvelope, model: str, file: SiteFile, notebook: Path) -> str | None:
    """Why a request is no part of what the operator approved of its run, or None. Nothing that the coordinator says of
    the run is believed: the request itself is held against the study that the operator has read."""
    terms = allowed_runs(notebook).get(asked.run)
    if terms is None:
        return f"this site's operator has not allowed the run '{asked.run}' yet"
    changed = terms.differences(RunTerms.now(terms.study, file))
    if changed:
        return f"what was allowed of the run '{asked.run}' has changed since: {'; '.join(changed)}"
    other = beyond_study(asked, model, file.model, _study_of(terms.study))
    return None if other is None else f"this is not the study that was allowed as the run '{asked.run}': {other}"


@lru_cache(maxsize=8)
def _study_of(text: str) -> Study:
    return Study.from_table(tomllib.loads(text))


def beyond_study(asked: RequestEnvelope, model: str, own: str, study: Study) -> str | None:
    """What a request asks beyond a study, in words: another seed, stage, round, network, request or training."""
    method, moment = study.method, asked.moment
    if moment.seed != study.seed:
        return f"it has seed {moment.seed}, the study {study.seed}"
    stages = declared(method, (Evaluate,))
    if moment.stage not in stages:
        return f"it has a stage '{moment.stage}', the study {', '.join(stages)}"
    if not 0 <= moment.round < method.total_rounds:
        return f"it is in round {moment.round + 1}, the study has {method.total_rounds}"
    if not own and model not in study.model.networks:
        return f"its network is '{model}', the study's {', '.join(study.model.networks)}"
    kinds = (*stages[moment.stage], *stages.get(EVALUATION, ()))
    name = undeclared(asked.request, kinds)
    if name is not None:
        return f"it asks {name} in the stage '{moment.stage}', the study does not"
    return next(filter(None, (_harder(recipe, method) for recipe in held_in(asked.request, Recipe))), None)


def _harder(recipe: Recipe, method: Method) -> str | None:
    """How a recipe trains beyond those of a method: for longer, in larger steps, on fewer samples at once."""
    own = list(held_in(method, Recipe))
    epochs = [value for name, value in _numbers_of(method) if "epochs" in name]
    if recipe.epochs > max(epochs, default=0):
        return f"it trains for {recipe.epochs} epochs, the study for {max(epochs, default=0)}"
    if recipe.lr > max((each.lr for each in own), default=0.0):
        return f"it trains by lr {recipe.lr:g}, the study by {max((each.lr for each in own), default=0.0):g}"
    least = min((each.batch_size for each in own), default=0)
    return (
        f"it trains on {recipe.batch_size} samples at once, the study on {least}" if recipe.batch_size < least else None
    )


def _numbers_of(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Names and numbers in a dataclass and in those that it holds."""
    if dataclasses.is_dataclass(value):
        for f in dataclasses.fields(value):
            yield from _numbers_of(getattr(value, f.name), f.name)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, value


# What was there when the site approved -------------------------------------------------------------------------------


def approve(notebook: Path) -> None:
    """Write down every request and every field of a reply that the installed fedsift knows now."""
    from fedsift.methods._base import methods

    methods.load_own()  # their requests count
    kinds = known_requests()
    replies = replies_of(list(kinds))
    table = {
        "fedsift": __version__,
        "requests": sorted({kind.__name__ for kind in kinds}),
        "fields": sorted({f"{r.__name__}.{f.name}" for r in replies for f in dataclasses.fields(r)}),
    }
    private_folder(notebook)
    write_private(notebook / APPROVED, json.dumps(table).encode())


def known_requests() -> tuple[type[Request[Any]], ...]:
    """Every class of request that this process has loaded."""
    found: dict[type[Request[Any]], None] = {}
    waiting: list[type[Request[Any]]] = [Request]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        found[kind] = None
    return tuple(found)


def rules_of(file: SiteFile, notebook: Path) -> Policy | None:
    """The policy with what the file leaves open filled in; None: no policy, and nobody ever approved (a trial)."""
    nothing: dict[str, Any] = {"requests": (), "fields": ()}
    try:
        approved = json.loads((notebook / APPROVED).read_text("utf-8"))
    except FileNotFoundError:
        approved = None
    except (OSError, ValueError):  # an approval that cannot be read: it has to be given again, by pinning
        approved = nothing
    policy = file.policy
    if policy is None:
        if approved is None:
            return None
        policy = Policy(min_count=0, audit=True)
    known = approved or nothing
    return dataclasses.replace(
        policy,
        requests=tuple(known["requests"]) if policy.requests is None else policy.requests,
        fields=tuple(known["fields"]) if policy.fields is None else policy.fields,
    )


# What left -----------------------------------------------------------------------------------------------------------


def account_of(path: Path, file: SiteFile) -> PrivacyAccount:
    """The privacy account of the site's dataset: beside the notebooks, so that site files can share one by its name."""
    policy = file.policy or Policy()
    name = safe_name(policy.dataset or file.name)
    return PrivacyAccount(notebook_of(path, file).parent / FOLDER / f"{name}.jsonl", policy.budget)


def label_account_of(path: Path, file: SiteFile) -> PrivacyAccount:
    """What all releases of the dataset's labels have spent on each of them, held against `privacy_budget`."""
    account = account_of(path, file)
    return PrivacyAccount(account.path.with_suffix(".labels.jsonl"), file.privacy_budget)


def question_account_of(path: Path, file: SiteFile) -> PrivacyAccount:
    """How many models the coordinator has had judged on the dataset, held against `policy.questions`."""
    most = (file.policy or Policy()).questions
    path = account_of(path, file).path.with_suffix(".questions.jsonl")
    return PrivacyAccount(path, most, "bound on questions (policy.questions)")


def note_reply(
    egress: Path,
    asked: Any,
    answer: Any,
    message: EncodedMessage,
    private: tuple[str, ...] = (),
    seconds: float = 0.0,
) -> None:
    """One line for what this process hands out: which request, which fields, bytes, hash; a refusal with its reason.

    `private`: fields that left with noise; the others are outside the privacy budget.
    """
    envelope = asked if isinstance(asked, RequestEnvelope) else None
    reply = answer.reply if isinstance(answer, ReplyEnvelope) else answer
    content = message.tree.encode() + message.tensors
    fields = list(fields_in(reply))
    line = {
        "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "run": envelope.run[:200] if envelope else "",
        "request": "+".join(requests_in(envelope.request)) if envelope else type(asked).__name__,
        "fields": fields,
        **({"outside_budget": [name for name in fields if name not in private]} if private else {}),
        "bytes": len(content),
        "seconds": round(seconds, 4),
        "sha256": hashlib.sha256(content).hexdigest(),
        **({"refused": answer.failure} if isinstance(answer, ReplyEnvelope) and answer.failure else {}),
    }
    append_private(egress, json.dumps(line))


def fields_that_left(egress: Path) -> dict[str, list[str]]:
    """Fields that left without noise while there was a budget, by request: what the account does not cover."""
    found: dict[str, dict[str, None]] = {}
    try:
        lines = egress.read_text("utf-8").splitlines()
    except OSError:
        return {}
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if "fields" in row and "refused" not in row:
            names = row.get("outside_budget", row["fields"])
            found.setdefault(row["request"], {}).update(dict.fromkeys(names))
    return {request: list(names) for request, names in found.items() if names}


# The end -------------------------------------------------------------------------------------------------------------


def withdraw(notebook: Path, *, erase: bool = False) -> list[str]:
    """Close a notebook: from now on the site answers nothing. Returns the runs that it has notes of.

    `erase`: remove the notes as well; what left, what was spent, and what was to be forgotten, stays on record.
    """
    private_folder(notebook)
    runs = runs_noted(notebook)
    table = {"at": datetime.now(UTC).isoformat(timespec="seconds"), "runs": runs, "erased": erase}
    write_private(notebook / WITHDRAWN, json.dumps(table).encode())
    if erase:
        for item in notebook.iterdir():
            if item.is_dir():
                shutil.rmtree(item)
            elif item.name not in (WITHDRAWN, EGRESS_FILE) and Path(FORGOTTEN).stem not in item.name:
                item.unlink()
    return runs


def runs_noted(notebook: Path) -> list[str]:
    return [folder.name for folder in run_folders(notebook)]


def withdrawn_since(notebook: Path) -> str | None:
    """When the site withdrew; None if it takes part. A file that cannot be read counts: the notebook stays closed."""
    file = notebook / WITHDRAWN
    if not file.exists():
        return None
    try:
        return str(json.loads(file.read_text("utf-8"))["at"])
    except (OSError, ValueError, KeyError, TypeError):
        return "an unknown time"


# Pinned apps
# ------------------------------------------------------------------------------


def app_fingerprint(app: Path) -> str:
    """`sha256:` and the hash of the app's archive, from its folder (packed by Flower's own packer) or its file."""
    if app.is_file():
        return f"sha256:{hashlib.sha256(app.read_bytes()).hexdigest()}"
    if not (app / "pyproject.toml").is_file():
        raise ConfigError(f"'{app}' is no app: name its folder, its .fab file or its sha256:...")
    from flwr.cli.build import build_fab_from_disk

    try:
        return f"sha256:{hashlib.sha256(build_fab_from_disk(app)).hexdigest()}"
    except ValueError as error:
        raise ConfigError(f"'{app}' cannot be packed as a Flower app: {' '.join(str(error).split())}") from None


def pin(app: str, site_file: Path) -> str:
    """Allow one more app at this site: its folder, its file or its fingerprint. Returns the fingerprint."""
    mark = app if APP_PIN.fullmatch(app) else app_fingerprint(Path(app))
    known = read_site_file(site_file).apps
    if mark in known:
        return mark
    wanted = [*known, mark]
    line = "apps = [" + ", ".join(f'"{each}"' for each in wanted) + "]"
    text = site_file.read_text("utf-8")
    # top-level keys stand before the first table; a value of several lines ends with its bracket
    first_table = re.search(r"^\s*\[", text, re.MULTILINE)
    head = text[: first_table.start()] if first_table else text
    rest = text[len(head) :]
    changed, count = re.subn(r"^apps\s*=\s*\[[^\]]*\]", line, head, count=1, flags=re.MULTILINE)
    if not count:
        changed = f"{head.rstrip()}\n{line}\n\n" if head.strip() else f"{line}\n\n"
    result = changed + rest
    before, after = tomllib.loads(text), tomllib.loads(result)
    if after.pop("apps") != wanted or {k: v for k, v in before.items() if k != "apps"} != after:
        raise ConfigError(f"{site_file} could not be changed safely: add {mark} to its 'apps' by hand")
    rewrite(site_file, result.encode("utf-8"))
    return mark
