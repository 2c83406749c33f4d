"""The frame of every page: one file, its look inside it, nothing fetched."""

from __future__ import annotations

from fedsift.drawing.svg import Markup, join, tag


def document(
    title: str, body: Markup, style: str, *, policy: str = "", more: Markup | None = None, nonce: str = ""
) -> str:
    """`policy`: a Content-Security-Policy. `more`: other lines of the head. `nonce`: by which a server's own policy
    knows the style."""
    guard = f'<meta http-equiv="Content-Security-Policy" content="{policy}">' if policy else ""
    head = join(
        [
            Markup(f'<meta charset="utf-8">{guard}'),
            Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            Markup('<meta name="color-scheme" content="light dark">'),
            more,
            tag("title", f"{title} · fedsift"),
            Markup(f'<style nonce="{nonce}">{style}</style>' if nonce else f"<style>{style}</style>"),
        ]
    )
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>{body}</body></html>\n'
