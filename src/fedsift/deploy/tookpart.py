"""In which runs, and so in which models, a site took part: from the coordinator's run folders."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fedsift.contract import codec
from fedsift.contract.errors import RunError
from fedsift.contract.messages import moment_words
from fedsift.engines.loop import Progress
from fedsift.runs.checkpoint import read_checkpoint
from fedsift.runs.folder import CHECKPOINT, SUMMARY

MODEL = "model.safetensors"


@dataclass(frozen=True)
class Participation:
    """One run in which a site's answers were used."""

    run: Path
    until: str
    """The last of its answers that was used."""
    state: str
    model: Path | None
    """The file of the model that it helped to train; None while there is none."""


def participations(site: str, places: Iterable[Path]) -> list[Participation]:
    """Runs in these folders, or in folders of theirs, that used an answer of the site."""
    files = {
        file.resolve(): file
        for place in places
        for depth in ("", "*/", "*/*/")
        for file in place.glob(depth + CHECKPOINT)
    }
    found = []
    for file in sorted(files.values()):
        header, state = read_checkpoint(file)
        progress = codec.decoded(state, file)
        if not isinstance(progress, Progress):
            raise RunError(f"{file} is no checkpoint of a run")
        if site not in progress.accepted:
            continue
        folder = file.parent
        finished = (folder / SUMMARY).is_file()
        model = folder / MODEL
        found.append(
            Participation(
                folder,
                moment_words(progress.accepted[site]),
                "finished" if finished else f"stopped after round {header.rounds_done}",
                model if model.is_file() else None,
            )
        )
    return found
