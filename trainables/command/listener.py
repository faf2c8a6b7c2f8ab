"""Listens to a program: to the hook in its processes, to the lines that it prints, and to its file of metrics."""

import contextlib
import json
import os
import selectors
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol, Self

from searchlight.trainables.command.collector import Measurement
from searchlight.trainables.command.metrics_file import MetricsFile
from searchlight.trainables.command.output import OUTPUT, OutputPatterns, parse_number
from searchlight.trainables.command.settings import CommandSettings

HOOK = Path(__file__).resolve().parent / "hook"  # goes on the PYTHONPATH of the program
SOCKET = "SEARCHLIGHT_SOCKET"
LONGEST_ADDRESS = 100  # bytes; Linux allows 107, macOS 103
LONGEST_MESSAGE = 16 * 2**20  # bytes; the list of imported modules is the longest one
POLL = 0.5  # seconds between two looks at the file of metrics
LAST_WORDS = 5.0  # seconds for what processes still send when the program has ended


Variables = dict[str, dict[str, str | None]]


class Receiver(Protocol):
    """Takes measurements, as a queue does."""

    def put(self, measurement: Measurement, /) -> object:
        """Take a measurement. Several threads call this."""


class MetricListener:
    """Gives what a program measures to a receiver, from its start until the context ends.

    Each process of the program that imports the hook connects to a Unix socket and sends lines of JSON. Only one thread
    reads them. It ignores what is no message, since any process may write to the socket.

    Args:
        metrics_file: The path of `settings.metrics_file` for this trial, or "".

    Attributes:
        modules: By process ID, the modules of site-packages that a Python process imported. Those come first whose
            import ended first.
        variables: By process ID and package, the variables that had other values when its import began than when the
            program began. None: it had been removed.
    """

    def __init__(self, settings: CommandSettings, receiver: Receiver, metrics_file: str = "") -> None:
        self.modules: dict[int, list[str]] = {}
        self.variables: dict[int, Variables] = {}
        self._output = OutputPatterns(settings.metrics)
        self._receiver = receiver
        self._file = MetricsFile(Path(metrics_file)) if metrics_file else None
        self._clients: dict[socket.socket, bytes] = {}  # with the begin of the next message
        self._stoppable: set[socket.socket] = set()
        self._is_stopping = False
        self._is_closing = False
        self._lock = threading.Lock()

    @property
    def sources(self) -> dict[str, str]:
        """The source of each metric that has only one, for a ReportCollector."""
        return dict.fromkeys(self._output.names, OUTPUT)

    @property
    def address(self) -> str:
        """The path of the socket."""
        return str(self._folder / "s")

    @property
    def can_stop(self) -> bool:
        """Whether a process of the program looks for `ask_to_stop`."""
        with self._lock:
            return bool(self._stoppable)

    def build_environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Add to the environment of a program what lets it be heard."""
        path = os.pathsep.join(filter(None, [str(HOOK), environment.get("PYTHONPATH", "")]))
        # Python prints in blocks if nobody watches, and W&B asks for an account. The hook knows the value of the first.
        defaults = {"PYTHONUNBUFFERED": "searchlight", "WANDB_MODE": "offline"}
        return {**defaults, **environment, "PYTHONPATH": path, SOCKET: self.address}

    def read_output(self, line: str) -> None:
        """Take a line that the program printed. Any thread may call this."""
        for measurement in self._output.find(line):
            self._receiver.put(measurement)

    def ask_to_stop(self) -> None:
        """Ask the processes that can, now or later, to end their training in order."""
        with self._lock:
            self._is_stopping = True
            for client in self._stoppable:
                _send_stop(client)

    def __enter__(self) -> Self:
        self._folder = _make_folder()
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._wake, self._woken = socket.socketpair()
        self._server.bind(self.address)
        self._server.listen(128)
        self._selector = selectors.DefaultSelector()
        for waiting in (self._server, self._woken):
            waiting.setblocking(False)
            self._selector.register(waiting, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._listen, daemon=True, name="metric-listener")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Read what the processes of the program have sent, and close."""
        self._is_closing = True
        self._wake.send(b"c")
        self._thread.join()
        for opened in (*self._clients, self._server, self._wake, self._woken):
            opened.close()
        self._selector.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _listen(self) -> None:
        deadline, next_look = float("inf"), 0.0
        while time.monotonic() < deadline:
            timeout = 0.0 if self._is_closing else POLL if self._file else None
            ready = [key.fileobj for key, _ in self._selector.select(timeout)]
            for fileobj in ready:
                assert isinstance(fileobj, socket.socket)
                if fileobj is self._server:
                    self._accept()
                elif fileobj in self._clients:
                    self._read(fileobj)
                else:
                    self._woken.recv(64)
            if self._is_closing and not ready:
                break
            if self._is_closing:
                deadline = min(deadline, time.monotonic() + LAST_WORDS)
            if self._file and time.monotonic() >= next_look:
                next_look = time.monotonic() + POLL
                self._put(self._file.read())
        if self._file:
            self._put(self._file.read(is_complete=True))

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it has vanished, or too many files are open
            client, _ = self._server.accept()
            client.setblocking(False)
            self._selector.register(client, selectors.EVENT_READ)
            self._clients[client] = b""

    def _read(self, client: socket.socket) -> None:
        try:
            data = client.recv(2**18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        *lines, rest = (self._clients[client] + data).split(b"\n")
        for line in lines:
            self._handle(client, line)
        if data and len(rest) <= LONGEST_MESSAGE:
            self._clients[client] = rest
        else:
            self._drop(client)

    def _drop(self, client: socket.socket) -> None:
        del self._clients[client]
        with self._lock:
            self._stoppable.discard(client)
        self._selector.unregister(client)
        client.close()

    def _handle(self, client: socket.socket, line: bytes) -> None:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            return
        if not isinstance(message, dict):
            return
        if message.get("can_stop"):
            with self._lock:
                self._stoppable.add(client)
                if self._is_stopping:
                    _send_stop(client)
        modules, process = message.get("modules"), message.get("process")
        if isinstance(modules, list) and isinstance(process, int):
            variables = message.get("variables")
            self.variables[process] = variables if isinstance(variables, dict) else {}
            self.modules[process] = [name for name in modules if isinstance(name, str)]
        metrics = message.get("metrics")
        if isinstance(metrics, dict):
            source, step = str(message.get("from", "program")), parse_number(message.get("step"))
            numbers = {name: number for name, value in metrics.items() if (number := parse_number(value)) is not None}
            if numbers:
                self._receiver.put(Measurement(source, step, numbers))

    def _put(self, measurements: Iterator[Measurement]) -> None:
        for measurement in measurements:
            self._receiver.put(measurement)


def _make_folder() -> Path:
    """Return a new folder whose path leaves room for the name of a socket."""
    folder = tempfile.mkdtemp(prefix="sl-")
    if len(os.fsencode(folder)) + 2 > LONGEST_ADDRESS:
        os.rmdir(folder)
        folder = tempfile.mkdtemp(prefix="sl-", dir="/tmp")
    return Path(folder)


def _send_stop(client: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it has ended
        client.send(b"stop\n")
