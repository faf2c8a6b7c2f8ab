"""Removes Ray's session when a search ends or is killed, with all processes that began in it.

Runs in a separate process, which must stay small.
"""

import os
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

GRACE_S = 5.0  # most of Ray's processes end automatically after the driver
ENDED_GRACE_S = 0.5  # after Ray has ended: what is left was started by trials
LIMIT_S = 20.0


def clean(folder: Path) -> None:
    """Wait until standard input is closed. Then end the remaining processes of the session and remove `folder`."""
    is_killed = not sys.stdin.read()  # a search that ends normally writes a line, and has ended its Ray
    end_session_processes(folder, GRACE_S if is_killed else ENDED_GRACE_S)
    remove(folder)


def end_session_processes(folder: Path, grace_s: float) -> None:
    """Kill processes of the session in `folder` that do not end within `grace_s` seconds. Wait for their end."""
    began = time.monotonic()
    while time.monotonic() - began < LIMIT_S and (left := find_session_processes(folder)):
        if time.monotonic() - began >= grace_s:
            for process in left:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        time.sleep(0.2)


def remove(folder: Path) -> None:
    """Remove `folder`. Retry, since a process that is ending may still write into it."""
    for _ in range(20):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.1)


def find_session_processes(folder: Path) -> list[int]:
    """Return this user's processes of the session in `folder`: those of Ray, and what trials have started. Needs /proc.

    Programs have `folder` in the PYTHONPATH that they began with, also in a session of their own and after the end of
    their parent. Ray's workers overwrite it with their title, which their forks copy; they have a log in `folder`.
    """
    found = []
    for descriptors in Path("/proc").glob("[0-9]*/fd"):
        try:
            command, environment = ((descriptors.parent / name).read_bytes() for name in ("cmdline", "environ"))
            files = [os.readlink(file) for file in descriptors.iterdir()]
        except OSError:  # it ended, or belongs to another user
            continue
        of_ray = command.startswith(b"ray::") or b"/ray/" in command
        has_log = any(file.startswith(f"{folder}/") for file in files)
        if f"{folder}/".encode() in environment or (of_ray and has_log):
            found.append(int(descriptors.parent.name))
    return found


if __name__ == "__main__":
    clean(Path(sys.argv[1]))
