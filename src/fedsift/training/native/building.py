"""Compiles and loads the native kernels, and calls them in parallel parts."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from ctypes import c_int64, c_void_p
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedsift.core.files import cache_root

# Compiling the kernels once for this processor, and loading them
# ------------------------------------------------------------------------------

log = logging.getLogger(__name__)

SOURCES = sorted(Path(__file__).parent.glob("*.cpp"))
HEADERS = sorted(Path(__file__).parent.glob("*.h"))
FLAGS = ("-O3", "-march=native", "-std=c++17", "-fno-math-errno", "-fPIC", "-shared")
SECONDS = 600
"""No compiler needs longer for this, on the busiest machine: giving up would change the last bits of a run."""
OFF = "FEDSIFT_NATIVE"

_INTERFACE = {
    # shape, rows a site, first, last; x, weight, bias, pooled, places
    "block_forward": [c_void_p, c_int64, c_int64, c_int64, *[c_void_p] * 5],
    # shape, rows a site, first, last; x, weight, pooled, places, gradient, by x, by weight, by bias
    "block_backward": [c_void_p, c_int64, c_int64, c_int64, *[c_void_p] * 8],
    # sizes, part, parts; x, weight, y
    "tiles_forward": [c_void_p, c_int64, c_int64, *[c_void_p] * 3],
    # sizes, part, parts; gradient, weight, by x
    "tiles_backward": [c_void_p, c_int64, c_int64, *[c_void_p] * 3],
    # sizes, part, parts; x, gradient, by weight
    "tiles_kernels": [c_void_p, c_int64, c_int64, *[c_void_p] * 3],
    # settings; x, residual, weight, bias, running mean and variance, y, mean, scale, open
    "norm_forward": [c_void_p] * 11,
    # settings; x, gradient, open, weight, mean, scale, by x, by residual, by weight, by bias
    "norm_backward": [c_void_p] * 11,
    # sizes, first, last; pool, rows, shifts, flips, scale, offset, images
    "take_images": [c_void_p, c_int64, c_int64, *[c_void_p] * 7],
}


class KernelsUnavailable(Exception):
    """There are no kernels here; the text says why."""


def library() -> ctypes.CDLL | None:
    """The compiled kernels, or None where there are none (`why_not` knows the reason)."""
    found = _library()
    return found if isinstance(found, ctypes.CDLL) else None


def why_not() -> str | None:
    """Why there are no kernels; None when there are."""
    found = _library()
    return found if isinstance(found, str) else None


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL | str:
    try:
        loaded = _load(_built())
    except (KernelsUnavailable, OSError, AttributeError) as reason:
        log.info("convolutions run in torch: %s", reason)
        return str(reason)
    return loaded


def _load(path: Path) -> ctypes.CDLL:
    kernels = ctypes.CDLL(str(path))
    for name, arguments in _INTERFACE.items():
        for kind in ("float", "double"):
            function = getattr(kernels, f"{name}_{kind}")
            function.argtypes, function.restype = arguments, None
    return kernels


def _built() -> Path:
    """The compiled kernels' file; compiled if this processor has none yet."""
    if os.environ.get(OFF) == "0":
        raise KernelsUnavailable(f"{OFF}=0")
    compiler = shutil.which(os.environ.get("CXX") or "c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise KernelsUnavailable("no C++ compiler was found")
    target = cache_root() / "native" / f"kernels-{_fingerprint(compiler)}.so"
    if not target.exists():
        log.info("compiling the native kernels for this processor; this is done once and takes some seconds")
        target.parent.mkdir(parents=True, exist_ok=True)
        # several processes may compile at once: each into its own file, the last one stays
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            made = Path(folder) / target.name
            _compile(compiler, made)
            os.replace(made, target)
    return target


def _compile(compiler: str, target: Path) -> None:
    command = [compiler, *FLAGS, "-o", str(target), *map(str, SOURCES)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KernelsUnavailable(f"'{compiler}' does not run: {error}") from error
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or [f"exit {done.returncode}"]
        raise KernelsUnavailable(f"'{compiler}' cannot compile the kernels: {lines[0]}")


def _fingerprint(compiler: str) -> str:
    """Source, flags, compiler and processor: a cache that machines share must not hand one the other's code."""
    parts = [
        *(file.read_text() for file in SOURCES + HEADERS),
        *FLAGS,
        compiler,
        str(os.stat(compiler).st_mtime_ns),
        _processor(),
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.node()} {platform.machine()} {platform.processor()}"
    kept = {line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))}
    return platform.machine() + "".join(sorted(kept))


KINDS = {torch.float32: "float", torch.float64: "double"}


def address(value: Tensor | None) -> int | None:
    """A number in place of a pointer object, which would be made anew for every call."""
    return None if value is None else value.data_ptr()


def in_parts(parts: int, name: str, call: Callable[[Any, int, int], None]) -> None:
    """`call(kernel, part, parts)` for every part; a call through ctypes lets the interpreter's lock go."""
    kernel = getattr(library(), name)
    if parts <= 1:
        call(kernel, 0, 1)
        return
    for done in [_threads(parts).submit(call, kernel, part, parts) for part in range(parts)]:
        done.result()


@lru_cache(maxsize=1)
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix="fedsift-kernel")
