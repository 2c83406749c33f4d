"""Verdicts from three formats, each turned into class names, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedsift.audits.ledger import Ledger
from fedsift.audits.verdicts import Verdict, from_entries, notes, read_verdicts, special_choice
from fedsift.contract.errors import DataError
from tests.audits.made import make_audit, multilabel_audit

CLASSES = ("cat", "dog", "cow")
AUDIT = make_audit(
    [0, 1, 2], [[0.1, 0.9, 0], [0.8, 0.2, 0], [0.1, 0.1, 0.8]], classes=CLASSES, ids=("x", "y", "z")
)
"""x: given cat, proposed dog; y: given dog, proposed cat; z: nothing proposed."""


def page(*verdicts: dict[str, Any], site: str = "A", reader: str = "ann") -> str:
    return json.dumps({"format": "fedsift-verdicts-1", "site": site, "reader": reader, "verdicts": verdicts})


def said(name: str, decision: str, *labels: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "decision": decision, "labels": list(labels), **more}


def read(
    tmp_path: Path, text: str, audit: Any = AUDIT, name: str = "v.json", **options: Any
) -> list[Verdict]:
    (tmp_path / name).write_text(text, encoding="utf-8")
    return read_verdicts(tmp_path / name, audit, **options)


def studio(name: str, *choices: str, by: Any = 1, **more: Any) -> dict[str, Any]:
    result = [
        {"from_name": "label", "to_name": "img", "type": "choices", "value": {"choices": list(choices)}}
    ]
    return {"data": {"sample_id": name}, "annotations": [{"completed_by": by, "result": result, **more}]}


def test_the_pages_own_file(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        page(
            said("x", "given"),
            said("y", "proposal", "cat"),
            said("z", "other", "dog"),
            said("x", "cannot tell"),
        ),
    )
    assert [(one.id, one.decision, one.labels, one.wrong) for one in found] == [
        ("x", "given", ("cat",), False),
        ("y", "proposal", ("cat",), True),
        ("z", "other", ("dog",), True),
        ("x", "cannot tell", (), None),
    ]
    assert {one.reader for one in found} == {"ann"}


def test_a_blind_reader_who_names_the_proposal_confirms_it(tmp_path: Path) -> None:
    [a, b] = read(tmp_path, page(said("x", "other", "dog"), said("y", "other", "dog")))
    assert (a.decision, b.decision) == ("proposal", "given")


def test_both_is_no_error(tmp_path: Path) -> None:
    [one] = read(tmp_path, page(said("x", "both")))
    assert one.labels == ("cat", "dog") and one.wrong is False


def test_a_filled_queue(tmp_path: Path) -> None:
    text = "id,given_label,verdict,other_label,reader\nx,cat,Proposal,,bob\ny,dog,other,cow,bob\nz,cow,,,\n"
    found = read(tmp_path, text, name="q.csv")
    assert [(one.id, one.decision, one.labels, one.reader) for one in found] == [
        ("x", "proposal", ("dog",), "bob"),
        ("y", "other", ("cow",), "bob"),
    ]
    assert {one.reader for one in read(tmp_path, text, name="q.csv", reader="eve")} == {"eve"}


def test_label_studio(tmp_path: Path) -> None:
    tasks = [
        studio("x", "dog", by={"id": 3, "email": "ann@site"}),
        studio("y", "dog", by=7),
        studio("z", special_choice("cannot tell", CLASSES)),
        studio("x", "cow", was_cancelled=True),
        studio("x", "both given and proposed"),
        {"data": {"sample_id": "y"}, "annotations": []},
    ]
    found = read(tmp_path, json.dumps(tasks))
    assert [(one.id, one.decision, one.reader) for one in found] == [
        ("x", "proposal", "ann@site"),
        ("y", "given", "reader 7"),
        ("z", "cannot tell", "reader 1"),
        ("x", "both", "reader 1"),
    ]


def test_a_class_called_cannot_tell_stays_a_class(tmp_path: Path) -> None:
    audit = make_audit([0], [[0.1, 0.9]], classes=("cat", "cannot tell"), ids=("x",))
    [a] = read(tmp_path, json.dumps([studio("x", "cannot tell")]), audit)
    assert (a.decision, a.labels) == ("proposal", ("cannot tell",))
    [b] = read(tmp_path, json.dumps([studio("x", "· cannot tell ·")]), audit)
    assert b.decision == "cannot tell"


def test_several_labels(tmp_path: Path) -> None:
    audit = multilabel_audit(20)
    name = audit.ids[0]
    given = audit.names(audit.given, 0)
    everything = "|".join(audit.classes)
    [one] = read(
        tmp_path, f"id,verdict,other_label\n{name},other,{everything}\n", audit, "q.csv", reader="ann"
    )
    assert one.labels == audit.classes
    [none] = read(tmp_path, json.dumps([studio(name)]), audit)
    assert none.decision in ("given", "proposal", "other") and none.labels == ()
    [same] = read(tmp_path, page(said(name, "other", *reversed(given)), site="chest"), audit)
    assert same.decision == ("given" if given else same.decision)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (page(said("nobody", "given")), "sample 'nobody' is not in the audit of site 'A'"),
        (page(said("x", "maybe")), "'maybe' is not one of: given, proposal"),
        (page(said("x", "other", "cta")), "there is no class 'cta': did you mean 'cat'"),
        (page(said("x", "other")), "'other' needs the class"),
        (page(said("z", "proposal")), "nothing was proposed"),
        (page(said("x", "given", given="dog")), "the verdict was on the label 'dog', now it is 'cat'"),
        (page(said("x", "given"), reader=" "), "does not say who read sample 'x'"),
        (page(site="B"), "verdicts on site 'B', this is 'A'"),
        ("{}", "neither a verdicts file of a report nor"),
        ("[1]", "task 1 is not as Label Studio"),
        ("{", "neither JSON nor CSV"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(DataError, match=words):
        read(tmp_path, text)


def test_a_missing_file_and_a_missing_column(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no file"):
        read_verdicts(tmp_path / "no.json", AUDIT)
    with pytest.raises(DataError, match="no column 'verdict'"):
        read(tmp_path, "id,said\nx,given\n", name="q.csv")


def test_verdicts_go_through_the_ledger_and_are_not_taken_twice(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    first = read(tmp_path, page(said("x", "proposal", "dog"), said("y", "given")))
    ledger.append(notes(first, AUDIT, []), "ann")
    known = from_entries(ledger.entries())
    assert known == first
    assert notes(first, AUDIT, known) == []
    changed = read(tmp_path, page(said("x", "given"), said("x", "cannot tell"), said("y", "given")))
    fresh = notes(changed, AUDIT, known)
    assert [(note.body["id"], note.body["decision"]) for note in fresh] == [("x", "cannot tell")]
    body = ledger.entries()[0].body
    assert body is not None and {
        "id",
        "given",
        "proposed",
        "probability",
        "evidence",
        "model",
        "decision",
    } <= set(body)
