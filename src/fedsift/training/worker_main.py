"""The main program of a worker process: makes calls until its socket closes."""

from __future__ import annotations

import signal
import socket
import sys

import torch

from fedsift.training.processes import CallFailed, WorkerChannel


def main() -> None:
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


if __name__ == "__main__":
    main()
