"""Persistent worker processes: one thread each, the images in memory that all of them share.

For small networks several processes of one thread beat one process of several threads. Workers are started once and
then fed through sockets: messages carry weights, labels and recipes as plain buffers; pools of images are mapped from
shared memory and never sent. A request is answered the same whoever answers it.
"""

from __future__ import annotations

import atexit
import logging
import os
import pickle
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from io import BytesIO
from typing import Any

import torch
from torch import Tensor, nn

from fedsift.contract.errors import RunError
from fedsift.contract.messages import Weights
from fedsift.contract.notebook import Notebook
from fedsift.local.dispatch import decisions, is_large, recall
from fedsift.local.predict import logits_of
from fedsift.local.shared_pools import SharedPool, share
from fedsift.local.site import Compute, Samples, Site
from fedsift.models import build_model

log = logging.getLogger(__name__)

KEEP_MEMORY = ":".join(
    f"glibc.malloc.{name}={megabytes * 2**20}"
    for name, megabytes in (("mmap_threshold", 32), ("trim_threshold", 4096), ("top_pad", 64))
)
"""Workers keep the memory of a step for the next one: taking it from the system anew costs large images a tenth."""

MOST_POOLS = 6
_LENGTH = struct.Struct("<QQ")


class Channel:
    """Objects over a stream socket. Tensors travel as raw buffers, known pools of images as their number."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self.pools: list[Tensor] = []
        """Pools that both sides know, by number."""

    def send(self, value: Any) -> None:
        buffers: list[pickle.PickleBuffer] = []
        stream = BytesIO()
        _Pickler(stream, self.pools, buffers).dump(value)
        raws = [buffer.raw() for buffer in buffers]
        body = stream.getbuffer()
        header = struct.pack(f"<{len(raws)}Q", *(raw.nbytes for raw in raws))
        self._socket.sendall(_LENGTH.pack(len(raws), body.nbytes) + header)
        for part in (body, *raws):
            self._socket.sendall(part)

    def receive(self) -> Any:
        count, length = _LENGTH.unpack(self._read(_LENGTH.size))
        sizes = struct.unpack(f"<{count}Q", self._read(8 * count))
        body = self._read(length)
        buffers = [self._read(size) for size in sizes]
        return _Unpickler(BytesIO(body), self.pools, buffers).load()

    def send_pool(self, pool: SharedPool) -> None:
        """Lend the other side a pool; it is known by its number from now on."""
        self.send(pool.description)
        socket.send_fds(self._socket, [b"p"], pool.files)
        self.pools.append(pool.tensor)

    def receive_pool(self, description: dict[str, Any]) -> None:
        _, files, _, _ = socket.recv_fds(self._socket, 1, 2)
        self.pools.append(SharedPool.open(description, list(files)).tensor)

    def close(self) -> None:
        self._socket.close()

    def _read(self, size: int) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            got = self._socket.recv_into(view)
            if got == 0:
                raise EOFError("the other side is gone")
            view = view[got:]
        return data


class _Pickler(pickle.Pickler):
    def __init__(self, stream: BytesIO, pools: list[Tensor], buffers: list[pickle.PickleBuffer]) -> None:
        super().__init__(stream, protocol=5, buffer_callback=buffers.append)
        self._pools = {id(pool): number for number, pool in enumerate(pools)}

    def persistent_id(self, value: Any) -> int | None:
        return self._pools.get(id(value)) if isinstance(value, Tensor) else None

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Tensor) and value.device.type == "cpu" and value.dtype != torch.bfloat16:
            return torch.from_numpy, (value.detach().contiguous().numpy(),)
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: BytesIO, pools: list[Tensor], buffers: list[bytearray]) -> None:
        super().__init__(stream, buffers=buffers)
        self._pools = pools

    def persistent_load(self, number: int) -> Tensor:
        return self._pools[number]


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
        }
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

    def call(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._channel.send((function, arguments, decisions()))

    def result(self) -> Any:
        """What the call returned; choices of trainers made on the way are taken over."""
        outcome, decided = self._channel.receive()
        recall(decided)
        return outcome

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
        self, function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], pools: Sequence[Tensor]
    ) -> list[Any]:
        """`function(*call)` for each call, at most one a worker; a call whose worker fails is made here."""
        self._lend(pools)
        results: list[Any] = []
        sent = [self._send(slot, function, call) for slot, call in enumerate(calls)]
        try:
            for slot, (call, reached) in enumerate(zip(calls, sent)):
                results.append(self._receive(slot) if reached else Failed("it could not be reached"))
                if isinstance(results[-1], Failed):
                    _say_once(results[-1].reason)
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

    def _send(self, slot: int, function: Callable[..., Any], call: tuple[Any, ...]) -> bool:
        worker = self._workers[slot]
        try:
            if worker is None:
                worker = self._workers[slot] = Worker()
            worker.knows(self._pools)
            worker.call(function, call)
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


# Predictions -----------------------------------------------------------------------------------------------

FEWEST_ROWS = 1000
"""A worker is not worth asking for less."""


def predict(model: str, weights: Weights, samples: Samples, n_classes: int, compute: Compute) -> Tensor:
    """Logits `[n, K]` of all samples under these weights, by the worker processes if there are any."""
    parts = min(compute.workers, len(samples) // FEWEST_ROWS)
    if parts < 2 or compute.device != "cpu":
        return _predict_part(model, weights, samples, n_classes, compute.device)
    calls = [
        (model, weights, replace(samples, rows=rows), n_classes, "cpu") for rows in samples.rows.chunk(parts)
    ]
    return torch.cat(workers(compute.workers).map(_predict_part, calls, [samples.pool]))


def _predict_part(model: str, weights: Weights, samples: Samples, n_classes: int, device: str) -> Tensor:
    network = _network(model, samples.shape, n_classes, device)
    network.load_state_dict(weights)
    return logits_of(network, samples)


@lru_cache(maxsize=4)
def _network(model: str, shape: tuple[int, ...], n_classes: int, device: str) -> nn.Module:
    return build_model(model, shape, n_classes).to(device)


# Requests --------------------------------------------------------------------------------------------------


def answer_many(kind: type, work: Sequence[tuple[Any, Site]]) -> list[Any]:
    """`kind.answer_many(work)`, spread over the worker processes that the sites ask for (here when they ask for none).

    Afterwards each site of `work` has the notebook that answering left.
    """
    count = work[0][1].compute.workers if work else 0
    if count < 2 or work[0][1].compute.device != "cpu":
        return list(kind.answer_many(work))  # type: ignore[attr-defined]
    if len(work) < 2:
        with threads(count if any(is_large(site) for _, site in work) else 1):
            return list(kind.answer_many(work))  # type: ignore[attr-defined]
    shares = spread([len(site.samples) for _, site in work], count)
    calls = [(kind, [work[index] for index in own]) for own in shares]
    outcomes: list[Any] = [None] * len(work)
    for own, part in zip(shares, workers(count).map(_answer_part, calls, _pools(work))):
        for index, (outcome, pages) in zip(own, part):
            outcomes[index] = outcome
            if pages is not None:
                site = work[index][1]
                site.notebook = Notebook(pages)
                site.notebook.written = True
    return outcomes


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Let this process compute with so many threads, at least: one site's large network fills them."""
    before = torch.get_num_threads()
    torch.set_num_threads(max(before, count))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def spread(sizes: Sequence[int], count: int) -> list[list[int]]:
    """Indices for each of `count` workers (none empty): the largest first, always to the least loaded."""
    shares: list[list[int]] = [[] for _ in range(min(count, len(sizes)))]
    loads = [0] * len(shares)
    for index in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        lightest = loads.index(min(loads))
        shares[lightest].append(index)
        loads[lightest] += max(sizes[index], 1)
    return [sorted(own) for own in shares]


def _answer_part(kind: type, work: list[tuple[Any, Site]]) -> list[tuple[Any, dict[str, Any] | None]]:
    """In a worker: answers, and the pages of notebooks that were written to."""
    outcomes = kind.answer_many(work)  # type: ignore[attr-defined]
    return [
        (_portable(outcome), site.notebook.pages() if site.notebook.written else None)
        for outcome, (_, site) in zip(outcomes, work)
    ]


def _portable(outcome: Any) -> Any:
    """Errors keep their class where that can travel."""
    if not isinstance(outcome, Exception):
        return outcome
    try:
        pickle.loads(pickle.dumps(outcome))
    except Exception:
        return RuntimeError(f"{type(outcome).__name__}: {outcome}")
    return outcome


def _pools(work: Sequence[tuple[Any, Site]]) -> list[Tensor]:
    """The distinct pools of images that these sites look into."""
    found: dict[int, Tensor] = {}
    for _, site in work:
        for samples in (site.samples, site.held_out, site.public, site.test):
            if isinstance(samples, Samples):
                found.setdefault(id(samples.pool), samples.pool)
    return list(found.values())
