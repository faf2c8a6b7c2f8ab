"""What a program says to the search that runs it. Without a search, nothing here has an effect.

A program of any interpreter may import this file. It therefore needs the standard library of Python 3.8 only.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

SOCKET = "SEARCHLIGHT_SOCKET"
PARAMETERS = "SEARCHLIGHT_PARAMS"
UNBUFFERED = "searchlight"  # the value of PYTHONUNBUFFERED that the search sets, and not its user
RANKS = ("RANK", "LOCAL_RANK", "NODE_RANK")  # of torchrun and of Lightning


def report(step: float | None = None, **metrics: Any) -> None:
    """Report metrics to the search that runs this program.

    Only rank 0 is heard. Metrics that are no valid names are given by a dict: `report(step=3, **{"val/loss": 0.5})`.

    Args:
        step: The epoch, update or sample that the metrics belong to. A later report of the same step replaces them.
        metrics: Numbers, or arrays and tensors with one element.
    """
    if not os.environ.get(SOCKET):
        return
    wrong = {name: value for name, value in metrics.items() if to_number(value) is None}
    if step is not None and to_number(step) is None:
        wrong["step"] = step
    for name, value in wrong.items():
        complain(f"{name} of searchlight.report must be a number, but got {type(value).__name__}. It is left out.")
    send_metrics("searchlight.report", step, metrics, is_asked=True)


def params() -> dict[str, Any]:
    """Return the parameters of this trial, or nothing without a search."""
    import json

    parameters: dict[str, Any] = json.loads(os.environ.get(PARAMETERS, "{}"))
    return parameters


def should_stop() -> bool:
    """Return whether the search has ended this trial, so that the program can save its work and end.

    Only rank 0 is told, because ranks that learn of it at different steps would wait for each other.
    """
    return bool(os.environ.get(SOCKET)) and is_main_process(is_asked=True) and _connection.is_stopped()


class Connection:
    """Sends messages of this process. A process that is forked from it gets a connection of its own.

    Attributes:
        greeting: Gives what is sent before the first message.
        is_used: Whether the first message has begun.
    """

    def __init__(self) -> None:
        self.greeting: Callable[[], Mapping[str, Any]] | None = None
        self.is_used = False
        self._socket: Any = None
        self._has_failed = False
        self._can_stop = False
        self._stop = b""  # what the search has said
        self._lock = threading.RLock()  # a handler of a signal may report while its thread sends

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message. If nobody listens, say so once."""
        with self._lock:
            if self._has_failed:
                return
            self.is_used = True
            try:
                self._connect()
                self._send(message)
            except OSError as error:
                self._has_failed = True
                complain(f"metrics are not heard any more: {error}.")

    def is_stopped(self) -> bool:
        """Return whether the search wants the program to stop. The first call says that the program asks for it."""
        if not self._can_stop:
            self._can_stop = True
            self.send({"can_stop": True})
        with self._lock:
            if not self._stop and self._socket is not None:
                import socket

                with contextlib.suppress(OSError):  # nothing was said
                    self._stop = self._socket.recv(64, socket.MSG_DONTWAIT)
            return bool(self._stop)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()

    def _connect(self) -> None:
        if self._socket is None:
            import socket

            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._socket.connect(os.environ[SOCKET])
            if self.greeting is not None:
                self._send(self.greeting())

    def _send(self, message: Mapping[str, Any]) -> None:
        import json

        self._socket.sendall(json.dumps({"process": os.getpid(), **message}).encode() + b"\n")


def send_metrics(source: str, step: Any, metrics: Mapping[str, Any], is_asked: bool = False) -> None:
    """Send the metrics that are numbers, if this process speaks for the program."""
    numbers = {str(name): number for name, value in metrics.items() if (number := to_number(value)) is not None}
    if numbers and os.environ.get(SOCKET) and is_main_process(is_asked):
        _connection.send({"from": source, "step": to_number(step), "metrics": numbers})


def get_connection() -> Connection:
    """Return the connection of this process."""
    return _connection


def is_main_process(is_asked: bool = False) -> bool:
    """Return whether this process speaks for the program: not another rank, nor a worker of a DataLoader.

    Other processes that the program starts by multiprocessing speak only if they are asked to, because loggers in them
    would give a metric several times.
    """
    data, distributed = sys.modules.get("torch.utils.data"), sys.modules.get("torch.distributed")
    if getattr(data, "get_worker_info", lambda: None)() is not None:
        return False
    if getattr(distributed, "is_initialized", lambda: False)():
        return bool(getattr(distributed, "get_rank")() == 0)  # noqa: B009 since mypy knows no such module here
    if any(os.environ.get(name) not in (None, "", "0") for name in RANKS):
        return False
    processes = sys.modules.get("multiprocessing.process")
    return is_asked or getattr(processes, "parent_process", lambda: None)() is None


def to_number(value: Any) -> float | None:
    """Return a number, or the one in an array or a tensor, as a float. Return None for anything else."""
    if value is None or isinstance(value, (str, bytes)):
        return None
    try:
        return float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None


_complaints: set[str] = set()


def complain(text: str) -> None:
    """Say on standard error what is wrong, once."""
    if text not in _complaints:
        _complaints.add(text)
        print(f"searchlight: {text}", file=sys.stderr)


_connection = Connection()


def _reset() -> None:
    """Leave the connection to the parent of this process."""
    global _connection
    _connection.close()
    _connection = Connection()


os.register_at_fork(after_in_child=_reset)
