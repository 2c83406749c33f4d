"""The coordinator's meeting point: Flower's SuperLink on loopback, our door in front of it, one life for both."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx

from fedsift.core.errors import ConfigError, RunError
from fedsift.core.files import make_files_private, private_folder, write_private
from fedsift.deploy.certificates import CertificatePair, client_context, server_context, temporary_certificate
from fedsift.deploy.coordinator.roster import Roster, read_entries
from fedsift.deploy.flower_commands import companion, ended, free_port, listens, superlink_command, with_forks
from fedsift.deploy.gateway.listener import GatewayServer, bind
from fedsift.deploy.gateway.node_keys import NODES_FILE, NodeKeys
from fedsift.deploy.gateway.proxy import Gateway
from fedsift.deploy.temporary import new_socket, removed
from fedsift.deploy.waiting import Say, Starting

LINK_FILE = "link.json"
ACCESS_LOG = "access.jsonl"
HOME = Path(".flower-superlink")


@dataclass(frozen=True)
class SuperLinkAddress:
    """Where the SuperLink behind a door is: known to this user on this machine, and told to nobody else."""

    address: str
    ca: str
    roster: str
    nodes: str
    pid: int


def read_link(home: Path) -> SuperLinkAddress:
    """The link of a running meeting point, from its home folder."""
    file = home / LINK_FILE
    try:
        link = SuperLinkAddress(**json.loads(file.read_text("utf-8")))
        os.kill(link.pid, 0)
    except (OSError, ValueError, TypeError):
        raise RunError(
            f"no superlink of yours runs with its files in '{home}': start `fedsift flower superlink` first, or name "
            "its --home"
        ) from None
    return link


def host(
    address: str,
    port: int,
    pair: CertificatePair,
    roster_file: Path,
    *,
    home: Path,
    say: Say,
    database: Path | None = None,
) -> int:
    """Run both until one of them ends or a signal comes; returns the SuperLink's exit code."""
    make_files_private()
    context = server_context(pair)
    if not roster_file.is_file():
        raise ConfigError(
            f"the roster '{roster_file}' does not exist: make it with `fedsift flower roster add NAME node.pub "
            f"--samples N --roster {roster_file}`"
        )
    roster = Roster(roster_file)
    private_folder(home)
    # left by one that was killed, whoever finds it may take it for this one's
    (home / LINK_FILE).unlink(missing_ok=True)
    own = temporary_certificate(home / "own")
    nodes = home / NODES_FILE
    if database is None:
        nodes.unlink(missing_ok=True)  # the SuperLink has forgotten these numbers too
    inside = free_port()
    command = superlink_command("127.0.0.1", inside, own=own, database=database)
    forks = new_socket().with_name("forks")
    command, first = with_forks("coordinator", command, home, forks)
    with bind(address, port) as listener, removed(forks.parent):
        reached = listener.getsockname()[1]
        with companion(command, home, settings=first) as superlink:
            link = SuperLinkAddress(
                f"127.0.0.1:{inside}",
                str(own.certificate.resolve()),
                str(roster_file.resolve()),
                str(nodes.resolve()),
                os.getpid(),
            )
            write_private(home / LINK_FILE, json.dumps(asdict(link)).encode())
            try:
                door = Gateway(
                    f"https://127.0.0.1:{inside}",
                    httpx.AsyncClient(verify=client_context(own.certificate), timeout=60.0, trust_env=False),
                    roster=roster,
                    log=home / ACCESS_LOG,
                    nodes=NodeKeys(nodes),
                    aloud=say,
                )
                listed = sum(not entry.revoked for entry in read_entries(roster_file))
                say(
                    f"the door listens on {address}:{reached} (TLS); {listed} sites are on the roster; who comes is "
                    f"written to {home / ACCESS_LOG}"
                )
                starts = Starting("Flower's SuperLink starts", "the SuperLink is ready", say)

                def alive() -> bool:
                    starts.look(lambda: listens(inside))
                    return superlink.poll() is None

                GatewayServer(door, listener, context, alive=alive, aloud=say).run()
            finally:
                (home / LINK_FILE).unlink(missing_ok=True)
            return ended(superlink, "the SuperLink", say)
