"""The server as a process of its own, beside a command: `python -m fedsift.live '{"runs": "..."}'`.

It says its address in one line of JSON and ends with the process that started it.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedsift.core.errors import FedsiftError
from fedsift.live.server import Address, serve_runs, serve_site


def main(wanted: dict[str, Any]) -> None:
    def ready(address: Address) -> None:
        print(json.dumps(asdict(address)), flush=True)

    shared: dict[str, Any] = {
        "port": wanted.get("port"),
        "token": None,
        "ready": ready,
        "parent": os.getppid(),
    }
    try:
        if "egress" in wanted:
            serve_site(Path(wanted["egress"]), Path(wanted["audit"]), wanted["name"], **shared)
        else:
            serve_runs(Path(wanted["runs"]), host="127.0.0.1", **shared)
    except FedsiftError as error:
        print(json.dumps({"error": str(error), "exit_code": error.exit_code}), flush=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
