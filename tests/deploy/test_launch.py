"""The deployed app's folder and the commands that start Flower's programs."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedsift.cli.main import app
from fedsift.core.errors import ConfigError, DataError, RunError
from fedsift.deploy import flower_commands as commands
from fedsift.deploy.app import site_template, write_app
from fedsift.deploy.certificates import CertificatePair
from fedsift.deploy.coordinator import starting
from fedsift.deploy.coordinator.server_app import read_federation_file
from fedsift.deploy.site.data import open_site
from fedsift.study.study import Study
from fedsift.transports.flower.processes import SWITCHES, offline
from tests.deploy.test_site_data import write_site

runner = CliRunner()
HERE = "127.0.0.1:8000"


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An app with a trial on the study's own data."""
    folder = tmp_path_factory.mktemp("deployed")
    study = Study.from_table(
        {"partition": {"name": "iid", "sites": 3}, "model": {"name": "mlp"}, "method": {"name": "fednoro"}}
    )
    write_app(study, folder / "app", trial=folder / "trial")
    return folder


def test_the_app_holds_what_flower_needs_and_nothing_of_the_data(deployed: Path) -> None:
    project = tomllib.loads((deployed / "app" / "pyproject.toml").read_text("utf-8"))
    parts = project["tool"]["flwr"]["app"]["components"]
    assert parts == {"serverapp": "fedsift_app.server:app", "clientapp": "fedsift_app.client:app"}
    assert project["tool"]["flwr"]["app"]["config"] == {"run-folder": ""}
    assert "federation.toml" in project["tool"]["flwr"]["app"]["fab-exclude"]
    suffixes = {file.suffix for file in (deployed / "app").rglob("*") if file.is_file()}
    assert suffixes == {".toml", ".py", ".md"}
    study = Study.from_file(deployed / "app" / "study.toml")
    assert (study.method_name, study.engine.name) == ("fednoro", "flower")


@pytest.mark.parametrize("method", ["fedcorr", "feddiv"])
@pytest.mark.parametrize(("decided", "written"), [({}, True), ({"first_together": False}, False)])
def test_an_app_judges_all_sites_once_before_one_makes_the_model_alone(
    tmp_path: Path, method: str, decided: dict[str, bool], written: bool
) -> None:
    study = Study.from_table({"method": {"name": method, **decided}})
    write_app(study, tmp_path / "app")
    assert tomllib.loads((tmp_path / "app" / "study.toml").read_text())["method"]["first_together"] is written
    assert "first_together" not in study.to_table()["method"] or decided


def test_no_path_of_the_coordinator_travels_to_the_sites(tmp_path: Path) -> None:
    own = tmp_path / "ward" / "scans.npz"
    study = Study.from_table(
        {
            "data": {"name": "npz", "path": str(own)},
            "public": {"name": "folder", "path": str(tmp_path / "shown"), "samples": 10},
            "noise": {"name": "instance", "cache": str(tmp_path / "drawn")},
        }
    )
    write_app(study, tmp_path / "app")
    for file in (tmp_path / "app").rglob("*"):
        assert not file.is_file() or str(tmp_path) not in file.read_text("utf-8"), file
    written = tomllib.loads((tmp_path / "app" / "study.toml").read_text("utf-8"))
    assert [written[table].get("path") for table in ("data", "public")] == ["scans.npz", "shown"]
    again = Study.from_file(tmp_path / "app" / "study.toml")
    assert (again.method, again.train, again.model) == (study.method, study.train, study.model)


def test_the_federation_file_and_the_trials_sites_are_ready(deployed: Path) -> None:
    federation = read_federation_file(deployed / "app" / "federation.toml")
    assert federation.sites == ("site-00", "site-01", "site-02")
    assert Path(federation.test["path"]).is_file()
    sites = sorted((deployed / "trial" / "sites").glob("*/site.toml"))
    assert [open_site(path).name for path in sites] == list(federation.sites)


def test_the_site_template_is_a_site_file(deployed: Path) -> None:
    template = tomllib.loads((deployed / "app" / "site.template.toml").read_text("utf-8"))
    assert template["classes"] == [str(k) for k in range(10)]
    with pytest.raises(DataError, match="images"):  # all that is missing are the data
        open_site(deployed / "app" / "site.template.toml")


def test_the_readme_lists_every_field_that_leaves_and_the_exact_commands(deployed: Path) -> None:
    text = (deployed / "app" / "README.md").read_text("utf-8")
    for row in ("| Introduction | facts |", "| Indicators | values |", "| Trained | weights |"):
        assert row in text
    assert "| Evaluated |" not in text  # the coordinator has a test set
    for command in ("superlink", "site", "start app", "roster add", "pin"):
        assert f"fedsift flower {command}" in text


@pytest.mark.parametrize("name", ["my_app", "1app", "a" * 33, "an app"])
def test_names_that_flower_refuses_are_refused_first(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="hyphens"):
        write_app(Study.from_table({}), tmp_path / name)


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match="not empty"):
        write_app(Study.from_table({}), tmp_path / "app")


OFF_THIS_MACHINE = ["0.0.0.0", "192.168.1.5", "fed.example.org", "::", "", "127.0.0.1.example.org"]


def refused(*command: str) -> str:
    """The line that a command ends with, before it has read a file, started a process or opened a connection."""
    result = runner.invoke(app, ["flower", *command])
    assert isinstance(result.exception, ConfigError), result.output
    assert result.exception.exit_code == 2
    text = str(result.exception)
    assert "is not this machine" in text
    assert "a holder of ca.crt could run code" in text
    assert "127.0.0.1" in text
    assert "\n" not in text
    return text


@pytest.mark.parametrize("host", OFF_THIS_MACHINE)
def test_without_a_gateway_nothing_leaves_this_machine(
    host: str, deployed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert f"'{host}'" in refused("superlink", "--host", host, "--insecure")
    there = ["--superlink", f"{host}:8000", "--insecure"]
    refused("site", str(write_site(tmp_path / "site")), *there)
    refused("start", str(deployed / "app"), "--run-folder", str(tmp_path / "run"), *there)
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="is not this machine"):
        starting.wait_for(f"{host}:8000", seconds=0.0)


@pytest.mark.parametrize("missing", ["--certificate", "--key", "--roster"])
@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])
def test_a_gateway_needs_a_certificate_its_key_and_a_roster(
    host: str, missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = [part for flag in ("--certificate", "--key", "--roster") if flag != missing for part in (flag, "x")]
    result = runner.invoke(app, ["flower", "superlink", "--host", host, *given])
    assert isinstance(result.exception, ConfigError)
    assert result.exception.exit_code == 2
    assert missing in str(result.exception)
    assert "\n" not in str(result.exception)


@pytest.mark.parametrize("missing", ["--ca", "--key"])
def test_a_site_across_the_network_needs_the_authority_and_its_key(missing: str, tmp_path: Path) -> None:
    site = write_site(tmp_path / "site")
    given = [part for flag in ("--ca", "--key") if flag != missing for part in (flag, str(tmp_path / "x"))]
    result = runner.invoke(app, ["flower", "site", str(site), "--superlink", "fed.example.org:443", *given])
    assert isinstance(result.exception, ConfigError)
    assert missing in str(result.exception)


def test_a_run_behind_a_gateway_needs_the_gateways_home(deployed: Path, tmp_path: Path) -> None:
    command = ["flower", "start", str(deployed / "app"), "--run-folder", str(tmp_path / "run")]
    result = runner.invoke(app, [*command, "--home", str(tmp_path / "nowhere")])
    assert isinstance(result.exception, RunError)
    assert "fedsift flower superlink" in str(result.exception)
    assert not (tmp_path / "run").exists()


def test_the_app_and_the_documents_say_why_there_is_a_gateway(deployed: Path) -> None:
    readme = (deployed / "app" / "README.md").read_text("utf-8")
    page = (Path(__file__).parents[2] / "docs" / "deployment.md").read_text("utf-8")
    for text in (readme, page):
        assert "ca.crt" in text
        assert "run code on the coordinator and at" in " ".join(text.split())
        shown = [line for line in text.splitlines() if "fedsift flower " in line]
        for line in shown:  # what is shown without encryption stays on this machine
            addresses = re.findall(r"--(?:host|superlink) (\S+)", line)
            assert "--insecure" not in line or set(addresses) <= {"127.0.0.1:8000"}
        for words in ("roster add", "roster revoke", "flower pin", "--roster", "egress.jsonl"):
            assert words in text


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "localhost", "::1"])
def test_on_loopback_a_trial_needs_no_encryption(host: str) -> None:
    command = commands.superlink_command(host, 8000, own=None)
    assert command[command.index("--host") + 1] == host
    assert "--insecure" in command
    assert "--disable-runtime-dependency-installation" in command


def test_behind_a_gateway_only_registered_keys_may_join(tmp_path: Path) -> None:
    own = CertificatePair(tmp_path / "own.crt", tmp_path / "own.key")
    command = commands.superlink_command("127.0.0.1", 8000, own=own)
    assert "--enable-supernode-auth" in command
    assert "--insecure" not in command
    with pytest.raises(ConfigError, match="is not this machine"):  # whatever the gateway may do
        commands.superlink_command("0.0.0.0", 8000, own=own)


def test_other_versions_of_flower_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "version", lambda name: "1.99.0")
    with pytest.raises(ConfigError, match=r"flwr 1\.99\.0 was not tested"):
        commands.program("flwr")


def test_a_sites_command_names_its_socket_and_nothing_else(tmp_path: Path) -> None:
    options: dict[str, Any] = {"insecure": True, "ca": None, "key": None, "worker": Path("/x/gateway")}
    command = commands.site_command("127.0.0.1:8000", **options)
    assert command[command.index("--node-config") + 1] == 'worker="/x/gateway"'
    with pytest.raises(ConfigError, match="is not this machine"):
        commands.site_command("10.0.0.1:8000", **options)
    with pytest.raises(ConfigError, match="host:port"):
        commands.site_command("127.0.0.1", **options)
    with pytest.raises(ConfigError, match="--key"):
        commands.site_command("127.0.0.1:8000", **{**options, "insecure": False})


def test_the_four_switches_are_always_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "1")
    environment = offline({"FLWR_HOME": "here"})
    assert len(SWITCHES) == 4
    assert SWITCHES.items() <= environment.items()
    assert environment["FLWR_HOME"] == "here"


def test_a_run_folder_takes_the_apps_study_once(deployed: Path, tmp_path: Path) -> None:
    folder = starting.prepare_run(deployed / "app", tmp_path / "runs" / "first", HERE)
    assert folder.study_file.read_text() == (deployed / "app" / "study.toml").read_text()
    assert starting.prepare_run(deployed / "app", folder.path, HERE).path == folder.path
    twin = starting.prepare_run(deployed / "app", tmp_path / "elsewhere" / "first", HERE)
    ids = [each.read_json("deployed.json")["run"] for each in (folder, folder, twin)]
    assert ids[0] == ids[1] != ids[2]  # two coordinators' runs of one name are two runs to a site
    assert all(id.startswith("first-") for id in ids)
    folder.write_json("summary.json", {})
    assert starting.unreported(folder.path)
    with pytest.raises(RunError, match="finished"):
        starting.prepare_run(deployed / "app", folder.path, HERE)
    with pytest.raises(ConfigError, match="fedsift deploy"):
        starting.prepare_run(tmp_path, tmp_path / "runs" / "second", HERE)


def test_a_free_port_is_none_that_outgoing_lines_get(monkeypatch: pytest.MonkeyPatch) -> None:
    first_given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = {commands.free_port() for _ in range(20)}
    assert len(ports) > 1
    assert all(commands.LOWEST_PORT <= port < first_given for port in ports)
    monkeypatch.setattr(commands, "LOWEST_PORT", first_given)  # a kernel that gives all of them
    assert commands.free_port() >= first_given


def test_no_superlink_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunError, match="start it first"):
        starting.wait_for(f"127.0.0.1:{commands.free_port()}", seconds=0.0)


def test_deploy_and_its_errors_from_the_command_line(tmp_path: Path) -> None:
    study = tmp_path / "study.toml"
    study.write_text('[model]\nname = "mlp"\n[method]\nname = "fedavg"\n')
    named = ["--site", "north", "--site", "south"]
    done = runner.invoke(app, ["deploy", str(study), "--out", str(tmp_path / "app"), *named])
    assert done.exit_code == 0, done.output
    federation = read_federation_file(tmp_path / "app" / "federation.toml")
    assert (federation.sites, federation.at_least) == (("north", "south"), 2)
    assert "| Evaluated |" in (tmp_path / "app" / "README.md").read_text()
    wrong = runner.invoke(app, ["deploy", str(study), "method.nmae=1", "--out", str(tmp_path / "other")])
    assert isinstance(wrong.exception, ConfigError)


def test_a_template_lists_the_networks_that_the_study_names_by_address() -> None:
    plain = tomllib.loads(site_template(None, ("mlp", "features:efficientnet-lite0@128")))
    assert "networks" not in plain
    own = tomllib.loads(site_template(None, ("mlp", "our_nets.small:Small", "our_nets.small:Small")))
    assert own["networks"] == ["our_nets.small:Small"]
    assert own["data"]["name"] == "folder"
