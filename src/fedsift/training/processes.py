"""Persistent worker processes with images in shared memory, one thread each unless the study says otherwise.

For small networks several processes of one thread beat one process of several threads. Workers are started once and
then fed through sockets: messages carry weights, labels and recipes as plain buffers; pools of images are mapped from
shared memory and never sent.
"""

from __future__ import annotations

import atexit
import logging
import mmap
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedsift.core.errors import RunError
from fedsift.protocol.site import ComputeSettings
from fedsift.training import native
from fedsift.training.stacked import pixels

# Pools of images in memory that processes share
# ------------------------------------------------------------------------------


@dataclass
class SharedPool:
    """A tensor's bytes in a nameless file that other processes can map, with its packed form if it has one."""

    tensor: Tensor
    files: list[int]
    """Descriptors: the tensor, and its packed form."""

    @property
    def description(self) -> dict[str, Any]:
        return {
            "shape": tuple(self.tensor.shape),
            "dtype": str(self.tensor.dtype).removeprefix("torch."),
            "packed": len(self.files) > 1,
        }

    def close(self) -> None:
        for file in self.files:
            os.close(file)
        self.files = []

    @classmethod
    def open(cls, description: dict[str, Any], files: list[int]) -> SharedPool:
        """On the receiving side: map the files; they stay mapped while the tensors live."""
        shape = tuple(description["shape"])
        tensor = _map(files[0], shape, getattr(torch, description["dtype"]))
        if description["packed"]:
            pixels.keep_packed(tensor, _map(files[1], (shape[0], *shape[2:]), torch.int32))
        pool = cls(tensor, files)
        pool.close()
        return pool


def share(tensor: Tensor) -> SharedPool:
    """A copy of the tensor's bytes for other processes."""
    files = [_file_of(tensor)]
    if native.library() is None and pixels.can_pack(tensor):
        packed = pixels.packed_pool(tensor)
        if packed is not None:
            files.append(_file_of(packed))
            pixels.forget_packed(tensor)
    return SharedPool(tensor, files)


def _file_of(tensor: Tensor) -> int:
    memory = Path("/dev/shm")
    with tempfile.TemporaryFile(dir=memory if memory.is_dir() else None) as file:
        for part in torch.split(tensor, 4096):
            file.write(part.contiguous().numpy().tobytes())
        file.flush()
        return os.dup(file.fileno())


def _map(file: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    if 0 in shape:
        return torch.empty(shape, dtype=dtype)
    size = os.fstat(file).st_size
    # writable for torch's sake, private to this process: nobody's data can be changed through it
    memory = mmap.mmap(file, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


# Objects between this process and a worker: tensors as raw buffers, pools of images as numbers
# ------------------------------------------------------------------------------

_LENGTH = struct.Struct("<QQ")


class WorkerChannel:
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


log = logging.getLogger(__name__)

KEEP_MEMORY = ":".join(
    f"glibc.malloc.{name}={megabytes * 2**20}"
    for name, megabytes in (("mmap_threshold", 32), ("trim_threshold", 4096), ("top_pad", 64))
)
"""Workers keep the memory of a step for the next one: taking it from the system anew costs large images a tenth."""

MOST_POOLS = 6


class CallFailed:
    """Why a worker could not make a call."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


def serve_calls() -> None:
    """In a worker process: make calls until the socket, whose number is the first argument, closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle; it closes the socket
    torch.set_num_threads(1)
    channel = WorkerChannel(socket.socket(fileno=int(sys.argv[1])))
    while True:
        try:
            message = channel.receive()
            if isinstance(message, dict):
                channel.receive_pool(message)
                continue
            function, arguments, threads = message
            if torch.get_num_threads() != threads:
                torch.set_num_threads(threads)
            outcome = function(*arguments)
        except (EOFError, ConnectionError):
            return
        except Exception as error:  # the parent makes the call itself and meets the error where it can be handled
            outcome = CallFailed(f"{type(error).__name__}: {error}")
        channel.send(outcome)


WORKER = f"from {__name__} import serve_calls; serve_calls()"
"""The program of a worker."""


class WorkerProcess:
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
            [sys.executable, "-c", WORKER, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=environment,
        )
        theirs.close()
        self._channel = WorkerChannel(ours)

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


class WorkerProcesses:
    """A fixed number of workers that live until the process ends."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._workers: list[WorkerProcess | None] = [None] * count
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
                results.append(self._receive(slot) if reached else CallFailed("it could not be reached"))
                if isinstance(results[-1], CallFailed):
                    _warn_once(results[-1].reason)
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
                self._workers[slot] = WorkerProcess()

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
                worker = self._workers[slot] = WorkerProcess()
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
            return CallFailed(f"{type(error).__name__}: {error}")

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
def _warn_once(reason: str) -> None:
    log.warning("a worker process failed (%s); its part is done here", reason)


_current: WorkerProcesses | None = None


def workers(count: int) -> WorkerProcesses:
    """The process's workers; asking for another number replaces them."""
    global _current
    if not hasattr(socket, "send_fds"):
        raise RunError("worker processes need a Unix system: set engine.workers = 0")
    if _current is None or _current.count != count:
        close_workers()
        _current = WorkerProcesses(count)
        atexit.register(_current.close)
    return _current


def start_workers(compute: ComputeSettings) -> None:
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
