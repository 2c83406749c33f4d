"""In which runs, and so in which models, a site took part: from the coordinator's run folders."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fedsift.core import codec
from fedsift.core.errors import FedsiftError, RunError
from fedsift.protocol.messages import moment_words
from fedsift.runs.checkpoint import read_checkpoint
from fedsift.runs.folder import CHECKPOINT, SUMMARY, RunFolder
from fedsift.runtime.loop import RunProgress
from fedsift.study.study import Study

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
    looked = (_participation(site, file) for file in sorted(files.values()))
    return [found for found in looked if found is not None]


def _participation(site: str, file: Path) -> Participation | None:
    """The site's part in the run of this checkpoint. A run that cannot be read may be one of them, and is listed."""
    folder = file.parent
    model = folder / MODEL
    its_model = model if model.is_file() else None
    try:
        Study.from_file(RunFolder.open(folder).study_file)  # its method brings the classes of its state
        header, state = read_checkpoint(file)
        progress = codec.decoded(state, file)
        if not isinstance(progress, RunProgress):
            raise RunError(f"{file} is no checkpoint of a run")
    except FedsiftError as error:
        return Participation(folder, "not known", f"cannot be read: {error}", its_model)
    if site not in progress.accepted:
        return None
    finished = (folder / SUMMARY).is_file()
    state_words = "finished" if finished else f"stopped after round {header.rounds_done}"
    return Participation(folder, moment_words(progress.accepted[site]), state_words, its_model)
