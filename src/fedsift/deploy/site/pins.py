"""Pinned apps: the fingerprint of an app as Flower will send it, and the list in a site's file."""

from __future__ import annotations

import hashlib
import re
import tomllib
from pathlib import Path

from fedsift.core.errors import ConfigError
from fedsift.core.files import rewrite
from fedsift.deploy.site.site_file import read_site_file
from fedsift.deploy.site.site_file_head import APP_PIN


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
