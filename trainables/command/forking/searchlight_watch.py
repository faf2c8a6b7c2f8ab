"""Looks whether a program sets other variables before an import than the process that was forked had at this import."""

from __future__ import annotations

import contextlib
import importlib.machinery
import inspect
import os
import sys
import threading
import time
import types
from typing import Any

from searchlight_process import flush, is_library

LATEST_RESTART_S = 5.0  # of CPU time, after which a program is not begun again


class WatchedSpec(importlib.machinery.ModuleSpec):
    """The spec of a package that the program has not imported yet, but the process that was forked.

    Whenever a module is imported again, Python reads `_initializing` of its spec. Otherwise, no variable is compared.
    """

    watch: Watch

    def __getattr__(self, name: str) -> bool:
        if name != "_initializing":
            raise AttributeError(name)
        watch = self.watch
        del self.watch
        self.__class__ = importlib.machinery.ModuleSpec  # type: ignore[assignment]
        self._initializing = False
        watch.compare(self.name)
        return False


class Watch:
    """Looks whether the variables at the program's first import of a package are those with which it was imported.

    Args:
        python: The interpreter.
        expected: By package, variables with other values than at the start of the program.
    """

    def __init__(self, python: str, request: dict[str, Any], expected: dict[str, dict[str, str | None]]) -> None:
        self.python, self.request, self.expected = python, request, expected
        self.start = dict(os.environ)
        self.thread = os.getpid(), threading.get_ident()

    def watch(self, package: str) -> None:
        """Compare the variables when `package` is imported."""
        spec = getattr(sys.modules.get(package), "__spec__", None)
        if type(spec) is importlib.machinery.ModuleSpec and spec.name == package:
            vars(spec).pop("_initializing", None)
            vars(spec)["watch"] = self
            spec.__class__ = WatchedSpec

    def compare(self, package: str) -> None:
        """Start the program again as a new process if variables differ, or say so if it has done much."""
        if self.thread != (os.getpid(), threading.get_ident()) or not is_imported_by_program():
            return
        expected, now = {**self.start, **self.expected[package]}, dict(os.environ)
        differing = sorted(name for name in {**expected, **now} if expected.get(name) != now.get(name))
        if not differing:
            return
        names = ", ".join(differing)
        hook = sys.modules.get("searchlight_hook")
        if time.process_time() > LATEST_RESTART_S or (hook and hook.get_connection().is_used):
            print(f"searchlight: {package} was imported with other values of {names}; see --cold", file=sys.stderr)
            return
        print(f"searchlight: begins again as a new process, since {names} of other trials differ", file=sys.stderr)
        with contextlib.suppress(Exception):  # a stream may be closed
            flush()
        os.chdir(self.request["folder"])
        os.execve(self.python, self.request["argv"], self.request["environment"])


def is_imported_by_program() -> bool:
    """Return whether the import at which WatchedSpec is asked is in a file that is no library's."""
    frame: types.FrameType | None = inspect.currentframe()
    for _ in range(3):  # this function, `compare` and the spec
        frame = frame and frame.f_back
    while frame is not None and "importlib" in frame.f_code.co_filename:
        frame = frame.f_back
    return frame is not None and not is_library(frame.f_code.co_filename)
