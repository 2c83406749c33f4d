"""Objects between this process and a worker: tensors as raw buffers, pools of images as numbers."""

from __future__ import annotations

import pickle
import socket
import struct
from io import BytesIO
from typing import Any

import torch
from torch import Tensor

from fedsift.local.shared_pools import SharedPool

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
