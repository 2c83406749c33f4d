"""Records what a site's operator has agreed to: pinned apps, allowed runs, withdrawal; and lists what left."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shutil
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedsift.core.errors import ConfigError
from fedsift.core.files import append_private, private_folder, rewrite, safe_name, write_private
from fedsift.core.version import __version__
from fedsift.deploy.site.forgetting import FORGOTTEN
from fedsift.deploy.site.policy import Policy, fields_in, requests_in
from fedsift.deploy.site.privacy_account import FOLDER, PrivacyAccount
from fedsift.deploy.site.site_file import SiteFile, notebook_of, read_site_file
from fedsift.deploy.site.site_file_head import APP_PIN, EGRESS_FILE
from fedsift.protocol.disclosure import replies_of
from fedsift.protocol.messages import ReplyEnvelope, Request, RequestEnvelope
from fedsift.transports.remote.messages import EncodedMessage
from fedsift.transports.remote.notebooks import run_folders

ALLOWED_RUNS = "allowed-runs.json"
APPROVED = "approved.json"
WITHDRAWN = "withdrawn.json"


# Runs that the operator lets in --------------------------------------------------------------------------------------


def allowed_runs(notebook: Path) -> frozenset[str]:
    try:
        return frozenset(map(str, json.loads((notebook / ALLOWED_RUNS).read_text("utf-8"))))
    except (OSError, ValueError):
        return frozenset()


def allow_run(notebook: Path, run: str) -> None:
    """Let a run in; it is asked again by the coordinator's next request."""
    private_folder(notebook)
    runs = sorted(allowed_runs(notebook) | {run})
    write_private(notebook / ALLOWED_RUNS, json.dumps(runs).encode())


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
