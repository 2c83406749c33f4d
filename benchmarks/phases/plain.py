"""The same model on the same samples as a plain Flower app, by Flower's defaults: what a phase costs without us."""

from __future__ import annotations

import json
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import tomli_w

from fedsift.deploy.coordinator.starting import wait_for
from fedsift.deploy.flower_commands import free_port, program
from fedsift.deploy.trial import end_family
from fedsift.transports.flower.processes import offline

SERVER = """
import json, time
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.serverapp import ServerApp
from plainapp.model import network, weights_of

app = ServerApp()

@app.main()
def main(grid, context):
    rounds, sites, out = (context.run_config[key] for key in ("rounds", "sites", "out"))
    while len(list(grid.get_node_ids())) < sites:
        time.sleep(0.5)
    net, seconds = network(), []
    for _ in range(rounds):
        began = time.perf_counter()
        record = ArrayRecord(net.state_dict())
        messages = [
            Message(RecordDict({"model": record}), dst_node_id=node, message_type="train")
            for node in grid.get_node_ids()
        ]
        replies = [reply for reply in grid.send_and_receive(messages) if not reply.has_error()]
        assert len(replies) == sites, [reply.error for reply in replies if reply.has_error()]
        states = [reply.content["model"].to_torch_state_dict() for reply in replies]
        net.load_state_dict({name: sum(s[name] for s in states) / len(states) for name in states[0]})
        seconds.append(time.perf_counter() - began)
    with open(out, "w") as file:
        json.dump(seconds, file)
"""

CLIENT = """
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from plainapp.model import network, samples, train

app = ClientApp()

@app.train()
def fit(message, context):
    net = network()
    net.load_state_dict(message.content["model"].to_torch_state_dict())
    number, of = (int(context.node_config[key]) for key in ("partition-id", "num-partitions"))
    train(net, *samples(number, of))
    return Message(RecordDict({"model": ArrayRecord(net.state_dict())}), reply_to=message)
"""

MODEL = """
import numpy, torch
from sklearn.datasets import load_digits
from torch import nn

def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

def weights_of(net):
    return net.state_dict()

def samples(number, of):
    digits = load_digits()
    rows = numpy.arange(number, 1348, of)
    return torch.tensor(digits.data[rows] / 16, dtype=torch.float32), torch.tensor(digits.target[rows])

def train(net, x, y):
    torch.set_num_threads(1)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.05)
    for rows in torch.randperm(len(x)).split(16):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
        optimiser.step()
"""


def write_plain(folder: Path) -> None:
    package = folder / "plainapp"
    package.mkdir(parents=True)
    for name, text in (("__init__", ""), ("server", SERVER), ("client", CLIENT), ("model", MODEL)):
        (package / f"{name}.py").write_text(text, "utf-8")
    parts = {"serverapp": "plainapp.server:app", "clientapp": "plainapp.client:app"}
    table = {"publisher": "bench", "components": parts, "config": {"rounds": 0, "sites": 0, "out": ""}}
    project = {"name": "plainapp", "version": "1.0.0", "license": "Apache-2.0", "dependencies": []}
    (folder / "pyproject.toml").write_text(
        tomli_w.dumps({"project": project, "tool": {"flwr": {"app": table}}}), "utf-8"
    )


def plain_phases(folder: Path, sites: int, rounds: int) -> list[float]:
    """Seconds of each training phase, SuperLink and SuperNodes started as Flower's own pages do."""
    write_plain(folder / "plain-app")
    out, port, home = folder / "plain.json", free_port(), folder / "plain-home"
    home.mkdir()
    connection = {"superlink": {"default": "here", "here": {"address": f"127.0.0.1:{port}", "insecure": True}}}
    (home / "config.toml").write_text(tomli_w.dumps(connection), "utf-8")
    link = [program("flower-superlink"), "--insecure", "--host", "127.0.0.1", "--port", str(port)]
    commands = [link]
    for number in range(sites):
        node = [
            program("flower-supernode"),
            "--insecure",
            "--superlink",
            f"127.0.0.1:{port}",
            "--host",
            "127.0.0.1",
        ]
        about = f"partition-id={number} num-partitions={sites}"
        commands.append([*node, "--port", str(free_port()), "--node-config", about])
    settings = f'rounds={rounds} sites={sites} out="{out}"'
    run = [program("flwr"), "run", str(folder / "plain-app"), "here", "--stream", "-c", settings]
    with ExitStack() as stack, (folder / "plain.log").open("wb") as log:
        for command in [*commands, run]:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=offline({"FLWR_HOME": str(home)}),
                start_new_session=True,
            )
            stack.callback(end_family, process)
            if command is link:
                wait_for(f"127.0.0.1:{port}", 300.0)
        end = time.monotonic() + 1200
        while not out.is_file() and time.monotonic() < end:
            time.sleep(0.5)
        time.sleep(0.5)
    return [float(seconds) for seconds in json.loads(out.read_text("utf-8"))]
