"""Who wants in: with the certificate alone, with a key that is not listed, revoked or another's, without encryption."""

from __future__ import annotations

import shutil
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
from benchmarks.faults.references import app_of, lost, reference, said_by
from benchmarks.faults.row import PROCESSES, Row
from benchmarks.faults.stand import Stand, wait_until
from benchmarks.faults.studies import study_of

from fedsift.deploy.app import narrowest_policy
from fedsift.deploy.certificates import CertificatePair, client_context, temporary_certificate
from fedsift.deploy.coordinator.roster import RosterEntry, add_entry, fingerprint, revoke_entry
from fedsift.deploy.flower_commands import free_port
from fedsift.deploy.gateway.proxy import FLEET
from fedsift.deploy.site.consent import app_fingerprint, pin
from fedsift.deploy.trial import TrialProcess, end_family, make_key

CONTROL = ("list-nodes", "register-node", "start-run", "stop-run", "list-runs")
OTHERS = ("/v1/runtime/pull-task-input", "/v1/runtime/acquire-task", "/docs", "/openapi.json")
BEFORE_IT_GIVES_UP = 60.0


def only_the_certificate(stand: Stand) -> Iterator[Row]:
    trusted = client_context(stand.trial.certificate)
    with httpx.Client(base_url=f"https://{stand.trial.address}", verify=trusted, trust_env=False) as attacker:
        paths = [*(f"/v1/control/{name}" for name in CONTROL), *OTHERS]
        hidden = {attacker.post(path).status_code for path in paths}
        fleet = {attacker.post(path).status_code for path in FLEET}
    yield Row(
        name="only ca.crt",
        fault="an attacker with nothing but ca.crt calls control, runtime and documentation, then every fleet route",
        how=PROCESSES,
        expected="404 for the first, 401 for the others",
        outcome=f"{sorted(hidden)} for {len(paths)} routes, {sorted(fleet)} for {len(FLEET)} fleet routes",
        passed=hidden == {404} and fleet == {401},
        said=said_by(stand.log("superlink"), "was refused"),
    )


def _visitor(stand: Stand, name: str, key: Path, ca: Path, address: str = "", file: Path | None = None) -> TrialProcess:
    """A site's program that is not one of the consortium's."""
    model = (file or stand.trial.sites[stand.sites[0]]).parent
    place = model.parent / name  # beside what all sites share
    if not place.is_dir():
        shutil.copytree(model, place, ignore=_without_notes)
    line = ("--superlink", address or stand.trial.address, "--ca", ca, "--key", key)
    return stand.trial.launch(name, "site", place / "site.toml", *line)


def _without_notes(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if name in ("notebook", ".flower")]


def unlisted_key(stand: Stand) -> Iterator[Row]:
    key = stand.trial.out / "stranger.key"
    make_key(key)
    member = _visitor(stand, "stranger", key, stand.trial.certificate)
    wait_until(lambda: "was refused" in stand.log("stranger") or member.process.poll() is not None, 120, "a refusal")
    time.sleep(2.0)
    known = len(stand.nodes())
    end_family(member.process)
    said = said_by(stand.log("stranger"), "was refused", "not on the roster")
    yield Row(
        name="unlisted key",
        fault="a site whose key is not on the roster tries to join",
        how=PROCESSES,
        expected="no node for it; both sides get the reason",
        outcome=f"{known} nodes as before" if known == len(stand.sites) else f"{known} nodes",
        passed=known == len(stand.sites) and "roster" in said and "roster" in stand.log("superlink"),
        said=said,
    )


def revoked_in_a_run(stand: Stand) -> Iterator[Row]:
    usual = reference(stand, "fedavg")
    kept = stand.trial.roster.read_text("utf-8")
    changes = {"federation": {"quorum": 0.5, "deadline": 300, "grace": 10}}
    app = stand.app(study_of("fedavg", stand.trial.out, **changes), "revoked")
    began, victim = time.monotonic(), stand.sites[-1]
    run = stand.start(app)
    run.finish(1)
    revoke_entry(stand.trial.roster, victim)
    code = run.end()
    said = said_by(stand.log("superlink"), f"{victim}' was revoked", "revoked")
    own = said_by(stand.log(victim), "revoked")
    rows = run.folder.rounds()
    without = [row["round"] for row in rows if row["participants"] < len(stand.sites)]
    stand.trial.roster.write_text(kept, "utf-8")
    stand.kill(victim)
    stand.start_site(victim)
    time.sleep(15.0)
    yield Row(
        name="revoked in a run",
        fault="a site is revoked after round 1 of 4",
        how=PROCESSES,
        expected="its next message is refused, the run ends without it, both sides get the reason",
        outcome=f"exit code {code}; rounds {without} without it",
        passed=code == 0 and rows[-1]["participants"] == len(stand.sites) - 1 and bool(said and own),
        said=said,
        **lost(run, began, usual),
    )


def reinstated_in_a_run(stand: Stand) -> Iterator[Row]:
    """A site is taken off the roster and put back while it runs; its program is not touched."""
    kept, victim = stand.trial.roster.read_text("utf-8"), stand.sites[-1]
    changes = {
        "federation": {"quorum": 0.5, "deadline": 300, "grace": 10},
        "method": {"name": "fedavg", "rounds": ROUNDS_TO_RETURN},
    }
    run = stand.start(stand.app(study_of("fedavg", stand.trial.out, **changes), "reinstated"))
    run.finish(1)
    revoke_entry(stand.trial.roster, victim)
    wait_until(lambda: run.over or any(_absent(stand, row) for row in run.folder.rounds()), 300, "a round without it")
    time.sleep(SILENT_FOR)  # more than one heartbeat was refused by then
    stand.trial.roster.write_text(kept, "utf-8")
    began = time.monotonic()
    last = len(run.folder.rounds())
    wait_until(lambda: run.over or not _absent(stand, run.folder.rounds()[-1]), 400, "its return")
    seconds, rows = time.monotonic() - began, run.folder.rounds()
    back = next((row["round"] for row in rows[last:] if not _absent(stand, row)), 0)
    code = run.end(900)
    yield Row(
        name="reinstated in a run",
        fault=f"a site is revoked after round 1 and put back {SILENT_FOR:.0f} s after the first round without it",
        how=PROCESSES,
        expected="it takes part again, though nobody starts its program anew",
        outcome=f"exit code {code}; it takes part again {seconds:.0f} s later, in round {back}",
        passed=code == 0 and back > 0 and "Traceback" not in stand.log(victim),
        said=said_by(stand.log(victim), "revoked"),
    )


ROUNDS_TO_RETURN = 60
SILENT_FOR = 40.0


def _absent(stand: Stand, row: dict[str, Any]) -> bool:
    return int(row["participants"]) < len(stand.sites)


def foreign_certificate(stand: Stand) -> Iterator[Row]:
    other = temporary_certificate(stand.trial.out / "other")
    member = _visitor(stand, "foreign", stand.trial.key_of(stand.sites[0]), other.certificate)
    wait_until(lambda: member.process.poll() is not None, 90, "the site's end")
    said = said_by(stand.log("foreign"), "was not signed by")
    yield Row(
        name="foreign certificate",
        fault="a site has another authority's ca.crt",
        how=PROCESSES,
        expected="exit code 2 and a reason at the site, a line at the gateway",
        outcome=f"exit code {member.process.returncode}",
        passed=member.process.returncode == 2
        and bool(said)
        and "does not trust this gateway" in stand.log("superlink"),
        said=said,
    )


def expired_certificate(stand: Stand) -> Iterator[Row]:
    """The gateway refuses to start with one; a site that meets one, on a gateway that is not ours, says so."""
    pair = temporary_certificate(stand.trial.out / "expired", datetime.now(UTC) - timedelta(days=7300))
    home, port = stand.trial.out / "expired-hub", str(free_port())
    safe = ("--certificate", pair.certificate, "--key", pair.key, "--roster", stand.trial.roster)
    gateway = stand.trial.launch("expired-gateway", "superlink", "--port", port, "--home", home, *safe)
    wait_until(lambda: gateway.process.poll() is not None, 60, "the gateway's end")
    with _line(pair) as address:
        key = stand.trial.key_of(stand.sites[0])
        site = _visitor(stand, "expired-site", key, pair.certificate, address)
        wait_until(lambda: site.process.poll() is not None, 90, "the site's end")
    said = said_by(stand.log("expired-site"), "has expired")
    yield Row(
        name="expired certificate",
        fault="the gateway's certificate has expired",
        how=PROCESSES,
        expected="neither the gateway nor a site goes on with it: exit code 2 and the reason, on both sides",
        outcome=f"exit codes {gateway.process.returncode} and {site.process.returncode}",
        passed=(gateway.process.returncode, site.process.returncode) == (2, 2)
        and bool(said)
        and "expired on" in stand.log("expired-gateway"),
        said=said,
    )


@contextmanager
def _line(pair: CertificatePair) -> Iterator[str]:
    """A listener that shows this certificate to whoever comes."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def welcome() -> None:
            while True:
                try:
                    line, _ = listener.accept()
                except OSError:
                    return
                try:
                    context.wrap_socket(line, server_side=True).close()
                except OSError:
                    line.close()

        threading.Thread(target=welcome, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def plain_text(stand: Stand) -> Iterator[Row]:
    with socket.create_connection(("127.0.0.1", stand.trial.port), timeout=10.0) as line:
        line.sendall(b"POST /v1/fleet/pull-messages HTTP/1.1\r\nhost: gateway\r\ncontent-length: 0\r\n\r\n")
        answer = line.recv(4096).decode(errors="replace")
    wait_until(lambda: "without encryption" in stand.log("superlink"), 10, "the gateway's word")
    yield Row(
        name="plain text",
        fault="plain text to the gateway's port",
        how=PROCESSES,
        expected="400 with a hint, and a line at the gateway",
        outcome=answer.splitlines()[0],
        passed=answer.startswith("HTTP/1.1 400") and "TLS only" in answer,
        said=said_by(stand.log("superlink"), "without encryption"),
    )


def taken_name(stand: Stand) -> Iterator[Row]:
    """A listed key claims the name of another site, which takes part."""
    usual = reference(stand, "fedavg")
    kept = stand.trial.roster.read_text("utf-8")
    key = stand.trial.out / "impostor.key"
    public = make_key(key)
    add_entry(stand.trial.roster, RosterEntry("site-99", fingerprint(public), 5000))
    before = len(stand.nodes())
    app = app_of(stand, "fedavg")
    member = _visitor(stand, "impostor", key, stand.trial.certificate)
    wait_until(lambda: len(stand.nodes()) > before, 120, "the impostor's node")
    began = time.monotonic()
    run = stand.start(app)
    code = run.end()
    end_family(member.process)
    stand.trial.roster.write_text(kept, "utf-8")
    log = (run.folder.path / "flower.log").read_text("utf-8", errors="replace")
    said = said_by(log, "it calls itself")
    told = said_by(stand.log("impostor"), "it calls itself")
    yield Row(
        name="taken name",
        fault="a listed key claims the name of another site",
        how=PROCESSES,
        expected="the name's own key answers for it; the impostor gets nothing, and both get the reason",
        outcome=f"exit code {code}, {run.folder.rounds()[-1]['participants']} sites in the last round",
        passed=code == 0 and bool(said and told),
        said=said,
        **lost(run, began, usual),
    )


SPY = """
import sys
from pathlib import Path
from typing import Any
for place in {places!r}:
    try:
        Path(place).read_bytes()
        print("SPY read", place, file=sys.stderr)
    except OSError as error:
        print("SPY refused", type(error).__name__, file=sys.stderr)
try:
    Path({mark!r}).write_text("code ran")
except OSError:
    pass
"""


def _with_spy(stand: Stand, app: Path, name: str, places: list[str], mark: Path) -> Path:
    evil = stand.trial.out / "apps" / name
    shutil.copytree(app, evil)
    with (evil / "fedsift_app" / "client.py").open("a", encoding="utf-8") as file:
        file.write(SPY.format(places=places, mark=str(mark)))
    text = (evil / "federation.toml").read_text("utf-8")
    (evil / "federation.toml").write_text(text.replace("wait = 300.0", "wait = 25.0"), "utf-8")
    return evil


def hostile_app(stand: Stand) -> Iterator[Row]:
    """An app that nobody pinned, and the same one pinned: the first does not run, the second finds nothing."""
    first = stand.trial.sites[stand.sites[0]]
    secrets = [
        str(first),
        str(first.parent / "data.npz"),
        str(first.parent / "notebook" / stand.sites[0] / "secret"),
    ]
    mark = stand.trial.out / "mark"
    evil = _with_spy(stand, app_of(stand, "fedavg"), "evil", secrets, mark)
    run = stand.start(evil)
    code = run.end()
    ran = mark.exists() or any("SPY" in stand.log(site) for site in stand.sites)
    said = said_by(stand.log(stand.sites[0]), "is not pinned")
    yield Row(
        name="hostile app",
        fault="the coordinator starts an app that no site has pinned",
        how=PROCESSES,
        expected="none of its code runs at a site; each site says which app it refused",
        outcome=f"exit code {code}, {'its code ran' if ran else 'none of its code ran'}",
        passed=code != 0 and not ran and bool(said),
        said=said,
    )
    for file in stand.trial.sites.values():
        pin(app_fingerprint(evil), file)
    again = stand.start(evil)
    again.end()
    log = stand.log(stand.sites[0])
    tried, read = log.count("SPY refused PermissionError"), log.count("SPY read")
    yield Row(
        name="pinned app looks for data",
        fault="the same app, pinned by mistake, reads site.toml, data and the notebook's secret, and writes a file",
        how=PROCESSES,
        expected="the kernel refuses all of it",
        outcome=f"{read} files read, {tried} refusals, {'a file written' if mark.exists() else 'nothing written'}",
        passed=read == 0 and tried >= len(secrets) and not mark.exists(),
        said=said_by(log, "the kernel sees to it"),
    )


def hostile_coordinator(stand: Stand) -> Iterator[Row]:
    """A pinned app that asks for more than a site's policy allows."""
    narrow = stand.trial.sites[stand.sites[0]]
    kept = narrow.read_text("utf-8")
    narrow.write_text(kept + "\n" + narrowest_policy(study_of("fedavg", stand.trial.out)), "utf-8")
    changes = {"federation": {"quorum": 0.5, "deadline": 120}}
    run = stand.start(stand.app(study_of("feddpcont", stand.trial.out, **changes), "curious"))
    code = run.end()
    narrow.write_text(kept, "utf-8")
    refused = [row["refused"].get(stand.sites[0], "") for row in run.folder.rounds()]
    egress = (narrow.parent / "notebook" / stand.sites[0] / "egress.jsonl").read_text("utf-8")
    yield Row(
        name="hostile coordinator",
        fault="the coordinator asks a site for labels by randomised response; its policy lists training alone",
        how=PROCESSES,
        expected="a refusal instead of labels, a line in egress.jsonl, the others go on",
        outcome=f"exit code {code}; refused in {sum(bool(why) for why in refused)} of {len(refused)} rounds",
        passed=bool(refused) and "Refused" in refused[0] and '"refused"' in egress and "ReleaseLabels" in egress,
        said=refused[0] if refused else "",
    )
