"""A network whose process ends when it is built."""

from __future__ import annotations

import os
from typing import NoReturn


def network(shape: tuple[int, ...], n_classes: int) -> NoReturn:
    os._exit(3)
