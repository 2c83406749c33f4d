"""`Run`, what `fedsift.run` and `fedsift.load` return: figures, rounds, sites and the trained model."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsift.api import folder
from fedsift.core.errors import ConfigError
from fedsift.core.numbers import duration, percent, plural, size
from fedsift.drawing.svg import Markup, Scale, empty, join, picture, points, tag
from fedsift.report.words import INTERVAL_NOTE, METRICS, headline, interval_words
from fedsift.runs.reading import RunData

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn

    from fedsift.api.folder import StoredModelCard
    from fedsift.api.predictions import Predictions
    from fedsift.protocol.messages import Weights

# A run in a notebook: headline, figures, noisy sites and one small curve, as HTML that needs no
# network
# ------------------------------------------------------------------------------

WIDTH, HEIGHT, MARGIN = 320.0, 72.0, 5.0
STYLE = "border:1px solid #8886;border-radius:6px;padding:10px 14px;max-width:46em;font-family:sans-serif"
QUIET = "opacity:.7;font-size:90%"
COLOUR = "#2a6fdb"


def card(run: RunData) -> str:
    """One `<div>`; every name in it is escaped."""
    return tag(
        "div",
        tag("div", f"{headline(run)}.", style="font-weight:600;margin-bottom:6px"),
        _curve(run),
        tag("table", *_lines(run), style="border-collapse:collapse;margin:6px 0"),
        tag("div", str(run.path), style=QUIET),
        style=STYLE,
    )


def _lines(run: RunData) -> list[Markup]:
    lines = [
        (METRICS[name], f"{percent(scores.get('final'))} at the end, best {percent(scores.get('best'))}")
        for name in run.curves
        if (scores := run.summary.get(name))
    ]
    intervals = run.summary.get("intervals") or {}
    lines += [
        (METRICS[name], f"{interval_words(found)} at the end, {INTERVAL_NOTE}") for name, found in intervals.items()
    ]
    if run.found is not None:
        lines.append(("noisy sites", ", ".join(run.found) or "none"))
    lines.append(("method", f"{run.method}, seed {run.study.get('seed', 1)}"))
    lines.append(("rounds", f"{len(run.rounds)} in {duration(run.summary.get('seconds'))}"))
    if run.site_count:
        sent = f"{size(run.summary.get('bytes_up'))} sent by them"
        lines.append(("sites", f"{plural(run.site_count, 'site')}, {sent}"))
    lines += [("note", text) for text in [*(run.summary.get("warnings") or ()), *run.missing]]
    cell = "padding:1px 12px 1px 0;text-align:left;vertical-align:top"
    return [tag("tr", tag("td", key, style=f"{cell};opacity:.7"), tag("td", text, style=cell)) for key, text in lines]


def _curve(run: RunData) -> Markup:
    """The first metric by round, from 0 at the bottom to its highest value at the top."""
    name = next((name for name in run.curves if len(run.curve(name)) > 1), None)
    if name is None:
        return Markup("")
    curve = run.curve(name)
    across = Scale(curve[0][0], curve[-1][0], MARGIN, WIDTH - MARGIN)
    up = Scale(0.0, max(max(value for _, value in curve), 1e-9), HEIGHT - MARGIN, MARGIN)
    xs, ys = [across(number) for number, _ in curve], [up(value) for _, value in curve]
    words = f"{METRICS[name]} by round, {percent(curve[0][1])} to {percent(curve[-1][1])}"
    line = empty("polyline", points=points(xs, ys), fill="none", stroke=COLOUR, stroke_width="2")
    dot = empty("circle", cx=xs[-1], cy=ys[-1], r="3", fill=COLOUR)
    return tag("div", picture(WIDTH, HEIGHT, words, join([line, dot])), tag("div", words, style=QUIET))


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
    def card(self) -> StoredModelCard:
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
        from fedsift.models.factory import build_model, name_of_model

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
        from fedsift.report.page import write_report

        others = [other.path if isinstance(other, Run) else Path(other) for other in compare]
        return write_report(self.path, None if path is None else Path(path), others)

    def __repr__(self) -> str:
        return f"<Run {self.path}: {self.headline}>"

    def _repr_html_(self) -> str:
        return card(self._data)


# Tables of rows
# ------------------------------------------------------------------------------


class Rows(list[dict[str, Any]]):
    """Rounds or sites, one dict each, in order."""

    def __init__(self, rows: Iterable[dict[str, Any]] = ()) -> None:
        super().__init__(rows)

    def column(self, name: str) -> list[Any]:
        """One value of every row; None where a row has none."""
        if self and not any(name in row for row in self):
            known = dict.fromkeys(key for row in self for key in row)
            raise ConfigError(f"no row has '{name}': there are {', '.join(known)}")
        return [row.get(name) for row in self]

    def frame(self) -> Any:
        """A pandas DataFrame, one line a row."""
        try:
            import pandas
        except ImportError:
            raise ConfigError(
                "frame() needs pandas, which is not installed: pip install pandas, or use the rows as they are"
            ) from None
        return pandas.DataFrame(list(self))
