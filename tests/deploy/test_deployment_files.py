"""compose.yaml, the systemd units and the Kubernetes manifest: they parse, and their commands are ours."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from typer.main import get_command

from fedsift.cli.failures import INTERRUPTED, TERMINATED
from fedsift.cli.main import app
from fedsift.core.errors import ConfigError, DataError

FOLDER = Path(__file__).parents[2] / "deployment"
UNITS = sorted((FOLDER / "systemd").glob("*.service"))


def parsed(arguments: list[str]) -> tuple[str, dict[str, Any]]:
    """The command's path and its options, as the command line itself reads them; raises on an unknown one."""
    command: click.Command = get_command(app)
    names, rest, context = [], list(arguments), click.Context(command, info_name="fedsift")
    while isinstance(command, click.Group):
        name, found, rest = command.resolve_command(context, rest)
        assert found is not None, arguments
        command, context = found, click.Context(found, parent=context, info_name=name)
        names.append(str(name))
    return " ".join(names), command.make_context(names[-1], rest, parent=context.parent).params


def manifests() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text("utf-8")))


def compose() -> dict[str, Any]:
    table: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text("utf-8"))
    return table


def test_an_option_that_does_not_exist_would_be_noticed() -> None:
    with pytest.raises(click.UsageError):
        parsed(["flower", "site", "site.toml", "--superlnk", "x"])


@pytest.mark.parametrize("service", ["superlink", "start", "site"])
def test_compose_runs_our_commands_without_rights(service: str) -> None:
    about = compose()["services"][service]
    name, _ = parsed(shlex.split(about["command"]))
    assert name == f"flower {service}"
    assert about["cap_drop"] == ["ALL"]
    assert about["read_only"] is True
    assert about["user"] == "10001:10001"
    assert "--insecure" not in about["command"]


def test_only_the_gateway_is_published_and_start_shares_its_loopback() -> None:
    services = compose()["services"]
    assert services["superlink"]["ports"] == ["8000:8000"]
    assert services["start"]["network_mode"] == "service:superlink"
    assert services["start"]["profiles"] == ["run"], "`up` would begin a run"
    assert all("ports" not in services[name] for name in ("start", "site"))
    assert all(volume.split(":")[-1] == "ro" for volume in services["site"]["volumes"] if "site:" not in volume[:7])


@pytest.mark.parametrize("service", ["superlink", "start", "site"])
def test_on_a_read_only_system_the_cache_lies_in_a_volume_that_can_be_written(service: str) -> None:
    """Pictures that are decoded are kept there: without a place for them a site does not start."""
    about = compose()["services"][service]
    volumes = {each.split(":")[1] for each in about["volumes"] if not each.endswith(":ro")}
    assert str(Path(about["environment"]["FEDSIFT_CACHE"]).parent) in volumes


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("file", UNITS, ids=lambda file: file.stem)
def test_systemd_itself_finds_no_fault(file: Path, tmp_path: Path) -> None:
    text = re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", file.read_text("utf-8"), flags=re.MULTILINE)
    (tmp_path / file.name).write_text(text, "utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / file.name)],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, [line for line in done.stderr.splitlines() if file.stem in line]) == (0, [])


@pytest.mark.parametrize("file", UNITS, ids=lambda file: file.stem)
def test_the_units_start_our_commands_and_start_them_again(file: Path) -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=True)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(file.read_text("utf-8"))
    program, *arguments = shlex.split(unit["Service"]["ExecStart"])
    assert program.endswith("/bin/fedsift")
    name, params = parsed(arguments)
    assert name in ("flower superlink", "flower site")
    assert not params["insecure"]
    assert unit["Service"]["Restart"] in ("always", "on-failure")
    assert unit["Service"]["RestartPreventExitStatus"] == f"{ConfigError.exit_code} {DataError.exit_code}"
    assert unit["Service"]["SuccessExitStatus"] == f"{INTERRUPTED} {TERMINATED}"  # `systemctl stop` is no failure
    assert unit["Service"]["UMask"] == "0077"
    writable = unit["Service"]["ReadWritePaths"]
    assert unit["Service"]["WorkingDirectory"].startswith(writable)
    assert unit["Service"]["Environment"].startswith(f"FEDSIFT_CACHE={writable}/")
    assert unit["Install"]["WantedBy"] == "multi-user.target"


def test_the_manifest_holds_a_site_that_nobody_can_call() -> None:
    by_kind = {table["kind"]: table for table in manifests()}
    assert set(by_kind) == {"PersistentVolumeClaim", "Deployment", "NetworkPolicy"}
    pod = by_kind["Deployment"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    name, params = parsed(container["args"])
    assert name == "flower site"
    assert not params["insecure"]
    assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    known = {volume["name"] for volume in pod["volumes"]}
    assert pod["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    [cache] = [each["value"] for each in container["env"] if each["name"] == "FEDSIFT_CACHE"]
    writable = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    assert str(Path(cache).parent) in writable
    for each in (container, *pod["initContainers"]):
        assert each["securityContext"] == container["securityContext"]
        assert {mount["name"] for mount in each["volumeMounts"]} <= known
    assert by_kind["NetworkPolicy"]["spec"]["ingress"] == []
    assert by_kind["Deployment"]["spec"]["replicas"] == 1


def test_the_image_is_built_from_what_is_here() -> None:
    text = (FOLDER / "Dockerfile").read_text("utf-8")
    for line in (line for line in text.splitlines() if line.startswith("COPY")):
        *sources, _ = line.split()[1:]
        assert all((FOLDER.parent / source).exists() for source in sources), line
    assert "USER fedsift" in text
