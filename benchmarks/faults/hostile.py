"""Those who are let in and mean harm: a site that sends what no site should, a listed key that breaks the form."""

from __future__ import annotations

import dataclasses
import itertools
import json
import pickle
import random
import threading
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
from benchmarks.faults.intercepted import tapped
from benchmarks.faults.references import app_of, lost, reference, said_by, sameness
from benchmarks.faults.row import PROCESSES, Row
from benchmarks.faults.stand import Stand, accuracy_of, model_of
from benchmarks.faults.studies import study_of
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from tests.promises.attacks import ATTACKS, Sight

from fedsift.deploy.certificates import client_context
from fedsift.deploy.coordinator.roster import RosterEntry, add_entry, fingerprint
from fedsift.deploy.coordinator.starting import ACCESS_LOG
from fedsift.deploy.gateway.limits import PUSH, SIGNATURE_LIFE, KeyLimits
from fedsift.deploy.gateway.proxy import FLEET, OBJECT, PULL
from fedsift.deploy.trial import family, make_key
from fedsift.protocol.messages import Reply, ReplyEnvelope, RequestEnvelope
from fedsift.runtime.in_process import InProcess
from fedsift.study.running import new_run
from fedsift.study.running import run as run_in_process
from fedsift.transports.remote.encoding import decode, encode
from fedsift.transports.remote.messages import EncodedMessage

# A site of the consortium ---------------------------------------------------------------------------------------------

IN_TURN = (
    "NaN", "infinity", "another shape", "another type", "float8", "a key too few", "a key too many", "x1000",
    "sign flip x15", "all zeros", "1e12 samples", "counts of -5", "a stale answer",
)  # fmt: skip
BROKEN = ("a pickle", "half of the bytes", "a text of 50 MB")
SEPARATELY = 3
"""Reasons that a row quotes."""


class Opened:
    """A pickle that leaves a file behind when it is opened."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, str]]:
        return open, (str(self._mark), "w")


class Liar:
    """Changes one answer after another, each round in another way; honest at the end."""

    def __init__(self, mark: Path) -> None:
        self._mark, self._past = mark, dict[str, Reply]()
        self.sent: dict[int, str] = {}
        """What was done, by round."""

    def __call__(self, asked: EncodedMessage, encoded: EncodedMessage) -> EncodedMessage:
        envelope, answer = decode(asked), decode(encoded)
        if not isinstance(envelope, RequestEnvelope) or not isinstance(answer, ReplyEnvelope) or answer.reply is None:
            return encoded
        number = envelope.moment.round
        if number >= len(IN_TURN) + len(BROKEN):
            return encoded
        name = (*IN_TURN, *BROKEN)[number]
        self.sent[number + 1] = name
        if name in ATTACKS:
            sight = Sight(envelope, {envelope.site: answer}, self._past)
            changed = encode(ATTACKS[name](answer, sight) or answer)
        elif name == "a pickle":
            changed = EncodedMessage(encoded.tree, pickle.dumps(Opened(self._mark)))
        elif name == "half of the bytes":
            changed = EncodedMessage(encoded.tree, encoded.tensors[: len(encoded.tensors) // 2])
        else:
            changed = encode(dataclasses.replace(answer, reply=None, failure="x" * 50_000_000))
        return dataclasses.replace(changed, note=encoded.note)


def _without(site: str, rounds: int) -> type[InProcess]:
    """An engine in which this site says nothing in so many rounds."""

    class Without(InProcess):
        def deliver(self, envelopes: Mapping[str, RequestEnvelope], deadline: float) -> Mapping[str, ReplyEnvelope]:
            answers = super().deliver(envelopes, deadline)
            there = [each for each in answers if each != site or envelopes[each].moment.round >= rounds]
            return {each: answers[each] for each in there}

    return Without


def hostile_site(stand: Stand) -> Iterator[Row]:
    """One of three sites sends something else instead of its answer in every round but the last."""
    rounds = len(IN_TURN) + len(BROKEN) + 1
    changes = {
        "method": {"name": "fedavg", "rounds": rounds},
        "federation": {"quorum": 0.5, "deadline": 120},
    }
    study = study_of("fedavg", stand.trial.out, **changes)
    site, mark = stand.sites[-1], stand.trial.out / "opened"
    calm = new_run(study, stand.trial.out / "calm")
    run_in_process(study, calm, kind=_without(site, rounds - 1))
    liar = Liar(mark)
    with tapped(stand, {site: liar}):
        run = stand.start(stand.app(study, "lied-to"))
        code = run.end()
    rows = {row["round"]: row for row in run.folder.rounds()}
    passed_on = [what for number, what in liar.sent.items() if site not in rows[number]["refused"]]
    others = {name for row in rows.values() for name in row["refused"]} - {site}
    reasons = [rows[number]["refused"].get(site, "") for number in liar.sent]
    same = model_of(run.folder) == model_of(calm) != b""
    before, after = accuracy_of(calm), accuracy_of(run.folder)
    spared = [*IN_TURN, *BROKEN] == list(liar.sent.values())
    honest = rows[rounds]["participants"] == len(stand.sites)
    yield Row(
        name="hostile site",
        fault=f"one site of three sends, a round each: {', '.join((*IN_TURN, *BROKEN))}; then an honest answer",
        how=PROCESSES,
        expected="each is set aside with a reason, nothing is opened, the honest one counts; in the end the model is "
        "that of a run in which the site said nothing in these rounds",
        outcome=f"exit code {code}; {len(liar.sent) - len(passed_on)} of {len(liar.sent)} set aside"
        + (f" (not: {', '.join(passed_on)})" if passed_on else "")
        + f", {'a pickle was opened' if mark.exists() else 'nothing was opened'}, "
        f"{rows[rounds]['participants']} sites in the last round; {'the same model' if same else 'another model'}",
        passed=code == 0 and spared and not (passed_on or others or mark.exists()) and honest and same,
        said="; ".join(list(dict.fromkeys(reasons))[:: max(1, len(reasons) // SEPARATELY)]),
        accuracy_lost=None if before is None or after is None else round(before - after, 2),
    )


# A listed key at the gateway ------------------------------------------------------------------------------------------


class Knocker:
    """Somebody with a key of the roster, who writes requests by hand."""

    def __init__(self, stand: Stand) -> None:
        file = stand.trial.out / f"knocker-{time.monotonic_ns()}.key"
        public = make_key(file)
        add_entry(stand.trial.roster, RosterEntry("site-98", fingerprint(public), 100))
        key = serialization.load_ssh_private_key(file.read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        self._key, self._ticks = key, 0
        self._public = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )

    def headers(self, age: float = 0.0, kind: str = "application/protobuf") -> dict[str, str]:
        self._ticks += 1  # no two signatures alike, however coarse the clock
        stamp = (datetime.now(UTC) - timedelta(seconds=age, microseconds=self._ticks)).isoformat()
        signature = self._key.sign(stamp.encode(), ec.ECDSA(hashes.SHA256()))
        return {
            "content-type": kind,
            "flwr-public-key": b64encode(self._public).decode(),
            "flwr-signature": b64encode(signature).decode(),
            "flwr-timestamp": stamp,
        }


@contextmanager
def at_the_gateway(stand: Stand) -> Iterator[httpx.Client]:
    trusted = client_context(stand.trial.certificate)
    with httpx.Client(
        base_url=f"https://{stand.trial.address}", verify=trusted, trust_env=False, timeout=60.0
    ) as client:
        yield client


@contextmanager
def listed(stand: Stand) -> Iterator[Knocker]:
    kept = stand.trial.roster.read_text("utf-8")
    try:
        yield Knocker(stand)
    finally:
        stand.trial.roster.write_text(kept, "utf-8")


def _memory(stand: Stand) -> dict[str, float]:
    """MB of the gateway and of all that it started, what they share counted once."""
    pid = stand.members["superlink"].process.pid
    return {"gateway": _share(pid), "Flower": sum(_share(each) for each in family(pid))}


def _share(pid: int) -> float:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text("utf-8")
    except OSError:  # it has ended
        return 0.0
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")) / 1024


def oversize(stand: Stand) -> Iterator[Row]:
    """Bodies that say they are long, that are and do not say so, that are packed, and a message of many pieces."""
    limits = KeyLimits()
    before = most = _memory(stand)
    grown_most = {"gateway": 4 * limits.request_bytes / 2**20, "Flower": limits.message_bytes / 2**20}

    def unsaid() -> Iterator[bytes]:
        for _ in range(500):
            yield bytes(2**20)

    with listed(stand) as knocker, at_the_gateway(stand) as client:

        def status(path: str, content: bytes | Iterator[bytes], **headers: str) -> int:
            nonlocal most
            try:
                return client.post(path, content=content, headers={**knocker.headers(), **headers}).status_code
            finally:
                most = {name: max(most[name], now) for name, now in _memory(stand).items()}

        long = status(PUSH, bytes(limits.request_bytes + 1))
        hidden = status(PUSH, unsaid())
        packed = status(PUSH, b"x", **{"content-encoding": "gzip"})
        piece = bytes(limits.request_bytes - 2**10)
        pieces = [status(OBJECT, piece) for _ in range(limits.message_bytes // len(piece) + 1)]
    grown, words = {name: most[name] - before[name] for name in most}, stand.log("superlink")
    yield Row(
        name="oversize at the gateway",
        fault="a listed key sends 16 MB and a byte, 500 MB of unsaid length, a packed body, and 256 MB in pieces",
        how=PROCESSES,
        expected="413, 413, 415 and at last 413; meanwhile the gateway never grows by more than four requests "
        f"({grown_most['gateway']:.0f} MB), Flower's programs not by a whole message ({grown_most['Flower']:.0f} MB)",
        outcome=f"{long}, {hidden}, {packed} and at last {pieces[-1]}; "
        f"gateway {grown['gateway']:+.0f} MB, Flower's programs "
        f"{grown['Flower']:+.0f} MB at most",
        passed=(long, hidden, packed, pieces[-1]) == (413, 413, 415, 413)
        and all(grown[name] <= grown_most[name] for name in grown),
        said=said_by(words, "a request may have"),
    )


KINDS = (
    "application/protobuf",
    "application/json",
    "application/flower-protobuf-stream",
    "application/pickle",
)


def _bodies(chance: random.Random, mark: Path) -> Iterator[bytes]:
    yield pickle.dumps(Opened(mark))
    yield json.dumps({"node": {"node_id": -1}, "messages_list": "x"}).encode()
    yield b"\x0a\xff\xff\xff\xff\x0f"  # a field that says it has four gigabytes
    for _ in range(3):
        yield chance.randbytes(chance.randrange(1, 4000))


def broken_requests(stand: Stand) -> Iterator[Row]:
    """While a run goes on, a listed key sends bytes that are no message of Flower's, and signatures a second time."""
    usual, mark = reference(stand, "fedavg"), stand.trial.out / "opened-at-the-gateway"
    began, chance, found = time.monotonic(), random.Random(3), Counter[int]()
    run = stand.start(app_of(stand, "fedavg"))
    run.ask(1)
    with listed(stand) as knocker, at_the_gateway(stand) as client:
        for path in sorted(FLEET):
            for kind, body in itertools.product(KINDS, _bodies(chance, mark)):
                found[client.post(path, content=body, headers=knocker.headers(kind=kind)).status_code] += 1
        once = knocker.headers()
        client.post(PULL, content=b"", headers=once)
        again = client.post(PULL, content=b"", headers=once).status_code
        old = client.post(PULL, content=b"", headers=knocker.headers(age=SIGNATURE_LIFE + 60)).status_code
        answering = client.post("/v1/control/start-run").status_code == 404
    code = run.end()
    answers = ", ".join(f"{count} x {status}" for status, count in sorted(found.items()))
    yield Row(
        name="corrupt bytes at the gateway",
        fault=f"a listed key sends {found.total()} bodies of random bytes, pickles and JSON to all fleet routes in a "
        "run, a signature twice, and one of six minutes ago",
        how=PROCESSES,
        expected="nothing is opened, the signatures are refused (401), the run is equal to the undisturbed one",
        outcome=f"exit code {code}; {answers}; signatures {again} and {old}; "
        f"{'a pickle was opened' if mark.exists() else 'nothing was opened'}; {sameness(run, usual)}",
        passed=code == 0
        and answering
        and (again, old) == (401, 401)
        and not mark.exists()
        and sameness(run, usual).startswith("model"),
        said=said_by(stand.log("superlink"), "was used before", "signed", "site-98 was refused"),
        **lost(run, began, usual),
    )


FLOOD, CALLERS = 4000, 8


def flood(stand: Stand) -> Iterator[Row]:
    """Somebody without a key, at the sites' own address, asks as fast as possible while a run goes on."""
    usual, began = reference(stand, "fedavg"), time.monotonic()
    log = stand.trial.hub / ACCESS_LOG
    before = log.stat().st_size if log.is_file() else 0
    found, guard = Counter[int](), threading.Lock()
    run = stand.start(app_of(stand, "fedavg"))
    run.ask(1)

    def ask() -> None:
        with at_the_gateway(stand) as client:
            for _ in range(FLOOD // CALLERS):
                status = client.post(PUSH, content=b"x" * 1000).status_code
                with guard:
                    found[status] += 1

    threads = [threading.Thread(target=ask) for _ in range(CALLERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    code, grown = run.end(), (log.stat().st_size if log.is_file() else 0) - before
    answers = ", ".join(f"{count} x {status}" for status, count in sorted(found.items()))
    yield Row(
        name="flood",
        fault=f"a client without a key, at the sites' own address, sends {FLOOD} requests in a run",
        how=PROCESSES,
        expected="all are refused, most of them ignored (429) and not logged; the run is equal to the undisturbed one",
        outcome=f"exit code {code}; {answers}; {grown / 2**20:.1f} MB of access log; {sameness(run, usual)}",
        passed=code == 0
        and set(found) == {401, 429}
        and found[429] > FLOOD / 2
        and grown < 2**20
        and sameness(run, usual).startswith("model"),
        said=said_by(stand.log("superlink"), "too many", "was refused"),
        **lost(run, began, usual),
    )
