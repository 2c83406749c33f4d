"""Persistent worker processes: one thread each unless a study says otherwise, images in memory that all of them share.

For small networks several processes of one thread beat one process of several threads. Workers are started once and
then fed through sockets: messages carry weights, labels and recipes as plain buffers; pools of images are mapped from
shared memory and never sent.
"""

from __future__ import annotations

import atexit
import logging
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fedsift.contract.errors import RunError
from fedsift.local import native
from fedsift.local.channel import Channel
from fedsift.local.shared_pools import SharedPool, share
from fedsift.local.site import Compute

log = logging.getLogger(__name__)

KEEP_MEMORY = ":".join(
    f"glibc.malloc.{name}={megabytes * 2**20}"
    for name, megabytes in (("mmap_threshold", 32), ("trim_threshold", 4096), ("top_pad", 64))
)
"""Workers keep the memory of a step for the next one: taking it from the system anew costs large images a tenth."""

MOST_POOLS = 6


class Failed:
    """Why a worker could not make a call."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


class Worker:
    """One process. Its channel alternates strictly: a call, then its result."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        environment = {
            "GLIBC_TUNABLES": KEEP_MEMORY,
            **os.environ,
            "PYTHONPATH": path,
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        if native.library() is None:
            environment[native.OFF] = "0"  # a worker must not have kernels that this process lacks
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fedsift.local.worker_main", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=environment,
        )
        theirs.close()
        self._channel = Channel(ours)

    def knows(self, pools: Sequence[SharedPool]) -> None:
        """Lend it the pools that it does not have yet."""
        for pool in pools[len(self._channel.pools) :]:
            self._channel.send_pool(pool)

    def call(self, function: Callable[..., Any], arguments: tuple[Any, ...], threads: int) -> None:
        self._channel.send((function, arguments, threads))

    def result(self) -> Any:
        return self._channel.receive()

    def close(self) -> None:
        self._channel.close()
        self._process.terminate()
        self._process.wait()


class Workers:
    """A fixed number of workers that live until the process ends."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._workers: list[Worker | None] = [None] * count
        self._pools: list[SharedPool] = []

    def map(
        self,
        function: Callable[..., Any],
        calls: Sequence[tuple[Any, ...]],
        pools: Sequence[Tensor],
        threads: int = 1,
    ) -> list[Any]:
        """`function(*call)` for each call, at most one a worker; a call whose worker fails is made here, alike."""
        self._lend(pools)
        results: list[Any] = []
        sent = [self._send(slot, function, call, threads) for slot, call in enumerate(calls)]
        try:
            for slot, (call, reached) in enumerate(zip(calls, sent)):
                results.append(self._receive(slot) if reached else Failed("it could not be reached"))
                if isinstance(results[-1], Failed):
                    _say_once(results[-1].reason)
                    with threads_of(threads):
                        results[-1] = function(*call)
        except BaseException:
            self.close()  # the other workers' answers would be taken for those of a later call
            raise
        return results

    def start(self) -> None:
        """Start the processes that do not run yet, without waiting for them."""
        for slot, worker in enumerate(self._workers):
            if worker is None:
                self._workers[slot] = Worker()

    def _lend(self, pools: Sequence[Tensor]) -> None:
        new = [pool for pool in pools if not any(known.tensor is pool for known in self._pools)]
        if len(self._pools) + len(new) > MOST_POOLS:
            # another study's data: begin anew rather than keep what nobody looks at any more
            self.close()
            new = list(pools)
        self._pools += [share(pool) for pool in new]

    def _send(self, slot: int, function: Callable[..., Any], call: tuple[Any, ...], threads: int) -> bool:
        worker = self._workers[slot]
        try:
            if worker is None:
                worker = self._workers[slot] = Worker()
            worker.knows(self._pools)
            worker.call(function, call, threads)
        except (OSError, pickle.PicklingError, AttributeError, TypeError):
            self._drop(slot)
            return False
        return True

    def _receive(self, slot: int) -> Any:
        worker = self._workers[slot]
        assert worker is not None
        try:
            return worker.result()
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            self._drop(slot)
            return Failed(f"{type(error).__name__}: {error}")

    def _drop(self, slot: int) -> None:
        worker, self._workers[slot] = self._workers[slot], None
        if worker is not None:
            worker.close()

    def close(self) -> None:
        """End the processes and forget what they were lent."""
        for slot in range(self.count):
            self._drop(slot)
        for pool in self._pools:
            pool.close()
        self._pools = []


@contextmanager
def threads_of(count: int) -> Iterator[None]:
    """Compute with so many threads, as every process that answers for the same study does: sums over another number
    of threads have other last bits. The caller's number comes back afterwards."""
    before = torch.get_num_threads()
    if before == count:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@lru_cache(maxsize=64)
def _say_once(reason: str) -> None:
    log.warning("a worker process failed (%s); its part is done here", reason)


_current: Workers | None = None


def workers(count: int) -> Workers:
    """The process's workers; asking for another number replaces them."""
    global _current
    if not hasattr(socket, "send_fds"):
        raise RunError("worker processes need a Unix system: set engine.workers = 0")
    if _current is None or _current.count != count:
        close_workers()
        _current = Workers(count)
        atexit.register(_current.close)
    return _current


def start_workers(compute: Compute) -> None:
    """Let the processes that these settings ask for start now, while the caller still loads its data."""
    if compute.workers > 1 and compute.device == "cpu":
        workers(compute.workers).start()


def close_workers() -> None:
    """End the worker processes, if there are any."""
    global _current
    if _current is not None:
        _current.close()
        atexit.unregister(_current.close)
        _current = None
