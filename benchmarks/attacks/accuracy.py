"""What hostile sites cost: accuracy of every averaging method with 0, 1 and 2 hostile sites of 10, attack by attack."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.attacks.files import SOURCE, source
from benchmarks.attacks.light import conducted
from sklearn.datasets import load_digits
from tests.promises.attacks import FORM, MODEL, Change, Sight, absent, attacked

from fedsift.core.codec import digest_of
from fedsift.data.dataset import FederatedDataset
from fedsift.methods._base import Averaging, methods
from fedsift.protocol.messages import Reply, ReplyEnvelope, RequestEnvelope
from fedsift.runtime.gate.protection import Protection
from fedsift.runtime.gate.reply_checks import refusal
from fedsift.runtime.in_process import InProcess
from fedsift.study.study import Study

SITES = 10
SEEDS = (5, 6, 7)
KINDS = ("one", "two")
"""How many sites are hostile."""
HOSTILE = ("site-09", "site-08")
FORMS_TRIED = ("fedavg", "fednoro", "fedcorr", "fedmlp", "feddpcont")
"""Methods whose run under malformed answers is compared with that of an absent site, bit by bit."""
RULE = {"aggregate": "trimmed", "hostile": 0.2}
"""The robust rule that stands against two."""
OTHERS = ("arfl", "feddf", "cbafed")
"""Methods that average models by a rule of their own."""
SHORT: Mapping[str, dict[str, Any]] = {
    "cbafed": {"warmup": 4, "rounds": 8},
    "dividemix": {"warmup": 6, "rounds": 6},
    "fedclean": {"rounds_1": 10, "rounds_2": 15, "rounds_3": 15},
    "fedcorr": {"iterations": 1, "fine_tuning_rounds": 4, "usual_rounds": 6},
    "feddf": {"rounds": 6},
    "feddpcont": {"rounds": 20},
    "feddyn": {"rounds": 20},
    "fednoro": {"rounds": 12, "warm_up": 6},
    "joint-opt": {"warmup": 6, "rounds": 8},
    "lc": {"warmup": 6, "rounds": 6},
    "rhfl-avg": {"rounds": 16},
    "t-revision": {"warmup": 6, "rounds": 6, "revision": 4},
}
"""As many rounds as let a method learn digits; 12 for the others."""
FINDINGS = ("even", "five or more", "round", "prime")
WITH: Mapping[int, tuple[int, ...]] = {
    0: (0, 2, 4, 6, 8),
    1: (5, 6, 7, 8, 9),
    2: (0, 6, 8, 9),
    3: (2, 3, 5, 7),
}


def averaging() -> list[str]:
    """Every method whose server makes one model of the sites' models."""
    return [name for name in methods.names() if issubclass(methods.get(name), Averaging) or name in OTHERS]


def several_labels(folder: Path) -> Path:
    """Digits with four yes/no findings each, for methods of several labels a sample."""
    digits = load_digits()
    images = (digits.images * (255 / 16)).astype(np.uint8)
    labels = np.stack([np.isin(digits.target, WITH[k]) for k in range(len(FINDINGS))], axis=1).astype(np.int64)
    path = folder / "findings.npz"
    np.savez(
        path,
        images=images[:1200],
        labels=labels[:1200],
        test_images=images[1200:],
        test_labels=labels[1200:],
        classes=np.array(FINDINGS),
    )
    return path


def study_of(name: str, folder: Path, *, robust: bool = False, seed: int = 5, **changes: Any) -> Study:
    """Ten equal sites of digits with clean labels: what is lost is lost to the attack."""
    method = methods.get(name)
    known = {entry.name for entry in dataclasses.fields(method)}
    table: dict[str, Any] = {
        "name": f"{name} under attack",
        "seed": seed,
        "data": {"name": "digits"},
        "partition": {"name": "iid", "sites": SITES},
        "noise": {"name": "clean"},
        "model": {"name": "mlp"},
        "train": {"epochs": 1, "batch_size": 32, "lr": 0.2, "momentum": 0.9},
        "engine": {"threads": 1},
        "gate": {"heuristics": "always"},
    }
    if "multiclass" not in method.tasks:
        table["data"] = {"name": "npz", "path": str(several_labels(folder))}
        table["noise"] = {"name": "class-missing", "missing": 1}
    if "public" in method.needs:
        table["public"] = {"from_train": 0.1}
    settings = {"rounds": 12, "fraction": 1.0, **SHORT.get(name, {}), **(RULE if robust else {})}
    table["method"] = {"name": name, **{key: value for key, value in settings.items() if key in known}}
    table.update(changes)
    return Study.from_table(table)


def every_form() -> Any:
    """All malformed answers, one after another."""
    turn = iter(range(10**9))

    def change(answer: ReplyEnvelope, sight: Sight) -> ReplyEnvelope | None:
        for _ in FORM:
            name = list(FORM)[next(turn) % len(FORM)]
            changed = FORM[name](answer, sight)
            if changed is not None:
                return changed
        return None

    return change


@dataclass
class Shadow:
    """What the gate would know if the hostile sites had answered by one attack, which it has always refused so far."""

    protection: Protection
    past: dict[str, dict[str, Reply]] = field(default_factory=dict)


def withheld(hostile: Sequence[str], shadows: dict[str, Shadow], spoken: list[str]) -> type[InProcess]:
    """An engine whose hostile sites never send a model and answer all else honestly.

    That is what the run of an attack comes to whose models are all refused. Every attack is tried on every exchange,
    with a gate of its own; those that stay in `shadows` until the end need no run: theirs is this one. `spoken`: what
    the hostile sites answered all the same.
    """

    class Withheld(InProcess):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            shadows.update({attack: Shadow(copy.deepcopy(self.protection)) for attack in MODEL})

        def deliver(self, envelopes: Mapping[str, RequestEnvelope], deadline: float) -> Mapping[str, ReplyEnvelope]:
            honest = super().deliver(envelopes, deadline)
            for attack in list(shadows):
                if not self._refused(MODEL[attack], shadows[attack], envelopes, honest):
                    del shadows[attack]
            silent = [site for site in hostile if site in honest and _moves(honest[site], envelopes[site])]
            spoken.extend(site for site in hostile if site in honest and site not in silent)
            return {site: answer for site, answer in honest.items() if site not in silent}

        def _refused(
            self,
            change: Change,
            shadow: Shadow,
            envelopes: Mapping[str, RequestEnvelope],
            honest: Mapping[str, ReplyEnvelope],
        ) -> bool:
            """Whether this exchange goes on as if the hostile sites had sent no model."""
            replies = {site: answer.reply for site, answer in honest.items() if answer.reply is not None}
            wrong = []
            for site in hostile:
                if site not in honest:
                    continue
                sight = Sight(envelopes[site], honest, shadow.past.setdefault(site, {}))
                sent = change(honest[site], sight) or honest[site]
                if not _moves(honest[site], envelopes[site]):
                    if digest_of(sent) != digest_of(honest[site]):
                        return False
                elif refusal(sent, envelopes[site], self.facts[site]) is not None:
                    del replies[site]
                else:
                    assert sent.reply is not None
                    replies[site] = sent.reply
                    wrong.append(site)
            found = shadow.protection.refusals(self.round.stage, replies, envelopes, self._buffers_at)
            return sorted(found) == sorted(wrong)

    return Withheld


def _moves(answer: ReplyEnvelope, envelope: RequestEnvelope) -> bool:
    return answer.reply is not None and bool(answer.reply.moves(envelope.request))


def row(name: str, place: Path, seed: int, robust: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """The cells of a method: attack, and what came of it. The first one, `none`, is the measure of the others.

    An attack that is refused throughout is not run: its cell is that of `withheld`, and says so. One of them is run
    all the same, and must end in the same model.
    """
    study = study_of(name, place, robust=robust, seed=seed)
    federated = study.load_data()
    hostile = HOSTILE if robust else HOSTILE[:1]
    yield "none", cell(study, federated, InProcess)
    shadows: dict[str, Shadow] = {}
    spoken: list[str] = []
    alike = cell(study, federated, withheld(hostile, shadows, spoken))
    yield "withheld", alike
    if not robust:
        without = cell(study, federated, absent(hostile)) if spoken else {**alike, "same": "withheld"}
        yield "absent", without
        if name in FORMS_TRIED:
            yield "malformed", _same(without, cell(study, federated, attacked(every_form(), hostile)))
    proven = False
    for attack, change in MODEL.items():
        if attack in shadows and proven:
            yield attack, {**alike, "same": "withheld"}
            continue
        found = cell(study, federated, attacked(change, hostile))
        if attack in shadows:
            found, proven = _same(alike, found), True
        yield attack, found


def cell(study: Study, federated: FederatedDataset, kind: type[InProcess]) -> dict[str, Any]:
    """One run: what the model came to, how many replies were refused, or what ended it."""
    try:
        found = conducted(study, federated, kind)
        return {
            "accuracy": round(found.accuracy, 4),
            "refused": found.refused,
            "digest": digest_of(found.model),
            SOURCE: source(),
        }
    except Exception as error:  # a run that an attack ends is a result
        return {"accuracy": None, "ended": f"{type(error).__name__}: {error}"[:300], SOURCE: source()}


def _same(wanted: Mapping[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    if wanted.get("digest") != found.get("digest"):
        raise AssertionError(f"a refused attack changed the model: {found} is not {wanted}")
    return {**found, "proven": True}
