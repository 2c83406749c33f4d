"""A consortium of real processes on loopback: SuperLink behind its gateway, sites behind theirs, and who wants in."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest

from fedsift.deploy.app import narrowest_policy, write_app
from fedsift.deploy.certificates import CertificatePair, client_context
from fedsift.deploy.coordinator.roster import RosterEntry, add_entry, fingerprint, revoke_entry
from fedsift.deploy.coordinator.starting import LINK_FILE
from fedsift.deploy.flower_commands import free_port
from fedsift.deploy.gateway.proxy import FLEET
from fedsift.deploy.site.consent import pin
from fedsift.runs.folder import RunFolder
from fedsift.study.study import Study
from tests.deploy.keys import Authority, site_key
from tests.deploy.processes import Processes, family, wait_until
from tests.deploy.test_gateway import Key

pytestmark = pytest.mark.flower

STUDY: dict[str, Any] = {
    "name": "two hospitals",
    "data": {"name": "digits", "train_limit": 200},
    "partition": {"name": "iid", "sites": 2},
    "model": {"name": "linear"},
    "train": {"epochs": 1, "batch_size": 16, "lr": 0.05},
    "method": {"name": "fedavg", "rounds": 1},
    "federation": {"quorum": 1.0, "deadline": 300},
    "engine": {"trainer": "one"},
}


@dataclass
class Hub:
    """The coordinator's files, and its gateway's address."""

    folder: Path
    authority: Authority
    pair: CertificatePair
    port: int

    @property
    def roster(self) -> Path:
        return self.folder / "app" / "federation.toml"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def home(self) -> Path:
        return self.folder / "hub"

    def start(self, processes: Processes) -> Any:
        tls = ("--certificate", self.pair.certificate, "--key", self.pair.key, "--roster", self.roster)
        command = ("flower", "superlink", "--port", str(self.port), *tls, "--home", self.home)
        return processes.fedsift("superlink", *command)

    def log(self, name: str) -> str:
        file = self.folder / f"{name}.log"
        return file.read_text("utf-8", errors="replace") if file.is_file() else ""


@pytest.fixture
def hub(tmp_path: Path) -> Hub:
    authority = Authority(tmp_path / "authority")
    (tmp_path / "app").mkdir()
    return Hub(tmp_path, authority, authority.server(), free_port())


def answers(address: str, ca: Path) -> bool:
    try:
        return httpx.get(f"https://{address}/health", verify=client_context(ca), trust_env=False).is_success
    except httpx.HTTPError:
        return False


def test_who_holds_only_the_certificate_reaches_nothing_of_a_real_superlink(hub: Hub) -> None:
    known = Key()
    add_entry(hub.roster, RosterEntry("north", known.mark, 100))
    with Processes(hub.folder) as processes:
        running = hub.start(processes)
        link = hub.home / LINK_FILE
        wait_until(lambda: link.is_file(), 120, "the gateway")
        inside = json.loads(link.read_text("utf-8"))
        wait_until(lambda: answers(inside["address"], Path(inside["ca"])), 180, "the SuperLink")
        assert link.stat().st_mode & 0o777 == 0o600
        listing = ListNodesRequest().SerializeToString()
        joining = RegisterNodeRequest(public_key=Key().pem).SerializeToString()
        form = {"content-type": "application/protobuf", "accept": "application/protobuf"}

        # behind the gateway, on this machine, the call exists: what follows would find it, were it reachable
        own = client_context(Path(inside["ca"]))
        with httpx.Client(base_url=f"https://{inside['address']}", verify=own, trust_env=False) as operator:
            assert operator.post("/v1/control/list-nodes", content=listing, headers=form).status_code == 200

        outside = client_context(hub.authority.ca)
        with httpx.Client(base_url=f"https://{hub.address}", verify=outside, trust_env=False) as attacker:
            for path, body in (("list-nodes", listing), ("register-node", joining), ("start-run", b"")):
                for headers in (form, {**form, **known.headers()}):
                    found = attacker.post(f"/v1/control/{path}", content=body, headers=headers)
                    assert found.status_code == 404
            for path in FLEET:
                assert attacker.post(path, content=b"", headers=form).status_code == 401
                assert attacker.post(path, content=b"", headers={**form, **Key().headers()}).status_code == 403
        with pytest.raises(httpx.ConnectError):  # the authority that everyone has opens nothing inside
            httpx.get(f"https://{inside['address']}/health", verify=outside, trust_env=False)

        members = family(running.pid)
        assert len(members) > 1
        running.terminate()
        running.wait(60)
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in members), 60, "the SuperLink's end")
        assert not link.exists()


def add_print(app: Path, out: Path, name: str, target: Path) -> Path:
    """A copy of an app whose code at a site leaves a mark on the disk."""
    evil = out / name
    shutil.copytree(app, evil)
    with (evil / "fedsift_app" / "client.py").open("a", encoding="utf-8") as file:
        file.write(f"\nfrom pathlib import Path\nPath({str(target)!r}).write_text('code ran')\n")
    text = (evil / "federation.toml").read_text("utf-8")
    (evil / "federation.toml").write_text(text.replace("wait = 300.0", "wait = 40.0"), "utf-8")
    return evil


@pytest.mark.slow
def test_a_round_through_both_gateways_and_nobody_else(hub: Hub) -> None:
    shutil.rmtree(hub.folder / "app")
    sites = write_app(Study.from_table(STUDY), hub.folder / "app", trial=hub.folder / "trial")
    keys = [site_key(hub.folder, f"node{number}") for number in range(3)]
    for number in range(3):
        add_entry(hub.roster, RosterEntry(f"site-0{number}", fingerprint(keys[number][1].read_bytes()), 500))
        if number < 2:
            pin(str(hub.folder / "app"), sites[number])
    with sites[0].open("a", encoding="utf-8") as file:
        file.write("\n" + narrowest_policy(Study.from_table(STUDY)))
    impostor = hub.folder / "impostor"
    shutil.copytree(sites[0].parent, impostor)  # the third key's holder says that it is the first site
    mark = hub.folder / "mark"
    evil = add_print(hub.folder / "app", hub.folder, "evil", mark)

    with Processes(hub.folder) as processes:

        def join(name: str, file: Path, number: int) -> Any:
            key = keys[number][0]
            line = ("--superlink", hub.address, "--ca", hub.authority.ca, "--key", key)
            return processes.fedsift(name, "flower", "site", file, *line)

        def start(name: str, app: Path) -> Any:
            command = ("flower", "start", app, "--run-folder", hub.folder / "runs" / name, "--home", hub.home)
            return processes.fedsift(name, *command)

        try:
            hub.start(processes)
            wait_until(lambda: (hub.home / LINK_FILE).is_file(), 120, "the gateway")
            join("impostor", impostor / "site.toml", 2)
            nodes = [join(f"site-{number}", file, number) for number, file in enumerate(sites)]
            book = hub.home / "nodes.json"
            wait_until(lambda: book.is_file() and len(json.loads(book.read_text("utf-8"))) == 3, 240, "the nodes")
            runner = start("first", hub.folder / "app")
            wait_until(lambda: runner.poll() is not None, 420, "the run")
            assert runner.returncode == 0, processes.logs()

            hostile = start("hostile", evil)
            wait_until(lambda: "not pinned" in hub.log("site-0"), 240, "the refusal of the app")
            wait_until(lambda: hostile.poll() is not None, 240, "the end of the hostile run")

            revoke_entry(hub.roster, "site-01")
            wait_until(lambda: "site-01' was revoked" in hub.log("superlink"), 120, "the revoked site")
            wait_until(lambda: "was revoked" in hub.log("site-1"), 60, "its own side to hear of it")
            assert nodes[0].poll() is None
        except TimeoutError as error:
            pytest.fail(f"{error}\n{processes.logs()}")

    place = RunFolder(hub.folder / "runs" / "first")
    assert place.finished
    assert place.rounds()[0]["refused"] == {}
    coordinator = (place.path / "flower.log").read_text("utf-8", errors="replace")
    assert "it calls itself 'site-00', its key is that of 'site-02'" in coordinator
    assert hostile.returncode != 0
    assert not mark.exists()
    notebooks = sites[0].parent / "notebook" / "site-00"
    left = [json.loads(line) for line in (notebooks / "egress.jsonl").read_text("utf-8").splitlines()]
    assert {"/v1/fleet/push-messages", "/v1/fleet/push-object"} <= {line.get("route") for line in left}
    asked = [line["request"] for line in left if "request" in line]
    assert asked[0] == "Hello"
    assert "Train" in asked
    left = [line for line in left if "route" in line]
    came = [json.loads(line) for line in (hub.home / "access.jsonl").read_text("utf-8").splitlines()]
    assert sum(line["bytes_in"] for line in came if line["who"] == "site-00") <= sum(line["bytes"] for line in left)
    run_id = place.read_json("deployed.json")["run"]
    assert (notebooks / "runs" / run_id).is_dir()
    assert all(path.stat().st_mode & 0o077 == 0 for path in notebooks.rglob("*"))
