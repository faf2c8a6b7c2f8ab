"""Starts Python programs as forks of a process that has their imports, since these often take longer than a trial."""

import contextlib
import json
import logging
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from searchlight.trainables.command.process import Process, open_process

logger = logging.getLogger(__name__)

FORKING = Path(__file__).resolve().parent / "forking" / "forking.py"
PLAN = "plan.json"
INTERPRETER = re.compile(r"python(\d+(\.\d+)*)?")
OPTIONS = re.compile(r"-[bBdOPqsSuv]+|-[XW].+")
OPTIONS_WITH_VALUE = ("-X", "-W")
OWN_PREFIX = "SEARCHLIGHT_"  # of variables, which differ between trials
VARIABLES = {
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # torch counts GPUs without CUDA, which a forked process could not use then
    "SEARCHLIGHT_SOCKET": "none",  # installs the hook, which connects when a program reports
}


@dataclass(frozen=True)
class PythonCommand:
    """A command that runs a script or a module.

    Attributes:
        python: The path of the interpreter.
        options: Those of the interpreter.
        script: The script, or "".
        module: The module, or "".
        arguments: Those of the script or module.
    """

    python: str
    options: tuple[str, ...]
    script: str
    module: str
    arguments: tuple[str, ...]


def parse_python_command(argv: Sequence[str], path: str | None, folder: Path) -> PythonCommand | None:
    """Return the parts of `python X.py ...` or `python -m X ...`, or None for any other command.

    Args:
        path: The variable PATH of the command.
        folder: The current folder of the command.
    """
    if not argv or not INTERPRETER.fullmatch(Path(argv[0]).name):
        return None
    python = str(folder / argv[0]) if os.sep in argv[0] else shutil.which(argv[0], path=path)
    end = 1
    while end < len(argv) and (OPTIONS.fullmatch(argv[end]) or argv[end] in OPTIONS_WITH_VALUE):
        end += 2 if argv[end] in OPTIONS_WITH_VALUE else 1
    options, rest = tuple(argv[1:end]), tuple(argv[end:])
    if python is None or not rest:
        return None
    if rest[0] == "-m" and len(rest) > 1:
        return PythonCommand(python, options, "", rest[1], rest[2:])
    if rest[0].endswith(".py") and not rest[0].startswith("-"):
        return PythonCommand(python, options, rest[0], "", rest[1:])
    return None


class ForkServer:
    """Starts the trials of a gang, one at a time. Programs in Python are forked when a process with imports is ready.

    Until then and for all other programs, it starts new processes. Only Linux tells what a process needs to know of
    itself before it forks.

    Args:
        on_note: Is called with what a user should know.
    """

    def __init__(self, on_note: Callable[[str], object] = logger.info) -> None:
        self._on_note = on_note
        self._server: _Server | None = None
        self._is_off = not Path("/proc/self/task").exists()
        self._sockets = socket.socketpair()  # from the start, so that it is no leak of a trial

    @property
    def needs_modules(self) -> bool:
        """Whether `prepare` still begins something."""
        return self._server is None and not self._is_off

    def prepare(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        modules: Sequence[str],
        variables: Mapping[str, Mapping[str, str | None]] | None = None,
    ) -> None:
        """Begin to import `modules`, those of libraries that a program `argv` has imported, for the next programs.

        Args:
            variables: By package, those that the program had changed when it imported the package.
        """
        command = parse_python_command(argv, environment.get("PATH"), folder)
        if command and modules and self.needs_modules:
            plan = {"modules": list(modules), "variables": dict(variables or {}), "dropped": {}}
            self._server = _Server(command, _select_common(environment), plan, *self._sockets)

    def open_process(self, argv: Sequence[str], environment: Mapping[str, str], folder: Path, output: int) -> Process:
        """Return a process that runs a program, as the function of this name does."""
        command = parse_python_command(argv, environment.get("PATH"), folder)
        if command and self._server and self._is_ready(self._server, 0.0):
            try:
                return self._server.fork(command, argv, environment, folder, output)
            except _CannotForkError as error:
                self._give_up(error)
        return open_process(argv, environment, folder, output)

    def wait(self) -> bool:
        """Wait for the imports. Return whether the next program in Python is forked."""
        while self._server and not self._is_ready(self._server, None):
            pass
        return self._server is not None

    def close(self) -> None:
        """End the process that forks. No program may run."""
        if self._server:
            self._server.close()
        for end in self._sockets:
            end.close()
        self._server, self._is_off = None, True

    def _is_ready(self, server: "_Server", timeout: float | None) -> bool:
        try:
            return server.is_ready(timeout)
        except _CannotForkError as error:
            self._give_up(error)
            return False

    def _give_up(self, error: "_CannotForkError") -> None:
        self._on_note(f"trials start as new processes and import for themselves, because {error}")
        self.close()


class _CannotForkError(Exception):
    """A process cannot be forked. The message says why."""


class _Server:
    """The process that imports and forks."""

    def __init__(
        self,
        command: PythonCommand,
        environment: Mapping[str, str],
        plan: Mapping[str, Any],
        end: socket.socket,
        other_end: socket.socket,
    ) -> None:
        self.command = command
        self.environment = environment
        self._folder = Path(tempfile.mkdtemp(prefix="searchlight-"))
        (self._folder / PLAN).write_text(json.dumps(plan), encoding="utf-8")
        self._socket = end
        self._lines = self._socket.makefile("rb", buffering=0)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._is_ready = False
        python = [command.python, *command.options]
        with other_end:
            self._process = subprocess.Popen(
                [*python, str(FORKING), str(other_end.fileno()), *python],
                env={**environment, **VARIABLES},
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,  # as programs have it, and Python looks at it when it starts
                stderr=subprocess.STDOUT,
                pass_fds=[other_end.fileno()],
                start_new_session=True,
            )

    def is_ready(self, timeout: float | None) -> bool:
        """Return whether all is imported, after at most `timeout` seconds. Raise _CannotForkError if it cannot be."""
        if not self._is_ready and (message := self.receive(timeout)) is not None:
            if "ready" not in message:
                raise _CannotForkError(message.get("failed", f"{self.command.python} has ended while it imported"))
            self._is_ready = True
            for name, problem in message["dropped"].items():
                logger.info("each trial imports %s itself, because it %s", name, problem)
        return self._is_ready

    def fork(
        self, command: PythonCommand, argv: Sequence[str], environment: Mapping[str, str], folder: Path, output: int
    ) -> "_ForkedProcess":
        """Return a process that runs `command`. Raise _CannotForkError if it would differ from a new process."""
        if (command.python, command.options) != (self.command.python, self.command.options):
            raise _CannotForkError("their interpreters differ")
        if differing := dict(_select_common(environment).items() ^ self.environment.items()):
            raise _CannotForkError(f"their environments differ in {', '.join(sorted(differing))}")
        request = {
            "argv": list(argv),
            "script": command.script,
            "module": command.module,
            "arguments": command.arguments,
            "environment": dict(environment),
            "folder": str(folder),
        }
        with contextlib.suppress(OSError):  # it has ended, and so has what it sends
            socket.send_fds(self._socket, [b"r"], [output])
            self._socket.sendall(json.dumps(request).encode() + b"\n")
        message = self.receive() or {}
        if "process" not in message:
            raise _CannotForkError(message.get("refused", "the process that forks them has ended"))
        return _ForkedProcess(message["process"], self)

    def receive(self, timeout: float | None = None) -> dict[str, Any] | None:
        """Return the next message, {} if the process has ended, or None if none comes within `timeout` seconds."""
        if not self._poll.poll(None if timeout is None else 1000 * timeout):
            return None
        line = b""
        with contextlib.suppress(ConnectionError):
            line = self._lines.readline()
        return dict(json.loads(line)) if line else {}

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._lines.close()
        shutil.rmtree(self._folder, ignore_errors=True)


class _ForkedProcess:
    """A program that the process which forks waits for, with the interface of subprocess.Popen."""

    def __init__(self, pid: int, server: _Server) -> None:
        self.pid = pid
        self._server = server
        self._code: int | None = None
        self._lock = threading.Lock()  # one thread may wait for the end, while another one asks

    def poll(self) -> int | None:
        self._receive(0.0)
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        end = None if timeout is None else time.monotonic() + timeout
        while self._code is None:
            left = None if end is None else end - time.monotonic()
            if timeout is not None and left is not None and left < 0:
                raise subprocess.TimeoutExpired([self._server.command.python], timeout)
            self._receive(left)
        return self._code

    def _receive(self, timeout: float | None) -> None:
        if not self._lock.acquire(timeout=-1 if timeout is None else timeout):
            return
        try:
            message = None if self._code is not None else self._server.receive(timeout)
            if message is not None:
                self._code = message.get("code", -signal.SIGKILL)
            if message == {}:  # nothing waits for the program any more
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.pid, signal.SIGKILL)
        finally:
            self._lock.release()


def _select_common(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not name.startswith(OWN_PREFIX)}
