"""Figures of sites by classes: a heat map of an indicator, and dots of the class distribution."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fedsift.drawing.svg import (
    FULL,
    HALF,
    MANY_CLASSES,
    Markup,
    clipped,
    data_script,
    empty,
    every,
    join,
    label,
    picture,
    points,
    short,
    tag,
    text_width,
)

LEVELS = 16
"""Shades of the heat map; their colours are in the style sheet."""
NAME_LENGTH = 20
MOST_TILES = 4000
"""More cells than this are drawn in the shorter way, so that the page stays small."""
MARK_WIDTH = 34.0
LEGEND = 34.0
FLAT_HEAD = 24.0
"""Room above the cells when the columns' names fit; turned names need more."""
BOLD = 12.0
"""The names of noisy sites are bold, so they are as wide as larger type."""


@dataclass(frozen=True)
class MatrixRow:
    """A site: its values, and whether it was found noisy and is noisy in truth (None: nobody knows).

    shown: what is shown and saved for each value, where that is not the value itself.
    """

    name: str
    values: Sequence[float | None]
    found: bool | None = None
    true: bool | None = None
    shown: Sequence[float | None] | None = None


@dataclass(frozen=True)
class MatrixGrid:
    """Where the cells of a matrix lie."""

    width: float
    left: float
    top: float
    cell: float
    height: float

    def x(self, column: int) -> float:
        return self.left + column * self.cell

    def y(self, row: int) -> float:
        return self.top + row * self.height


def heat_map(title: str, rows: Sequence[MatrixRow], columns: Sequence[str], corner: str = "site") -> Markup:
    """A shade for each value, hatched where a site has none; small maps print the values as well.

    corner: what the rows are, for the table of the numbers.
    """
    grid = _grid(rows, columns)
    known = [value for row in rows for value in row.values if value is not None]
    low, high = (min(known), max(known)) if known else (0.0, 0.0)
    kinds = [[_level(value, low, high) for value in row.values] for row in rows]
    roomy = min(grid.cell, grid.height) >= 9 and len(rows) * len(columns) <= MOST_TILES
    cells = _tiles(kinds, grid) if roomy else _strips(kinds, grid)
    return _matrix(
        title,
        rows,
        columns,
        grid,
        cells,
        _numbers(rows, grid, low, high),
        _shade_legend(grid, rows, low, high),
        corner,
    )


def _tiles(kinds: Sequence[Sequence[str]], grid: MatrixGrid) -> Markup:
    """Cells with a gap between them; those of one shade are one path."""
    paths: dict[str, list[str]] = {}
    width, height = short(grid.cell - 1), short(grid.height - 1)
    for y, row in enumerate(kinds):
        for x, kind in enumerate(row):
            at = f"M{short(grid.x(x))} {short(grid.y(y))}"
            paths.setdefault(kind, []).append(f"{at}h{width}v{height}h-{width}z")
    return join(empty("path", d="".join(parts), class_=kind) for kind, parts in sorted(paths.items()))


def _strips(kinds: Sequence[Sequence[str]], grid: MatrixGrid) -> Markup:
    """Small cells without gaps, as thick lines in coordinates of whole cells: ten thousand of them in 80 kB."""
    paths: dict[str, list[str]] = {}
    for y, row in enumerate(kinds):
        for start, length in _equal_runs(row):
            paths.setdefault(row[start], []).append(f"M{start} {y}h{length}")
    lines = join(empty("path", d="".join(parts), class_=f"thick {kind}") for kind, parts in sorted(paths.items()))
    origin = f"{short(grid.left)} {short(grid.top + grid.height / 2)}"
    return tag("g", lines, transform=f"translate({origin}) scale({grid.cell:.4g} {grid.height:.4g})")


def dot_plot(title: str, rows: Sequence[MatrixRow], columns: Sequence[str]) -> Markup:
    """A dot for each count, its area in proportion; rows found noisy stand out by colour."""
    grid = _grid(rows, columns)
    most = max((value for row in rows for value in row.values if value), default=0.0)
    widest = max(2.0, min(grid.cell, grid.height * 1.15) - 1.0)
    dots: dict[tuple[bool, float], list[str]] = {}
    for y, row in enumerate(rows):
        for x, value in enumerate(row.values):
            if value:
                width = max(1.0, round(2 * widest * (value / most) ** 0.5) / 2)
                at = f"M{short(grid.x(x) + grid.cell / 2)} {short(grid.y(y) + grid.height / 2)}h0"
                dots.setdefault((row.found is True, width), []).append(at)
    # a line of no length with round ends is a dot; dots of one size and colour are one path
    cells = join(
        empty("path", d="".join(parts), stroke_width=width, class_="dot loud" if loud else "dot")
        for (loud, width), parts in sorted(dots.items())
    )
    stripes = join(
        empty(
            "rect",
            x=grid.left,
            y=grid.y(y),
            width=grid.cell * len(columns),
            height=grid.height,
            class_="stripe",
        )
        for y in range(0, len(rows), 2)
    )
    return _matrix(title, rows, columns, grid, join([stripes, cells]), Markup(), _dot_legend(grid, rows, most, widest))


def _grid(rows: Sequence[MatrixRow], columns: Sequence[str]) -> MatrixGrid:
    width = HALF if len(columns) <= MANY_CLASSES else FULL
    names = max((text_width(clipped(row.name, NAME_LENGTH), BOLD) for row in rows), default=0.0) + 10
    left = names + MARK_WIDTH * len(_marks(rows)) + 4
    longest = max((text_width(clipped(name, NAME_LENGTH)) for name in columns), default=0.0)
    cell = min(60.0, (width - left - 4) / max(1, len(columns)))
    top = FLAT_HEAD
    if longest > cell - 2:  # turned by 60 degrees, the last name reaches half its length beyond its column
        cell = min(60.0, (width - left - 0.5 * longest - 8) / max(1, len(columns)))
        top = 16.0 + longest * 0.87
    return MatrixGrid(width, left, top, cell, row_height(len(rows)))


def first_row(rows: Sequence[MatrixRow], columns: Sequence[str]) -> float:
    """Where the first row of such a matrix begins, for a figure beside it on the same rows."""
    return _grid(rows, columns).top


def row_height(count: int) -> float:
    for most, height in ((12, 24.0), (30, 20.0), (60, 15.0), (150, 12.0)):
        if count <= most:
            return height
    return max(2.0, 1800 / count)


def _matrix(
    title: str,
    rows: Sequence[MatrixRow],
    columns: Sequence[str],
    grid: MatrixGrid,
    cells: Markup,
    numbers: Markup,
    legend: Markup,
    corner: str = "site",
) -> Markup:
    names = _row_names(rows, grid)
    height = grid.y(len(rows)) + LEGEND
    body = picture(grid.width, height, title, _column_names(columns, grid), names, cells, numbers, legend)
    hover = {
        "kind": "matrix",
        "corner": corner,
        "left": grid.left,
        "top": grid.top,
        "cell": grid.cell,
        "height": grid.height,
        "rows": [row.name for row in rows],
        "columns": list(columns),
        "values": [[_briefly(v) for v in (row.values if row.shown is None else row.shown)] for row in rows],
    }
    return tag("div", body, data_script(hover), class_="plot")


def _briefly(value: float | None) -> float | int | None:
    """Four figures, and whole numbers as such: a large map is mostly this."""
    if value is None:
        return None
    return int(value) if float(value).is_integer() and abs(value) < 1e15 else float(f"{value:.4g}")


def _column_names(columns: Sequence[str], grid: MatrixGrid) -> Markup:
    names = [clipped(name, NAME_LENGTH) for name in columns]
    if grid.top == FLAT_HEAD:
        return join(label(grid.x(k) + grid.cell / 2, 16, name, "middle") for k, name in enumerate(names))
    nth = every(len(names), grid.cell, 11.0)
    return join(
        label(grid.x(k) + grid.cell / 2 + 3, grid.top - 5, name, turn=-60.0)
        for k, name in enumerate(names)
        if k % nth == 0
    )


def _marks(rows: Sequence[MatrixRow]) -> Mapping[str, Callable[[MatrixRow], bool | None]]:
    """Columns of marks beside the names: those of which anything is known."""
    wanted: dict[str, Callable[[MatrixRow], bool | None]] = {
        "found": lambda row: row.found,
        "true": lambda row: row.true,
    }
    return {name: get for name, get in wanted.items() if any(get(row) is not None for row in rows)}


def _row_names(rows: Sequence[MatrixRow], grid: MatrixGrid) -> Markup:
    marks = _marks(rows)
    edge = grid.left - 4 - MARK_WIDTH * len(marks)
    nth = every(len(rows), grid.height, 11.0)
    parts = []
    for y, row in enumerate(rows):
        middle = grid.y(y) + grid.height / 2
        if y % nth == 0:
            kind = "loud" if row.found else ""
            parts.append(label(edge - 4, middle + 4, clipped(row.name, NAME_LENGTH), "end", kind))
        for column, (name, get) in enumerate(marks.items()):
            if get(row):
                x = edge + MARK_WIDTH * (column + 0.5)
                parts.append(_mark(name, x, middle, min(4.5, grid.height / 2 - 0.5)))
    heads = [label(edge + MARK_WIDTH * (i + 0.5), grid.top - 6, name, "middle", "head") for i, name in enumerate(marks)]
    return join([*parts, *heads])


def _mark(name: str, x: float, y: float, radius: float) -> Markup:
    if name == "found":
        return empty("circle", cx=x, cy=y, r=radius, class_="mark")
    r = radius * 1.15
    corners = points([x, x + r, x, x - r], [y - r, y, y + r, y])
    return empty("polygon", points=corners, class_="mark true")


def _level(value: float | None, low: float, high: float) -> str:
    if value is None:
        return "missing"
    return f"q{_step(value, low, high)}"


def _step(value: float, low: float, high: float) -> int:
    return min(LEVELS - 1, int((value - low) / (high - low) * LEVELS)) if high > low else 0


def _equal_runs(kinds: Sequence[str]) -> list[tuple[int, int]]:
    """(start, length) of neighbours of one kind."""
    runs: list[tuple[int, int]] = []
    for index, kind in enumerate(kinds):
        if runs and kinds[runs[-1][0]] == kind:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((index, 1))
    return runs


def _numbers(rows: Sequence[MatrixRow], grid: MatrixGrid, low: float, high: float) -> Markup:
    if grid.cell < 26 or grid.height < 15:
        return Markup()
    parts = [
        label(
            grid.x(x) + (grid.cell - 1) / 2,
            grid.y(y) + grid.height / 2 + 3,
            _brief(value),
            "middle",
            ("low", "middle", "high")[max(0, _step(value, low, high) // 4 - 1)],
        )
        for y, row in enumerate(rows)
        for x, value in enumerate(row.values)
        if value is not None
    ]
    return tag("g", *parts, class_="numbers")


def _brief(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.0f}"


def _shade_legend(grid: MatrixGrid, rows: Sequence[MatrixRow], low: float, high: float) -> Markup:
    y, width = grid.y(len(rows)) + 12, 9.0
    x = grid.left
    parts = [empty("rect", x=x + i * width, y=y, width=width, height=10, class_=f"q{i}") for i in range(LEVELS)]
    end = x + LEVELS * width
    parts += [label(x - 5, y + 9, _brief(low), "end"), label(end + 5, y + 9, _brief(high))]
    if any(value is None for row in rows for value in row.values):
        at = end + 16 + text_width(_brief(high))
        parts += [
            empty("rect", x=at, y=y, width=14, height=10, class_="missing"),
            label(at + 19, y + 9, "no value"),
        ]
    return join(parts)


def _dot_legend(grid: MatrixGrid, rows: Sequence[MatrixRow], most: float, widest: float) -> Markup:
    y, x = grid.y(len(rows)) + 17, grid.left + 12
    parts = []
    for share in (0.1, 0.4, 1.0):
        count = round(most * share)
        if count < 1:
            continue
        width = max(1.0, widest * (count / most) ** 0.5)
        words = f"{count:,}"
        parts.append(empty("path", d=f"M{short(x)} {short(y)}h0", stroke_width=float(width), class_="dot"))
        parts.append(label(x + widest / 2 + 5, y + 4, words))
        x += widest + 22 + text_width(words)
    return join([*parts, label(x, y + 4, "samples")]) if parts else Markup()
