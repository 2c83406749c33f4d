"""A bar chart of one comparison as SVG, so that the docs need neither a browser engine nor a plotting library."""

from __future__ import annotations

from html import escape
from typing import Any

WIDTH, ROW, LEFT, RIGHT = 760, 34, 230, 120


def bar_chart(result: dict[str, Any]) -> str:
    """Seconds a round of each side, with quartiles, ours last."""
    sides = result["sides"]
    most = max(row["seconds"][2] for row in sides.values())
    scale = (WIDTH - LEFT - RIGHT) / most
    height = ROW * (len(sides) + 2)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="12" y="22" font-weight="bold">{escape(result["workload"])}: '
        "seconds a round (median, quartiles)</text>",
    ]
    for number, (name, row) in enumerate(sides.items()):
        low, middle, high = row["seconds"]
        top = ROW * (number + 1) + 6
        centre = top + ROW / 2 - 6
        colour = "#1b7f5c" if name.startswith("fedsift") else "#9aa5b1"
        ratio = f"  {row['times_ours'][1]:.1f}x" if "times_ours" in row else ""
        parts += [
            f'<text x="{LEFT - 10}" y="{centre + 5}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{LEFT}" y="{top}" width="{middle * scale:.1f}" height="{ROW - 12}" fill="{colour}"/>',
            f'<line x1="{LEFT + low * scale:.1f}" x2="{LEFT + high * scale:.1f}" '
            f'y1="{centre}" y2="{centre}" stroke="black"/>',
            f'<text x="{LEFT + high * scale + 8:.1f}" y="{centre + 5}">{middle:.2f} s{ratio}</text>',
        ]
    parts.append("</svg>")
    return "\n".join(parts) + "\n"
