"""The program of a trial as a child process: started in a session of its own, read, and stopped with all it started."""

import contextlib
import io
import os
import re
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol

import psutil

from searchlight.trainables.filesystem.storage_errors import unwritable_errors

KEPT_LINES = 20  # of the output, for the message of a failure
LONGEST_LINE = 10_000  # bytes that are searched for metrics
LARGEST_OUTPUT = 2**25  # bytes of the file, of which the first and the last quarter are then kept
LARGEST_BLOCK = 2**16  # bytes that are read at once
READ_S = 2.0  # how long to read on when the program and all that it started have ended
POLL_S = 0.02
ORPHAN_S = 1.0  # between SIGTERM and SIGKILL if nobody hears the program any more: what it reports is lost
MARK = "SEARCHLIGHT_SOCKET"  # a variable whose value only the processes of one start of a program have
# Ends a group if the process that has started it dies in any way, since then the pipe ends without a line. It runs in
# the background, since Ray kills the children of a worker that ends.
GUARD = 'exec 3<&0; { read _ || { kill -TERM -"$1"; sleep "$2"; kill -KILL -"$1"; }; } <&3 >/dev/null 2>&1 &'


class Process(Protocol):
    """What a ChildProcess needs of a process, as subprocess.Popen has it."""

    @property
    def pid(self) -> int:
        """The identifier of the process."""

    def poll(self) -> int | None:
        """Return the exit code, or None."""

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code. Raise subprocess.TimeoutExpired after `timeout` seconds."""


class OutputReader:
    """Reads the output of a program from a pipe, in a thread, and appends it to a file.

    Of an output that is larger than LARGEST_OUTPUT, the file keeps the begin and the end. If the file takes no more,
    the lines are read on: else the program would wait.

    Args:
        pipe: The file descriptor to read from, which is closed at the end.
        path: The file.
        on_line: Is called with each line, in the thread.

    Attributes:
        error: Why the file takes no more, or None.
    """

    def __init__(self, pipe: int, path: Path, on_line: Callable[[str], object] = lambda line: None) -> None:
        self._pipe, self._path, self._on_line = pipe, path, on_line
        self.error: OSError | None = None
        self._last: deque[str] = deque(maxlen=KEPT_LINES)
        self._is_overwritten = False  # as the states of a progress bar are, which end with a carriage return
        self._left_out = 0  # bytes
        self._note = b""  # in the file, where bytes are left out
        self._thread = threading.Thread(target=self._read, daemon=True, name="output-reader")
        self._thread.start()

    def tail(self) -> str:
        """Return the last lines."""
        return "\n".join(self._last.copy())

    def close(self) -> None:
        """Wait until all output is read, but not long: a process that nothing ends may hold the pipe open."""
        self._thread.join(READ_S)

    def _read(self) -> None:
        rest = b""
        for block in self._keep_blocks():
            *parts, rest = re.split(rb"(\r\n|\r|\n)", rest + block)
            rest = rest[-LONGEST_LINE:]
            for line, end in zip(parts[::2], parts[1::2], strict=True):
                self._give(line, end)
        self._give(rest, b"\n")
        os.close(self._pipe)

    def _keep_blocks(self) -> Iterator[bytes]:
        """Yield what comes from the pipe, and append it to the file until that fails."""
        block = b""
        try:
            with unwritable_errors(self._path), self._path.open("a+b", buffering=0) as file:
                while block := os.read(self._pipe, LARGEST_BLOCK):
                    file.write(block)
                    if file.tell() > LARGEST_OUTPUT:
                        self._cut(file)
                    yield block
        except OSError as error:
            self.error = error
            yield block
            yield from iter(lambda: os.read(self._pipe, LARGEST_BLOCK), b"")

    def _cut(self, file: io.FileIO) -> None:
        """Leave out the middle of a file that is too large, also what was left out before."""
        kept, size = LARGEST_OUTPUT // 4, file.tell()
        file.seek(size - kept)
        end = file.read(kept) or b""
        self._left_out += size - 2 * kept - len(self._note)
        self._note = f"\n--- searchlight: {self._left_out} bytes are left out here ---\n".encode()
        file.truncate(kept)
        file.write(self._note + end)

    def _give(self, line: bytes, end: bytes) -> None:
        if line.strip():
            text = line[:LONGEST_LINE].decode(errors="replace")
            if self._is_overwritten and self._last:
                self._last.pop()
            self._last.append(text)
            self._on_line(text)
        if line.strip() or end != b"\r":  # a bar of tqdm begins with one, which overwrites nothing
            self._is_overwritten = end == b"\r"


class ChildProcess:
    """A process that leads a group and has begun.

    Args:
        process: The leader of the group.
        mark: The value of MARK in its environment. It finds processes that have left the group, as torchrun's do.
        grace: Seconds between SIGTERM and SIGKILL. If this process dies, they are ORPHAN_S.
    """

    def __init__(self, process: Process, output: OutputReader, mark: str, grace: float) -> None:
        self.output = output
        self._process = process
        self._mark = mark
        self._grace = grace
        self._guard = _start_guard(self.pid)

    @property
    def pid(self) -> int:
        """The identifier of the process and of its group."""
        return self._process.pid

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal, or None while the process runs."""
        return self._process.poll()

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the end and return the exit code, or None if the process runs on after `timeout` seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout)
        return None

    def signal(self, number: int) -> None:
        """Send a signal to all processes of the group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS refuses a group of zombies
            os.killpg(self.pid, number)

    def stop(self) -> None:
        """End the process by SIGTERM, and by SIGKILL after the grace. End all that it started."""
        started = list_processes(self.pid, self._mark)  # some may lose the leader that ends them
        self.signal(signal.SIGTERM)
        if self.wait(self._grace) is None:
            self.signal(signal.SIGKILL)
            self.wait()
        self.close(started)

    def close(self, started: Iterable[psutil.Process] = ()) -> None:
        """End what the process, which has ended, left running. Read the rest of its output."""
        left = {*started, *list_processes(self.pid, self._mark)}
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in left:
                with contextlib.suppress(psutil.Error):
                    process.send_signal(number)
            end = time.monotonic() + self._grace
            while (left := {process for process in left if _is_alive(process)}) and time.monotonic() < end:
                time.sleep(POLL_S)
        with contextlib.suppress(OSError), self._guard:  # something else may have ended the guard
            self._guard.write(b"done\n")
        self.output.close()


def open_process(argv: Sequence[str], environment: Mapping[str, str], folder: Path, output: int) -> Process:
    """Return a new process that runs a program without input. `output` is the file descriptor that it prints to."""
    return subprocess.Popen(
        argv,
        env=environment,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )


def start_process(
    argv: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    output: Path,
    on_line: Callable[[str], object] = lambda line: None,
    grace: float = 10.0,
    create: Callable[[Sequence[str], Mapping[str, str], Path, int], Process] = open_process,
) -> ChildProcess:
    """Start a program without input in `folder`, with `environment` alone, and append its output to `output`.

    Args:
        on_line: Is called with each line of the output, in another thread.
        grace: Seconds between SIGTERM and SIGKILL.
        create: Creates the process, as open_process does.

    Raises:
        OSError: There is no such program, or it cannot be started.
    """
    read_end, write_end = os.pipe()
    try:
        process = create(argv, environment, folder, write_end)
    except OSError:
        os.close(read_end)
        raise
    finally:
        os.close(write_end)
    return ChildProcess(process, OutputReader(read_end, output, on_line), environment.get(MARK, ""), grace)


def list_processes(group: int, mark: str = "") -> list[psutil.Process]:
    """Return the processes of a group, and those that have `mark` as the value of MARK, without zombies."""
    return [process for process in psutil.process_iter() if _belongs(process, group, mark) and _is_alive(process)]


def _belongs(process: psutil.Process, group: int, mark: str) -> bool:
    try:
        return os.getpgid(process.pid) == group or bool(mark and process.environ().get(MARK) == mark)
    except (OSError, psutil.Error):  # it has ended, or belongs to another user
        return False


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _start_guard(group: int) -> IO[bytes]:
    """Start what ends `group` when this process dies, unless a line is written to the returned pipe before."""
    words = ["/bin/sh", "-c", GUARD, "guard", str(group), str(ORPHAN_S)]
    shell = subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True)
    shell.wait()
    assert shell.stdin is not None
    return shell.stdin
