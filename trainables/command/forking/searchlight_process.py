"""What a forked process does not get of the one that forks it: open files, threads and buffers."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys

# It belongs to an allocator that starts it again in a forked process.
HARMLESS_THREADS = {"jemalloc_bg_thd"}
LIBRARIES = {"site-packages", "dist-packages"}
STANDARD = os.path.dirname(os.__file__)


def is_library(path: str) -> bool:
    """Return whether `path` belongs to Python or to an installed package."""
    return path.startswith(STANDARD + os.sep) or not LIBRARIES.isdisjoint(path.split(os.sep))


def list_open_files() -> set[tuple[str, str]]:
    """Return the number and the path of each open file."""
    opened = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the list itself
            opened.add((number, os.readlink(f"/proc/self/fd/{number}")))
    return opened


def find_thread() -> str:
    """Return which thread would be missing in a forked process, or ""."""
    if list_threads():
        # OpenBLAS ends its threads before a fork, and starts them when they are needed.
        process = os.fork()
        if process == 0:
            os._exit(0)
        os.waitpid(process, 0)
    return "".join(f"starts the thread {name}" for name in list_threads()[:1])


def list_threads() -> list[str]:
    """Return the names of other threads, also of those that Python does not know."""
    names = []
    for number in os.listdir("/proc/self/task"):
        if int(number) != os.getpid():
            with contextlib.suppress(OSError), open(f"/proc/self/task/{number}/comm", encoding="utf-8") as file:
                names.append(file.read().strip())
    return [name for name in names if name not in HARMLESS_THREADS]


def flush() -> None:
    """Write what is left in buffers, which forked processes would write again."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    ctypes.CDLL(None).fflush(None)
