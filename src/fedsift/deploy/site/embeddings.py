"""Frozen features that a site has made of its pictures: which there are, and how many more a policy allows.

A message names the network, and so the extractor and the side of the pictures. Each kind is a pass over all pictures
and a file in fedsift's cache, so a site writes down what it makes, before it makes it.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

from fedsift.core.files import private_folder, write_private
from fedsift.training.features import embedding_of, is_features

EMBEDDINGS = "embeddings.json"


def kind_of(model: str) -> str:
    """`EXTRACTOR@SIDE`: all that features depend on besides the pictures."""
    name, side = embedding_of(model)
    return f"{name}@{side}"


def embeddings_of(notebook: Path) -> dict[str, list[str]]:
    """Kinds of features to the files in which they are kept; raises ValueError where the list cannot be read."""
    try:
        table = json.loads((notebook / EMBEDDINGS).read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ValueError(str(error)) from None
    if not isinstance(table, dict):
        raise ValueError("it is no table")
    return {str(kind): [str(file) for file in files] for kind, files in table.items()}


def note_embedding(notebook: Path, model: str, file: Path) -> None:
    """Write a kind and its file down; other pictures of the site's give another file of the same kind."""
    table = embeddings_of(notebook)
    files = table.setdefault(kind_of(model), [])
    if str(file) not in files:
        files.append(str(file))
        write_private(private_folder(notebook) / EMBEDDINGS, json.dumps(table, indent=1).encode())


def objection_to_embedding(notebook: Path, model: str, most: int, written: Collection[str]) -> str | None:
    """Why a network that a message names gets no features here, or None. `written`: what the site's own file names."""
    own = {kind_of(name) for name in written if is_features(name)}
    if not is_features(model) or kind_of(model) in own:
        return None
    try:
        made = set(embeddings_of(notebook)) - own
    except ValueError as error:
        return f"its list of features {EMBEDDINGS} cannot be read ({error}): mend it, or remove it"
    if kind_of(model) in made or len(made) < most:
        return None
    return (
        f"features {kind_of(model)} would be one kind more than the {most} that this site makes of its pictures for "
        "messages: name one that it has, or let the site raise policy.embeddings in its site.toml"
    )
