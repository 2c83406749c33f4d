"""Faults that need no processes: `python -m benchmarks.faults.inprocess` brings them about and writes their rows.

The coordinator's gate, protection and methods are those of every run; what is tampered with is what arrives.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from benchmarks.attacks.accuracy import HOSTILE, study_of
from benchmarks.faults.fuzz import FILE as FUZZED
from benchmarks.faults.fuzz import KEY, summed
from benchmarks.faults.mutations import EXECUTED, Mutations
from benchmarks.faults.row import source
from benchmarks.faults.small import small_study
from benchmarks.files import read_list, read_tree, write_list
from tests.promises.attacks import FORM, MODEL, Change, Sight, attacked

from fedsift.deploy.site.policy import small_counts
from fedsift.methods._base import methods
from fedsift.protocol.messages import Reply, ReplyEnvelope, RequestEnvelope
from fedsift.runtime.in_process import InProcess
from fedsift.study.running import InProcessTransport, new_run
from fedsift.study.study import Study
from fedsift.training.requests import Indicators

FILE = Path(__file__).parent / "results" / "inprocess.csv"
FLOOR = 10
DEPLOYED = ("fednoro", "fedcorr", "rhfl", "fedmlp", "feddpcont")
"""Methods whose sites are also killed as processes."""


def row(fault: str, how: str, outcome: str, lost: float | None, seconds: float | None, said: str) -> dict[str, Any]:
    return {
        "fault": fault,
        "how": how,
        "outcome": outcome,
        "accuracy_lost": None if lost is None else round(lost, 1),
        "seconds_lost": None if seconds is None else round(max(0.0, seconds), 1),
        "said": said,
    }


@dataclasses.dataclass(frozen=True)
class Seen:
    accuracy: float
    seconds: float
    """Of computing; nobody waits for anybody in one process."""
    refused: dict[str, str]
    lines: list[dict[str, Any]]


def played(study: Study, kind: type[InProcess] = InProcess) -> Seen:
    begun = time.process_time()
    with tempfile.TemporaryDirectory() as place:
        folder = new_run(study, Path(place))
        InProcessTransport(kind).run(study, folder)
        lines = list(folder.rounds())
        final = folder.read_json("summary.json")["accuracy"]["final"]
    refused = {site: reason for line in lines for site, reason in line["refused"].items()}
    return Seen(float(final), time.process_time() - begun, refused, lines)


# Messages ------------------------------------------------------------------------------------------------------------


def in_turn(names: tuple[str, ...], attacks: Mapping[str, Change]) -> Change:
    """These attacks, one after another."""
    turn = iter(range(10**9))

    def change(answer: ReplyEnvelope, sight: Sight) -> ReplyEnvelope | None:
        return attacks[names[next(turn) % len(names)]](answer, sight)

    return change


def oversize(answer: ReplyEnvelope, sight: Sight) -> ReplyEnvelope:
    """A text of 50 MB, a list of 200,000 entries, a tensor of 100 MB, in turn."""
    kind = sight.envelope.moment.round % 3
    if kind == 0:
        return dataclasses.replace(answer, reply=None, failure="x" * 50_000_000)
    huge: Any = tuple(range(200_000)) if kind == 1 else {"layer": torch.zeros(25_000_000)}
    return dataclasses.replace(answer, reply=dataclasses.replace(answer.reply, weights=huge))  # type: ignore[call-arg]


def corrupt() -> Change:
    stream = Mutations(seed=4)

    def change(answer: ReplyEnvelope, sight: Sight) -> ReplyEnvelope:
        for _ in range(20):
            changed = stream._bytes(answer, sight)
            if changed is not answer:
                return changed
        return answer

    return change


MESSAGES: Mapping[str, tuple[str, Callable[[], Change]]] = {
    "NaN and infinity": ("one number of a model", lambda: in_turn(("NaN", "infinity"), FORM)),
    "shapes, types, keys": (
        "another shape, one that stretches, float64, float8, a key too few, a key too many, in turn",
        lambda: in_turn(tuple(list(FORM)[2:8]), FORM),
    ),
    "x10, x1000, sign flip": (
        "the update 10, 25 and 1000 times as long, back by 1 and by 15, in turn",
        lambda: in_turn(("x10", "x1000", "sign flip x1", "sign flip x15", "x25"), MODEL),
    ),
    "false counts": (
        "1e12 samples, counts of 1e15 and of -5",
        lambda: in_turn(("1e12 samples", "counts of 1e15", "counts of -5"), FORM),
    ),
    "replays": (
        "its first model again, and answers of another time",
        lambda: in_turn(("replay", "a stale answer"), {**MODEL, **FORM}),
    ),
    "oversize": ("50 MB of text, 200,000 entries, a tensor of 100 MB", lambda: oversize),
    "corrupt bytes and pickles": (
        "bytes flipped, cut, replaced by pickles, JSON that means another class",
        corrupt,
    ),
}


def messages() -> Iterator[dict[str, Any]]:
    """One of ten sites, in every round of FedAvg on digits."""
    study = study_of("fedavg", Path())
    usual = played(study)
    for fault, (how, change) in MESSAGES.items():
        seen = played(study, attacked(change(), HOSTILE[:1]))
        count = sum(len(line["refused"]) for line in seen.lines)
        lost = 100 * (usual.accuracy - seen.accuracy)
        outcome = f"the run goes on to its end; {count} of {len(seen.lines)} answers set aside"
        said = next(iter(seen.refused.values()), "nothing: each answer was still a valid one")
        yield row(fault, f"one site of ten: {how}", outcome, lost, seen.seconds - usual.seconds, said[:200])


def fuzzed() -> Iterator[dict[str, Any]]:
    if not FUZZED.is_file():
        return
    found = summed(read_tree(FUZZED, KEY))
    line = row(
        f"{found['messages']:,} fuzzed messages",
        f"through the gate and all {found['methods']} methods, seed {found['seed']} (benchmarks/faults/fuzz.py)",
        f"{len(found['faults'])} raised, {found['executed']} executed; {found['refused']:,} set aside; "
        f"{found['into_methods']:,} of the right form went on into {found['steps']:,} steps of the methods",
        None,
        None,
        "a reason for each that was set aside, of at most 1000 printable characters",
    )
    yield {**line, "source": found["source"]}


# Labels and scores ---------------------------------------------------------------------------------------------------


class Lying(InProcess):
    """The first noisy site tells the scores of the first clean one."""

    def deliver(self, envelopes: Mapping[str, RequestEnvelope], deadline: float) -> Mapping[str, ReplyEnvelope]:
        answers = dict(super().deliver(envelopes, deadline))
        truth = self.federated.truth
        assert truth is not None
        liar, model = min(truth.noisy), min(site for site in self.sites if site not in truth.noisy)
        own = answers[liar].reply if liar in answers else None
        if isinstance(own, Indicators) and isinstance(answers[model].reply, Indicators):
            told = dataclasses.replace(answers[model].reply, samples=own.samples)
            answers[liar] = dataclasses.replace(answers[liar], reply=told)
        return answers


def noisy_study(noise: dict[str, Any], **changes: Any) -> Study:
    return study_of(
        "fednoro",
        Path(),
        seed=31,
        noise=noise,
        train={"epochs": 2, "batch_size": 16, "lr": 0.1, "momentum": 0.5},
        method={"name": "fednoro", "rounds": 8, "warm_up": 5, "detection": "tested"},
        **changes,
    )


def labels() -> Iterator[dict[str, Any]]:
    some = {"name": "fedcorr", "rho": 0.4, "tau": 0.5, "sites": "exact"}
    study = noisy_study(some, gate={"cross_check": True})
    usual, seen, truth = played(study), played(study, Lying), study.load_data().truth
    assert truth is not None
    liar = min(truth.noisy)
    warned = [text for line in seen.lines for text in line["warnings"]]
    [found] = [line["findings"] for line in seen.lines if "findings" in line]
    outcome = (
        f"{liar} {'is called noisy' if liar in found['noisy'] else 'passes for clean'}; the coordinator's own samples "
        f"{'tell on it' if any(liar in text for text in warned) else 'do not tell on it'}"
    )
    yield row(
        "lying scores",
        "FedNoRo: one noisy site of ten claims a clean one's losses",
        outcome,
        100 * (usual.accuracy - seen.accuracy),
        seen.seconds - usual.seconds,
        "; ".join(warned),
    )
    for fault, noise in (
        ("all clean", {"name": "clean"}),
        ("all noisy", {"name": "fedcorr", "rho": 1.0, "tau": 0.5, "sites": "exact"}),
    ):
        lines = played(noisy_study(noise)).lines
        [found] = [line["findings"] for line in lines if "findings" in line]
        noisy = ", ".join(found["noisy"]) or "nobody"
        said = "no clean reference" if found.get("no_clean_reference") else f"p = {found['p_value']:.3f}"
        outcome = f"the run goes on to its end; called noisy: {noisy}"
        yield row(fault, "FedNoRo with the tested rule, ten sites", outcome, None, None, said)


# Every method --------------------------------------------------------------------------------------------------------


class Leaving(InProcess):
    """The last site is gone in the second half of every stage's rounds; every message is looked at."""

    messages: int = 0
    gone: int = 0
    stages: set[str]
    wrong: list[str]
    lengths: Mapping[str, int]

    def deliver(self, envelopes: Mapping[str, RequestEnvelope], deadline: float) -> Mapping[str, ReplyEnvelope]:
        answers = dict(super().deliver(envelopes, deadline))
        for site, answer in answers.items():
            type(self).messages += 1
            self.wrong.extend(undeclared(answer.reply))
            self.wrong.extend(f"{site}: {text}" for text in small_counts(answer.reply, FLOOR))
        last, stage = self.sites[-1], self.round.stage
        if last in answers and len(answers) > 2 and self.round.index >= self.lengths.get(stage, 1) // 2:
            del answers[last]
            type(self).gone += 1
            self.stages.add(stage)
        return answers


def undeclared(reply: Any) -> list[str]:
    """Fields that are not declared, or do not say what they tell."""
    if not isinstance(reply, Reply):
        return []
    fields = {entry.name: entry for entry in dataclasses.fields(reply)}
    extra = [f"{type(reply).__name__}.{name}" for name in vars(reply).keys() - fields.keys()]
    mute = [f"{type(reply).__name__}.{name}" for name, entry in fields.items() if not entry.metadata.get("what")]
    return [*extra, *mute, *(text for inner in getattr(reply, "then", ()) for text in undeclared(inner))]


def every_method() -> Iterator[dict[str, Any]]:
    sent = gone = stages = 0
    wrong: list[str] = []
    ended: list[str] = []
    said = ""
    names = methods.names()
    for name in names:
        with tempfile.TemporaryDirectory() as place:
            study = small_study(name, Path(place), federation={"min_count": FLOOR})
            lengths = {stage.name: stage.rounds for stage in study.method.stages()}
            told = {"stages": set(), "wrong": wrong, "lengths": lengths, "messages": 0, "gone": 0}
            kind = type("Left", (Leaving,), told)
            folder = new_run(study, Path(place))
            try:
                InProcessTransport(kind).run(study, folder)
            except Exception as error:
                ended.append(f"{name}: {error}"[:200])
            said = said or next((r for line in folder.rounds() for r in line["refused"].values()), "")
        sent, gone, stages = sent + kind.messages, gone + kind.gone, stages + len(kind.stages)
    others = len([name for name in names if name not in DEPLOYED])
    yield row(
        f"a site gone mid-train, {others} other methods",
        f"one site of five leaves half-way through every stage of all {len(names)} methods",
        f"{len(names) - len(ended)} of {len(names)} runs go on to their end; {gone} answers missing in {stages} stages"
        + "".join(f"; {text}" for text in ended),
        None,
        None,
        said,
    )
    yield row(
        "interception",
        f"every message of all {len(names)} methods, minimum count {FLOOR}",
        f"{sent:,} messages: {len(wrong)} fields that are not declared or counts below the minimum"
        + "".join(f"; {text}" for text in sorted(set(wrong))[:5]),
        None,
        None,
        "the disclosure table lists each field",
    )


PARTS: Mapping[str, Callable[[], Iterator[dict[str, Any]]]] = {
    "messages": messages,
    "fuzzed": fuzzed,
    "labels": labels,
    "every method": every_method,
}
"""In the order of the page."""


def rows(only: str, before: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All rows, or those of one part made anew among the others."""
    torch.set_num_threads(1)
    found: list[dict[str, Any]] = []
    for name, part in PARTS.items():
        if only in ("", name):
            found += [{"source": source(), **line, "part": name} for line in part()]
        else:
            found += [line for line in before if line["part"] == name]
    assert not EXECUTED
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults.inprocess")
    parser.add_argument("--only", default="", choices=["", *PARTS], help="this part of the rows alone")
    result = rows(parser.parse_args().only, read_list(FILE))
    write_list(FILE, [{**line, "number": number} for number, line in enumerate(result, 1)], ("number",))
    print(json.dumps(result, indent=1, ensure_ascii=False))
