"""A federation's overview for display: class distribution, true against given labels, and noise rate of each site.

As numbers (`report` makes a page of them, as FedCorr's Fig. 10 and FedNoRo's Fig. 3), and as text for a terminal.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedsift.core.text import visible
from fedsift.data.dataset import FederatedDataset, Labels

SHADES = " ░▒▓█"
SHOWN_SITES = 40
SHOWN_CLASSES = 30


@dataclass(frozen=True)
class FederationOverview:
    """The numbers behind the pictures.

    counts: `[sites, K]` given labels (positives, for multi-label data). confusion: `[K, K]` true by given,
    summed over sites; for multi-label data `[K, 3]` positives kept, lost and added. None when the truth is
    not known.
    """

    sites: tuple[str, ...]
    classes: tuple[str, ...]
    counts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    nominal: NDArray[np.float64] | None
    effective: NDArray[np.float64] | None
    confusion: NDArray[np.int64] | None
    noisy: tuple[str, ...]
    multilabel: bool
    annotated: NDArray[np.bool_] | None

    @property
    def overall_rate(self) -> float | None:
        """Share of wrong labels in the whole federation."""
        if self.effective is None:
            return None
        return float((self.effective * self.sizes).sum() / max(1, self.sizes.sum()))


def portrait_of(federated: FederatedDataset) -> FederationOverview:
    """Count what the pictures show; training samples only."""
    count = federated.dataset.n_classes
    given, truth = federated.given, federated.truth
    counts = np.array([_class_counts(given[site], count) for site in federated.sites])
    confusion = None
    if truth is not None:
        confusion = sum(_confusion(truth.clean[site], given[site], count) for site in federated.sites)
    return FederationOverview(
        sites=federated.sites,
        classes=federated.dataset.classes,
        counts=counts,
        sizes=np.array([len(federated.rows[site]) for site in federated.sites]),
        nominal=None if truth is None else np.array([truth.level[site] for site in federated.sites]),
        effective=None
        if truth is None
        else np.array([truth.effective_rate(site, given[site]) for site in federated.sites]),
        confusion=confusion if isinstance(confusion, np.ndarray) else None,
        noisy=() if truth is None else truth.noisy,
        multilabel=federated.dataset.multilabel,
        annotated=None
        if federated.annotated is None
        else np.array([federated.annotated[site] for site in federated.sites]),
    )


def _class_counts(labels: Labels, n_classes: int) -> NDArray[np.int64]:
    return labels.sum(axis=0) if labels.ndim == 2 else np.bincount(labels, minlength=n_classes)


def _confusion(clean: Labels, given: Labels, n_classes: int) -> NDArray[np.int64]:
    if clean.ndim == 2:
        kept, lost = (clean & given).sum(axis=0), (clean & ~given & 1).sum(axis=0)
        return np.stack([kept, lost, (given & ~clean & 1).sum(axis=0)], axis=1)
    table = np.zeros((n_classes, n_classes), np.int64)
    np.add.at(table, (clean, given), 1)
    return table


def text_of(portrait: FederationOverview, title: str) -> RenderableType:
    """The same for a terminal: a line a site, then the confusion."""
    parts: list[RenderableType] = [_sites_table(portrait, title)]
    if len(portrait.sites) > SHOWN_SITES:
        parts.append(Text(f"... and {len(portrait.sites) - SHOWN_SITES} more sites"))
    if portrait.confusion is not None:
        if len(portrait.classes) <= SHOWN_CLASSES:
            parts.append(_confusion_table(portrait))
        parts.append(
            Text(
                f"{portrait.overall_rate:.1%} of all labels differ from the truth; "
                f"{len(portrait.noisy)} of {len(portrait.sites)} sites are noisy"
            )
        )
    return Group(*parts)


def _sites_table(portrait: FederationOverview, title: str) -> Table:
    table = Table(title=Text(visible(title)), title_justify="left", header_style="bold", pad_edge=False)
    table.add_column("site", overflow="fold")
    table.add_column("samples", justify="right")
    heading = Text(visible(f"classes ({len(portrait.classes)}: {_range(portrait.classes)})"))
    table.add_column(heading, overflow="fold")
    if portrait.nominal is not None:
        table.add_column("nominal", justify="right")
        table.add_column("effective", justify="right")
    largest = max(1, int(portrait.counts.max()))
    for k, site in enumerate(portrait.sites[:SHOWN_SITES]):
        style = "red" if site in portrait.noisy else ""
        cells: list[RenderableType] = [
            Text(visible(site)),
            str(portrait.sizes[k]),
            _shades(portrait, k, largest),
        ]
        if portrait.nominal is not None and portrait.effective is not None:
            cells += [f"{portrait.nominal[k]:.0%}", f"{portrait.effective[k]:.1%}"]
        table.add_row(*cells, style=style)
    return table


def _shades(portrait: FederationOverview, site: int, largest: int) -> str:
    """One block a class, darker for more samples; x for a class that the site does not annotate."""
    shades = []
    for c, count in enumerate(portrait.counts[site][: 2 * SHOWN_CLASSES]):
        if portrait.annotated is not None and not portrait.annotated[site, c]:
            shades.append("x")
        else:
            # The root keeps rare classes visible beside frequent ones.
            step = int(np.ceil((count / largest) ** 0.5 * (len(SHADES) - 1)))
            shades.append(SHADES[step])
    return "".join(shades)


def _range(classes: tuple[str, ...]) -> str:
    return classes[0] if len(classes) == 1 else f"{classes[0]} ... {classes[-1]}"


def _confusion_table(portrait: FederationOverview) -> Table:
    assert portrait.confusion is not None
    columns = ("kept", "lost", "added") if portrait.multilabel else portrait.classes
    title = "positives of each class" if portrait.multilabel else "true labels (rows) and given labels (columns)"
    table = Table(title=title, title_justify="left", header_style="bold", pad_edge=False, box=None)
    table.add_column("")
    for name in columns:
        table.add_column(Text(visible(name)), justify="right", overflow="fold")
    for name, row in zip(portrait.classes, portrait.confusion):
        table.add_row(Text(visible(name)), *(str(value) if value else "·" for value in row))
    return table
