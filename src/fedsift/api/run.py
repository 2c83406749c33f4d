"""A run, as Python sees it: figures, rounds, sites, the trained model."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsift.api import folder
from fedsift.api.rows import Rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn

    from fedsift.api.folder import ModelCard, RunData
    from fedsift.api.predictions import Predictions
    from fedsift.contract.messages import Weights


class Run:
    """A run folder, finished or not. Everything is read from it when asked for; `fedsift.load` opens one.

    model: the factory of the network, for a run whose network was one of a Python session.
    """

    def __init__(self, path: Path | str, *, model: Callable[..., Any] | None = None) -> None:
        self.path = Path(path)
        self._factory = model
        self._data  # noqa: B018  (a folder that is no run is refused at once)

    @cached_property
    def _data(self) -> RunData:
        return folder.read(self.path)

    @property
    def summary(self) -> dict[str, Any]:
        """Best, last and final of every curve, the sites found noisy, bytes, seconds: what summary.json holds."""
        return self._data.summary

    @property
    def finished(self) -> bool:
        return self._data.finished

    @property
    def study(self) -> dict[str, Any]:
        """The resolved study as tables, every default written out."""
        return self._data.study

    @cached_property
    def rounds(self) -> Rows:
        """One dict a round, as in rounds.jsonl."""
        return Rows(self._data.rounds)

    @cached_property
    def sites(self) -> Rows:
        """One dict a site, as in sites.csv."""
        return Rows(self._data.sites)

    @property
    def noisy_sites(self) -> list[str] | None:
        """Sites that the method called noisy; None when it does not say, or found no clean one to compare with."""
        return self._data.found

    @property
    def headline(self) -> str:
        """What was found, in one sentence."""
        from fedsift.report.words import headline

        return headline(self._data)

    @cached_property
    def card(self) -> ModelCard:
        """What it takes to apply the model: network, shape of a sample, classes, normalisation."""
        return folder.model_card(self.path)

    @cached_property
    def weights(self) -> Weights:
        """The trained model's state: names to tensors, parameters and buffers."""
        from safetensors.torch import load_file

        weights: Weights = load_file(folder.model_file(self.path))
        return weights

    def model(self) -> nn.Module:
        """A new network with the trained weights, in evaluation mode; it takes normalised samples."""
        from fedsift.models import build_model, name_of_model

        card = self.card
        name = card.model if self._factory is None else name_of_model(self._factory)
        network = build_model(name, card.shape, len(card.classes))
        network.load_state_dict(self.weights)
        return network.eval()

    def predict(self, images: Any, ids: Sequence[str] = ()) -> Predictions:
        """The trained model applied to samples as they were given for training: uint8 pictures, or float in 0..1
        `[n, C, H, W]`, or rows of features `[n, F]`."""
        from fedsift.api.predictions import predict

        return predict(self.model(), self.card, images, ids)

    def export(self, path: Path | str) -> Path:
        """The model as a file: `.safetensors` (weights), `.pt` (TorchScript) or `.onnx`; the ending chooses.

        TorchScript and ONNX take pictures in 0..1 (or rows of features) and normalise them themselves.
        """
        from fedsift.api.export import export

        return export(Path(path), self.weights, self.model(), self.card)

    def report(self, path: Path | str | None = None, compare: Sequence[Run | Path | str] = ()) -> Path:
        """Write the one-file HTML report, into the run's folder by default; returns where it is."""
        from fedsift.report import write_report

        others = [other.path if isinstance(other, Run) else Path(other) for other in compare]
        return write_report(self.path, None if path is None else Path(path), others)

    def __repr__(self) -> str:
        return f"<Run {self.path}: {self.headline}>"

    def _repr_html_(self) -> str:
        from fedsift.api.card import card

        return card(self._data)
