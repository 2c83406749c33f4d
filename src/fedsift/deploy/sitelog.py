"""The log of a site's own process: a line of it is a line, whatever a message from outside holds."""

from __future__ import annotations

import logging
from typing import Any

from fedsift.contract.plaintext import visible


class PlainLines(logging.Formatter):
    """What would act in a terminal is written as an escape; lines of a traceback cannot be taken for entries."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return visible(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:
        return "\n".join(f"  | {visible(line)}" for line in super().formatException(ei).splitlines())


def begin_log() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(PlainLines("%(asctime)s %(name)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
