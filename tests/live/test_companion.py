"""The page beside a command: `run --serve`, a coordinator's stop, a site's own page."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from typer.testing import CliRunner

from fedsift.cli.main import app
from fedsift.core.errors import Stopped
from fedsift.label_audit.site_files import SiteFolder
from tests.live.made import Made

pytest.importorskip("starlette", reason="the live page needs starlette: pip install 'fedsift[live]'")
STUDY = """
[partition]
name = "iid"
sites = 3
[model]
name = "linear"
[method]
name = "fedavg"
rounds = 2
"""


def status(url: str) -> int:
    parts = urlsplit(url)
    line = http.client.HTTPConnection(parts.netloc, timeout=30)
    line.request("GET", f"{parts.path}?{parts.query}")
    found = line.getresponse().status
    line.close()
    return found


def test_a_run_has_its_page_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedsift.live import companion as beside
    from fedsift.live.server import Address
    from fedsift.study import running

    (tmp_path / "study.toml").write_text(STUDY)
    seen: list[Any] = []
    real, opening = running.run, beside.run_page_beside

    @contextmanager
    def noted(run: Path) -> Iterator[Address]:
        with opening(run) as address:
            seen.append(address)
            yield address

    def looked_at(*arguments: Any) -> Any:
        seen.append(status(seen[0].url))
        return real(*arguments)

    monkeypatch.setattr(beside, "run_page_beside", noted)
    monkeypatch.setattr(running, "run", looked_at)
    asked = CliRunner().invoke(
        app, ["run", str(tmp_path / "study.toml"), "--out", str(tmp_path / "runs"), "--serve", "--json"]
    )
    assert asked.exit_code == 0, asked.output
    assert seen[1:] == [303]
    assert json.loads(asked.stdout)["rounds"] == 2
    [address] = re.findall(r"the live page: (http://127\.0\.0\.1:\d+/\?token=\S+)", asked.stderr)
    with pytest.raises(OSError):
        status(address)


def test_a_coordinator_whose_run_was_stopped_from_the_page_says_so(tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="deployment is an extra: pip install 'fedsift[deploy]'")
    from fedsift.deploy.coordinator.starting import _outcome, follow
    from fedsift.deploy.waiting import StatusLine

    made = Made(tmp_path)
    made.folder.ask_to_stop()
    # Flower's program goes on to print the log
    follow(made.folder, lambda: True, lambda: "", None, StatusLine(lambda words: None))
    with pytest.raises(Stopped, match="nothing is lost"):
        _outcome(made.folder, made.folder.path / "flower.log")


def test_a_site_has_its_own_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("flwr", reason="deployment is an extra: pip install 'fedsift[deploy]'")
    from fedsift.cli.flower import _site_page

    site_file = tmp_path / "site.toml"
    site_file.write_text('name = "clinic"\nclasses = ["0", "1"]\n[data]\nname = "digits"\n')
    with _site_page(site_file, wanted=True):
        [address] = re.findall(r"this site's own page: (http://127\.0\.0\.1:\d+/\?token=\S+)", capsys.readouterr().out)
        assert status(address) == 303
        assert status(address.partition("?")[0]) == 200
        place = address.partition("?")[0].rstrip("/") + "/audit.html"
        assert status(place) == 404
        report = SiteFolder.of(tmp_path / "audit", "clinic").report  # where `fedsift flower audit` writes it
        report.parent.mkdir(parents=True)
        report.write_text("<p>private</p>")
        assert status(place) == 200
