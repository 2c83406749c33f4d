"""Forgetting a sample wherever an audit keeps anything of it: the site's files, its notebook, what was judged later."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fedsift.core.errors import RunError
from fedsift.core.files import safe_name
from fedsift.data.truth_ledger import TruthLedger as Truth
from fedsift.label_audit.corrections import RemovedSample, forget
from fedsift.label_audit.ledger import LabelLedger
from fedsift.label_audit.site_audit import SiteAudit, load
from fedsift.label_audit.site_files import SiteFolder
from fedsift.runs.folder import RunFolder

ANEW = "the audit cannot be gone on with: the next `fedsift audit` computes it anew, without the sample"


def forget_everywhere(folder: SiteFolder, audit: SiteAudit, name: str, *, who: str) -> tuple[RemovedSample, SiteAudit]:
    """`forget` in the site's folder, in its part of a simulated audit's run, and among samples that came later."""
    out = folder.path.parent.parent
    run = RunFolder(out / "run")
    if run.in_use:
        raise RunError(f"{run.path} is in use by another process: forget '{name}' when the audit is done")
    later = [place for place in _later(out, folder) if _holds(place, name)]
    # the site's own folder comes last: stopped on the way, the same command finds the rest
    removed = [forget(place, load(place.findings), name, who=who)[0] for place in later]
    if not later or _holds(folder, name):
        files = _from_run(run.path, audit.site, name) if _holds(folder, name) else []
        found, audit = forget(folder, audit, name, who=who)
        notes = (ANEW,) if files else ()
        removed.insert(0, replace(found, files=(*found.files, *files), notes=notes))
    every = replace(
        removed[0],
        models=tuple(sorted({model for one in removed for model in one.models})),
        ledger_lines=sum(one.ledger_lines for one in removed),
        files=tuple(file for one in removed for file in one.files),
    )
    return every, audit


def kept_of(folder: SiteFolder, name: str) -> bool:
    """Whether the site's folder, or one of samples that came later, has anything of the sample."""
    return any(_holds(place, name) for place in (folder, *_later(folder.path.parent.parent, folder)))


def _later(out: Path, folder: SiteFolder) -> list[SiteFolder]:
    """The site's folders of samples that came after the audit."""
    return [SiteFolder(place) for place in sorted(out.glob(f"later/*/sites/{folder.path.name}"))]


def _holds(folder: SiteFolder, name: str) -> bool:
    known = folder.findings.is_file() and name in load(folder.findings).row_of
    return known or any(entry.id == name for entry in LabelLedger(folder.ledger).entries())


def _from_run(run: Path, site: str, name: str) -> list[str]:
    """Remove the site's notebook, which has a value for every sample, and the sample from a simulation's truth."""
    changed = []
    for notebook in sorted((run / "notebooks" / safe_name(site)).glob("*")):
        notebook.unlink()
        changed.append(str(notebook))
    truth = run / "truth.csv"
    if truth.is_file():
        known = Truth.load(truth)
        kept = tuple(change for change in known if (change.site, change.sample) != (site, name))
        if len(kept) < len(known):
            Truth(kept).save(truth)
            changed.append(str(truth))
    return changed
