"""The log of a site's own process: one entry is one line, whoever wrote the words."""

from __future__ import annotations

import dataclasses
import io
import logging
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedsift.cli.main import app
from fedsift.deploy.app import write_app
from fedsift.deploy.site import worker
from fedsift.deploy.site.consent import allowed_runs
from fedsift.deploy.site.worker import EscapedLines
from fedsift.study.study import Study
from fedsift.transports.remote.encoding import encode
from tests.deploy.test_policy import OPEN
from tests.deploy.test_site_data import train, write_site

FAKE = "\n2026-01-01 00:00:00 fedsift.site all is well\x1b[2J"


def logged(**keywords: object) -> list[str]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(EscapedLines("%(asctime)s %(name)s %(message)s"))
    log = logging.Logger("fedsift.site")
    log.addHandler(handler)
    try:
        raise ValueError(FAKE)
    except ValueError:
        log.warning("refused: %s", FAKE, **keywords)  # type: ignore[arg-type]
    return stream.getvalue().splitlines()


def test_an_entry_is_one_line_and_nothing_in_it_acts() -> None:
    [line] = logged()
    assert r"refused: \n2026-01-01" in line and line.endswith(r"well\x1b[2J")


def test_lines_of_a_traceback_are_no_entries() -> None:
    first, *rest = logged(exc_info=True)
    assert "refused" in first
    assert rest and all(line.startswith("  | ") and line.isprintable() for line in rest)


@pytest.mark.parametrize("run", ["run", "-rf", "first-0a1b2c3d4e5f6071"])
def test_the_command_that_lets_a_run_in_can_be_pasted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, run: str
) -> None:
    path = write_site(tmp_path / "it's $(here)", policy={**OPEN, "ask_first": True})
    (path.parent / "notebook" / "north").mkdir(parents=True)
    encoded = encode(dataclasses.replace(train(), run=run)).with_note(model="mlp")
    with caplog.at_level(logging.WARNING, "fedsift.site"):
        worker._reply(encoded, path)
    [message] = caplog.messages
    program, *words = shlex.split(message.rpartition("read: ")[2])
    assert program == "fedsift"
    write_app(Study.from_table({"method": {"name": "fedavg"}, "model": {"name": "mlp"}}), tmp_path / "my-app")
    result = CliRunner().invoke(app, [str(tmp_path / "my-app") if word == "APP" else word for word in words])
    assert result.exit_code == 0, result.output
    assert allowed_runs(path.parent / "notebook" / "north").keys() == {run}


@pytest.mark.parametrize("run", [FAKE, "'; touch x; '", "$(touch x)"])
def test_a_foreign_name_never_becomes_a_command_or_an_entry(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, run: str
) -> None:
    path = write_site(tmp_path, policy={**OPEN, "ask_first": True})
    (tmp_path / "notebook" / "north").mkdir(parents=True)
    encoded = encode(dataclasses.replace(train(), run=run)).with_note(model="mlp")
    with caplog.at_level(logging.WARNING, "fedsift.site"):
        worker._reply(encoded, path)
    [message] = caplog.messages
    assert message.isprintable() and "is no name of a run" in message and "flower allow" not in message


def test_the_names_in_a_failed_request_s_entry_are_cleaned(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_site(tmp_path)
    (tmp_path / "notebook" / "north").mkdir(parents=True)
    asked = dataclasses.replace(train(), site=FAKE)
    asked = dataclasses.replace(asked, moment=dataclasses.replace(asked.moment, stage=FAKE))
    with caplog.at_level(logging.ERROR, "fedsift.site"):
        worker._reply(encode(asked).with_note(model="mlp"), path)
    [record] = caplog.records
    assert record.getMessage().isprintable()
    assert record.exc_info is not None and str(record.exc_info[1]).isprintable()
