"""Writes `review/`: the review queue for Label Studio, FiftyOne and as CSV. A blind sample has no proposal in any of
them."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

from fedsift.core.files import write_private
from fedsift.core.text import cell, csv_text
from fedsift.label_audit.label_table import number, of_split
from fedsift.label_audit.review import ReviewItem, ReviewPlan
from fedsift.label_audit.site_audit import SiteAudit, Thumbnails, joined
from fedsift.label_audit.site_files import make_private
from fedsift.label_audit.verdicts import CHOICE_BOTH, CHOICE_CANNOT_TELL, MODEL_VERSION, special_choice

QUEUE_COLUMNS = (
    "id",
    "path",
    "given_label",
    "proposed_label",
    "probability_wrong",
    "verdict",
    "other_label",
    "reader",
    "when",
)
MAGIC = {b"\x89PNG\r\n\x1a\n": "png", b"\xff\xd8\xff": "jpeg", b"GIF8": "gif"}

_ATTRIBUTES = rb'(?: (?:xmlns|width|height|viewBox|x|y|rx|fill|font-family|font-size|text-anchor)="[^"<>()]*")*'
_CARD = re.compile(rb"<svg" + _ATTRIBUTES + rb">(?:<(?:rect|text)" + _ATTRIBUTES + rb">[^<>]*</(?:rect|text)>)*</svg>")
"""The drawing of a table's row: boxes and words, nothing that acts and nothing from elsewhere."""


def data_uri(picture: bytes | None) -> str:
    """A picture as text that needs no file; empty for bytes that are none of the known formats."""
    if not picture:
        return ""
    kind = next((kind for magic, kind in MAGIC.items() if picture.startswith(magic)), "")
    if _CARD.fullmatch(picture):
        kind = "svg+xml"
    if not kind and picture[:4] == b"RIFF" and picture[8:12] == b"WEBP":
        kind = "webp"
    return f"data:image/{kind};base64,{base64.b64encode(picture).decode('ascii')}" if kind else ""


def label_studio_tasks(
    audit: SiteAudit, items: Sequence[ReviewItem], thumbnails: Thumbnails | None = None, prefix: str = ""
) -> list[dict[str, Any]]:
    """Tasks to import; `prefix` goes before each path, e.g. "/data/local-files/?d=". Without a path: the thumbnail.

    Behind a "?" the path is quoted as a part of an address: "#", "&" and "+" would mean something else there.
    """
    rows = audit.row_of
    tasks: list[dict[str, Any]] = []
    for item in items:
        k = rows[item.id]
        path = audit.paths[k]
        where = quote(path, errors="surrogateescape") if "?" in prefix else path
        image = f"{prefix}{where}" if path else data_uri(thumbnails(k) if thumbnails else None)
        task: dict[str, Any] = {
            "data": {"image": image, "sample_id": item.id, "given_label": joined(audit.names(audit.given, k))}
        }
        proposed = audit.names(audit.proposed, k)
        if not item.blind and proposed != audit.names(audit.given, k):
            task["predictions"] = [
                {
                    "model_version": f"{MODEL_VERSION} {audit.evidence.model[:12]}".strip(),
                    "score": round(float(min(1.0, audit.probability_wrong[k])), 6),
                    "result": [
                        {
                            "from_name": "label",
                            "to_name": "img",
                            "type": "choices",
                            "value": {"choices": [cell(name) for name in proposed]},
                        }
                    ],
                }
            ]
        tasks.append(task)
    return tasks


def label_studio_config(audit: SiteAudit) -> str:
    """The labelling configuration that the tasks belong to."""
    names = [cell(name) for name in audit.classes]
    extra = [CHOICE_CANNOT_TELL] if audit.multilabel else [CHOICE_BOTH, CHOICE_CANNOT_TELL]
    names += [special_choice(text, audit.classes) for text in extra]
    choices = "\n".join(f"    <Choice value={quoteattr(name)}/>" for name in names)
    kind = "multiple" if audit.multilabel else "single"
    return (
        "<View>\n"
        '  <Image name="img" value="$image" zoom="true"/>\n'
        '  <Header value="Given label: $given_label"/>\n'
        f'  <Choices name="label" toName="img" choice="{kind}" showInLine="true">\n{choices}\n  </Choices>\n'
        "</View>\n"
    )


def queue_csv(audit: SiteAudit, items: Sequence[ReviewItem]) -> str:
    """A table to fill in: `verdict` is given, proposal, other, both or "cannot tell"; `other_label` names the class."""
    rows = audit.row_of
    lines = []
    for item in items:
        k = rows[item.id]
        given, proposed = audit.names(audit.given, k), audit.names(audit.proposed, k)
        shown = not item.blind and given != proposed
        answer = [joined(proposed), number(audit.probability_wrong[k])] if shown else ["", ""]
        lines.append([item.id, audit.paths[k], joined(given), *answer, *[""] * 4])
    return csv_text(QUEUE_COLUMNS, lines)


def fiftyone_samples(audit: SiteAudit) -> list[dict[str, Any]]:
    """All training samples, worst first: `filepath`, `ground_truth`, `prediction`, `mistakenness`, tags."""

    def labels(values: Any, k: int, confidence: float | None = None) -> dict[str, Any]:
        extra = {} if confidence is None else {"confidence": confidence}
        if audit.multilabel:
            found = [{"_cls": "Classification", "label": name} for name in audit.names(values, k)]
            return {"_cls": "Classifications", "classifications": found}
        return {"_cls": "Classification", "label": audit.names(values, k)[0], **extra}

    samples = []
    for k in of_split(audit, test=False):
        sure = None if audit.multilabel else round(float(audit.probability[k, audit.predicted[k]]), 6)
        samples.append(
            {
                "filepath": audit.paths[k] or audit.ids[k],
                "sample_id": audit.ids[k],
                "ground_truth": labels(audit.given, k),
                "prediction": labels(audit.predicted, k, sure),
                "mistakenness": round(float(audit.probability_wrong[k]), 6),
                "tags": ["label issue"] if audit.flagged[k] else [],
            }
        )
    return samples


def _json_lines(values: Sequence[Any]) -> str:
    """A JSON list with a value a line: readable, and written fast."""
    return "[\n" + ",\n".join(json.dumps(value) for value in values) + "\n]\n"


def write_review(
    folder: Path, audit: SiteAudit, plan: ReviewPlan, thumbnails: Thumbnails | None = None, prefix: str = ""
) -> list[Path]:
    """The `review/` folder: the plan and the queue in every format."""
    make_private(folder)
    tasks = label_studio_tasks(audit, plan.items, thumbnails, prefix)
    return [
        write_private(folder / "plan.json", plan.to_json()),
        write_private(folder / "queue.csv", queue_csv(audit, plan.items)),
        write_private(folder / "label-studio-tasks.json", _json_lines(tasks)),
        write_private(folder / "label-studio-config.xml", label_studio_config(audit)),
        write_private(folder / "fiftyone.json", _json_lines(fiftyone_samples(audit))),
    ]
