"""A real Chromium, driven by chromedriver's own HTTP interface: no library needed."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
MISSING = "" if CHROMIUM and DRIVER else "Chromium and chromedriver are not installed"
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
)
KEYS = {"right": "\ue014", "left": "\ue012", "escape": "\ue00c", "enter": "\ue007"}
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


class Browser:
    """One window. Downloads go to `downloads`; what the page logs is kept by Chromium and read with `logged`."""

    def __init__(self, folder: Path, size: tuple[int, int] = (1280, 900), dark: bool = False) -> None:
        assert CHROMIUM and DRIVER
        self.downloads = folder / "downloads"
        self.downloads.mkdir(parents=True, exist_ok=True)
        self._driver = subprocess.Popen(
            [DRIVER, "--port=0", "--allowed-ips=127.0.0.1"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._driver.stdout is not None
        self._base = ""
        for line in self._driver.stdout:
            if "started successfully on port" in line:
                self._base = f"http://127.0.0.1:{int(line.rstrip().rstrip('.').split()[-1])}"
                break
        options = {
            "binary": CHROMIUM,
            "args": [*FLAGS, f"--user-data-dir={folder / 'profile'}", f"--window-size={size[0]},{size[1]}"],
            "prefs": {
                "download.default_directory": str(self.downloads),
                "download.prompt_for_download": False,
            },
        }
        try:
            wanted = {
                "browserName": "chrome",
                "goog:chromeOptions": options,
                "goog:loggingPrefs": {"browser": "ALL"},
            }
            made = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        except BaseException:
            self._driver.kill()
            raise
        self._session = f"/session/{made['sessionId']}"
        phone = size[0] < 600
        self.cdp(
            "Emulation.setDeviceMetricsOverride",
            width=size[0],
            height=size[1],
            deviceScaleFactor=1,
            mobile=phone,
        )
        if dark:
            self.cdp("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])

    def _call(self, how: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._base + path, data, {"Content-Type": "application/json"}, method=how)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(error.read().decode()[:600]) from None

    def cdp(self, command: str, **arguments: Any) -> Any:
        return self._call("POST", f"{self._session}/goog/cdp/execute", {"cmd": command, "params": arguments})

    def open(self, path: Path) -> None:
        self.visit(path.as_uri())

    def visit(self, url: str) -> None:
        self._call("POST", f"{self._session}/url", {"url": url})

    def wait_until(self, script: str, seconds: float = 60.0) -> None:
        """Until the script's value is true."""
        end = time.monotonic() + seconds
        while not self.run(f"return {script}"):
            assert time.monotonic() < end, f"never true: {script}"
            time.sleep(0.05)

    def reload(self) -> None:
        self._call("POST", f"{self._session}/refresh", {})

    def wait_for(self, selector: str, text: str, seconds: float = 30.0) -> None:
        """Until the element says this; what it says instead is in the error."""
        end = time.monotonic() + seconds
        while not self.count(selector) or self.text(selector) != text:
            assert time.monotonic() < end, self.text(selector)
            time.sleep(0.02)

    def run(self, script: str, *arguments: Any) -> Any:
        return self._call("POST", f"{self._session}/execute/sync", {"script": script, "args": list(arguments)})

    def find(self, selector: str) -> str:
        found = self._call("POST", f"{self._session}/element", {"using": "css selector", "value": selector})
        return str(found[ELEMENT])

    def click(self, selector: str) -> None:
        self._call("POST", f"{self._session}/element/{self.find(selector)}/click", {})

    def write(self, selector: str, text: str) -> None:
        self._call("POST", f"{self._session}/element/{self.find(selector)}/value", {"text": text})

    def press(self, *keys: str) -> None:
        """Keys as a person presses them, to whatever has the focus."""
        actions = [{"type": kind, "value": KEYS.get(key, key)} for key in keys for kind in ("keyDown", "keyUp")]
        body = {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]}
        self._call("POST", f"{self._session}/actions", body)

    def text(self, selector: str) -> str:
        return str(self.run("return document.querySelector(arguments[0]).innerText", selector))

    def count(self, selector: str) -> int:
        return int(self.run("return document.querySelectorAll(arguments[0]).length", selector))

    def picture(self, path: Path, *, whole: bool = False) -> None:
        shot = self.cdp("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(shot))

    def downloaded(self, seconds: float = 20.0) -> Path:
        """The only finished download; Chromium gives it its name when it is whole."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            done = [file for file in self.downloads.iterdir() if file.suffix == ".json"]
            if done:
                return done[0]
            time.sleep(0.05)
        raise AssertionError("nothing was downloaded")

    def logged(self) -> list[str]:
        """What the console has said since the last call: errors of scripts and refusals of the policy."""
        return [entry["message"] for entry in self._call("POST", f"{self._session}/se/log", {"type": "browser"})]

    def close(self) -> None:
        try:
            self._call("DELETE", self._session)
        finally:
            self._driver.terminate()
            self._driver.wait(20)
