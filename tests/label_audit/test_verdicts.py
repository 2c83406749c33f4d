"""Verdicts from three formats, each turned into class names, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsift.core.errors import DataError
from fedsift.label_audit.exports import QUEUE_COLUMNS, queue_csv
from fedsift.label_audit.ledger import LabelLedger
from fedsift.label_audit.review import ReviewItem, settle
from fedsift.label_audit.verdicts import (
    ReviewVerdict,
    fresh,
    from_entries,
    in_order,
    notes,
    read_verdicts,
    special_choice,
    superseded,
)
from tests.label_audit.made import make_audit, multilabel_audit

CLASSES = ("cat", "dog", "cow")
AUDIT = make_audit([0, 1, 2], [[0.1, 0.9, 0], [0.8, 0.2, 0], [0.1, 0.1, 0.8]], classes=CLASSES, ids=("x", "y", "z"))
"""x: given cat, proposed dog; y: given dog, proposed cat; z: nothing proposed."""


def page(*verdicts: dict[str, Any], site: str = "A", reader: str = "ann") -> str:
    return json.dumps({"format": "fedsift-verdicts-1", "site": site, "reader": reader, "verdicts": verdicts})


def said(name: str, decision: str, *labels: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "decision": decision, "labels": list(labels), **more}


def read(tmp_path: Path, text: str, audit: Any = AUDIT, name: str = "v.json", **options: Any) -> list[ReviewVerdict]:
    (tmp_path / name).write_text(text, encoding="utf-8")
    return read_verdicts(tmp_path / name, audit, **options)


def studio(name: str, *choices: str, by: Any = 1, **more: Any) -> dict[str, Any]:
    result = [{"from_name": "label", "to_name": "img", "type": "choices", "value": {"choices": list(choices)}}]
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


def test_a_reader_is_named_where_the_file_names_none(tmp_path: Path) -> None:
    """Names in the file stay: two annotators would else be one who agrees with himself."""
    queue = "id,verdict,reader\nx,given,bob\ny,given,\n"
    assert [one.reader for one in read(tmp_path, queue, name="q.csv", reader="eve")] == ["bob", "eve"]
    tasks = [
        studio("x", "dog", by={"email": "ann@site"}),
        studio("x", "cat", by=7),
        studio("y", "cat", by=None),
    ]
    found = read(tmp_path, json.dumps(tasks), reader="eve")
    assert [one.reader for one in found] == ["ann@site", "reader 7", "eve"]
    assert [one.reader for one in read(tmp_path, page(said("x", "given")), reader="eve")] == ["ann"]


MOVED = replace(AUDIT, proposed=np.array([2, 1, 2]), flagged=np.array([True, False, False]), before=AUDIT)
"""After a first reader, whose word became the proposal: x is a cow, y a dog as given."""


def test_the_proposal_that_the_queue_showed_counts(tmp_path: Path) -> None:
    text = (
        "id,given_label,proposed_label,probability_wrong,verdict,other_label,reader\n"
        "x,cat,dog,0.9,proposal,,bob\ny,dog,cat,0.8,proposal,,bob\n"
    )
    found = read(tmp_path, text, MOVED, "q.csv")
    assert [(one.decision, one.labels) for one in found] == [("proposal", ("dog",)), ("proposal", ("cat",))]
    assert [note.body["proposed"] for note in notes(found, MOVED, [])] == [["dog"], ["cat"]]
    later = text.replace("x,cat,dog", "x,cat,cow")  # a queue that was written after the first reader
    assert read(tmp_path, later, MOVED, "q.csv")[0].labels == ("cow",)
    both = read(tmp_path, text.replace("proposal,,", "both,,"), MOVED, "q.csv")
    assert [one.labels for one in both] == [("cat", "dog"), ("dog", "cat")]
    [same] = read(tmp_path, "id,verdict,reader\nx,proposal,bob\n", MOVED, "q.csv")
    assert same.labels == ("dog",)  # the file does not say: never another reader's word
    with pytest.raises(DataError, match="sample 'x': there is no class 'dgo': did you mean 'dog'"):
        read(tmp_path, text.replace("x,cat,dog", "x,cat,dgo"), MOVED, "q.csv")


def test_a_proposal_that_was_not_shown_cannot_be_right(tmp_path: Path) -> None:
    blind = "id,given_label,proposed_label,probability_wrong,verdict,other_label,reader\nx,cat,,,{},{},bob\n"
    with pytest.raises(DataError, match="sample 'x': nothing was proposed for it"):
        read(tmp_path, blind.format("proposal", ""), name="q.csv")
    [one] = read(tmp_path, blind.format("other", "dog"), MOVED, "q.csv")
    assert one.decision == "proposal"  # what the audit itself proposed, whatever the first reader said


def test_the_proposal_of_the_task_and_of_the_page(tmp_path: Path) -> None:
    task = studio("x", "both given and proposed")
    task["predictions"] = [
        {"model_version": "other", "result": studio("x", "cow")["annotations"][0]["result"]},
        {"model_version": "fedsift abab", "result": studio("x", "dog")["annotations"][0]["result"]},
    ]
    bare = studio("x", "dog") | {"predictions": [17]}  # some exports hold numbers of predictions only
    found = read(tmp_path, json.dumps([task, bare]), MOVED)
    assert [(one.decision, one.labels) for one in found] == [("both", ("cat", "dog")), ("proposal", ("dog",))]
    shown = read(
        tmp_path,
        page(
            said("x", "proposal", "dog", proposed=["dog"]),
            said("x", "both", proposed=["dog"]),
            said("y", "other", "cow", proposed=None),
        ),
        MOVED,
    )
    assert [(one.decision, one.labels) for one in shown] == [
        ("proposal", ("dog",)),
        ("both", ("cat", "dog")),
        ("other", ("cow",)),
    ]


def test_no_finding_is_a_proposal_as_well(tmp_path: Path) -> None:
    """Several labels: the cell of a proposal without any is empty, its probability is not."""
    audit = multilabel_audit(40)
    k = next(k for k in range(40) if audit.given[k].any() and not audit.proposed[k].any())
    moved = replace(audit, proposed=audit.given, before=audit)
    line = next(row for row in queue_csv(audit, [ReviewItem(audit.ids[k], "worst", False)]).splitlines()[1:])
    assert ",,0." in line
    text = f"{','.join(QUEUE_COLUMNS)}\n{line[:-3]}proposal,,ann,\n"
    [one] = read(tmp_path, text, moved, "q.csv")
    assert (one.decision, one.labels) == ("proposal", ())


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
    [one] = read(tmp_path, f"id,verdict,other_label\n{name},other,{everything}\n", audit, "q.csv", reader="ann")
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


def test_semicolons_are_called_that(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="q.csv looks semicolon-separated: save it with commas"):
        read(tmp_path, "id;verdict;other_label\nx;given;1,5\n", name="q.csv")


def test_verdicts_go_through_the_ledger_and_are_not_taken_twice(tmp_path: Path) -> None:
    ledger = LabelLedger(tmp_path / "ledger.jsonl")
    first = read(tmp_path, page(said("x", "proposal", "dog"), said("y", "given")))
    ledger.append(notes(first, AUDIT, []), "ann")
    known = from_entries(ledger.entries())
    assert known == first
    assert notes(first, AUDIT, known) == []
    changed = read(tmp_path, page(said("x", "given"), said("x", "cannot tell"), said("y", "given")))
    added = notes(changed, AUDIT, known)
    assert [(note.body["id"], note.body["decision"]) for note in added] == [("x", "cannot tell")]
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


def dated(decision: str, when: str, reader: str = "ann", **more: Any) -> ReviewVerdict:
    return ReviewVerdict("x", decision, {"given": ("cat",), "other": ("cow",)}.get(decision, ()), reader, when, **more)


def imported(tmp_path: Path, *files: ReviewVerdict) -> list[tuple[str, str]]:
    """One file after the other into one ledger: what counts, oldest first."""
    tmp_path.mkdir()
    ledger = LabelLedger(tmp_path / "ledger.jsonl")
    for one in files:
        ledger.append(notes([one], AUDIT, from_entries(ledger.entries())), one.reader)
    return [(one.decision, one.when) for one in from_entries(ledger.entries())]


def test_an_older_file_does_not_revert_a_newer_verdict(tmp_path: Path) -> None:
    old, new = dated("other", "2026-01-01T00:00:00Z"), dated("given", "2026-02-01")
    assert imported(tmp_path / "a", old, new, old) == [("other", old.when), ("given", new.when)]
    assert imported(tmp_path / "b", new, old) == [("other", old.when), ("given", new.when)]
    # the same answer at another time is another verdict: what comes between the two must not revert it
    again = dated("given", "2026-04-01T00:00:00+02:00")
    between = dated("other", "2026-03-01T00:00:00Z")
    assert imported(tmp_path / "c", new, again, between)[-1] == ("given", again.when)
    assert settle(in_order([new, between, again])).final["x"].decision == "given"


def test_without_a_time_the_order_of_import_counts(tmp_path: Path) -> None:
    first, second = dated("other", ""), dated("given", "last week")
    assert imported(tmp_path / "a", first, second, first) == [("other", ""), ("given", "last week")]
    between = dated("cannot tell", "2026-01-01")
    assert imported(tmp_path / "b", dated("given", "2026-02-01"), first, between)[-1] == ("other", "")
    assert imported(tmp_path / "c", first, between)[-1] == ("cannot tell", "2026-01-01")


def test_readers_do_not_replace_each_other_and_the_last_adjudication_counts() -> None:
    bob, ann = dated("given", "2026-02-01", "bob"), dated("other", "2026-01-01", "ann")
    assert in_order([bob, ann]) == [bob, ann] and settle([bob, ann]).open == ("x",)
    late, early = (replace(one, adjudicates=True) for one in (bob, ann))
    assert settle(in_order([late, early])).final["x"].reader == "bob"


def test_what_does_not_count_is_told() -> None:
    old, new = dated("other", "2026-01-01"), dated("given", "2026-02-01")
    assert superseded([old], [new]) == superseded([old], [old, new]) == 1
    assert superseded([new], [old]) == superseded([new], [old, new]) == 0
    assert fresh([old], [old, new]) == [] and fresh([new, old], []) == [new]
