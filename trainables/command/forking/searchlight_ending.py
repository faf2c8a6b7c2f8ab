"""Ends a program whose libraries were imported before the fork."""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import os
import sys
import threading
import types
import weakref
from typing import Any

from searchlight_process import flush


class Ending:
    """The end of a program whose libraries were imported before the fork. It is created before the program begins.

    To free these libraries would take longer than many a trial, and copy their memory. Everything else ends as in
    Python: threads, exit functions, the modules and objects of the program, and open files.
    """

    def __init__(self) -> None:
        self.known = list(sys.modules.values())

    def end(self, code: int) -> None:
        """End this process. Python itself ends one with threads that it has to wait for."""
        if any(not thread.daemon and thread is not threading.main_thread() for thread in threading.enumerate()):
            sys.exit(code)
        with contextlib.suppress(BaseException):  # they are printed, and change no exit code
            atexit._run_exitfuncs()
        threading.excepthook = lambda *_: None
        with contextlib.suppress(Exception):  # a stream may be closed or broken, as for the next ones
            flush()
        sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__
        self.release_modules()
        close_files()
        with contextlib.suppress(Exception):
            flush()
        os._exit(code & 0xFF)

    def release_modules(self) -> None:
        """Free what the program has imported and made, as Python does: what is held nevertheless is emptied."""
        known = {id(module) for module in self.known}
        probes = []
        for name, module in list(sys.modules.items()):
            if id(module) not in known:
                del sys.modules[name]
                if isinstance(module, types.ModuleType):
                    probes.append(insert_probe(vars(module)))
        del name, module
        gc.collect()
        for reference in reversed(probes):
            probe = reference()
            if probe is not None:
                empty(probe.__globals__)
            del probe
        gc.collect()


def insert_probe(names: dict[str, Any]) -> weakref.ref[types.FunctionType]:
    """Return a reference to what lives as long as `names`, the content of a module, and knows it."""
    probe = types.FunctionType(insert_probe.__code__, names)
    names["__searchlight__"] = probe
    return weakref.ref(probe)


def empty(names: dict[str, Any]) -> None:
    """Let a module forget its objects, but not its code, which their finalizers use."""
    for name, value in list(names.items()):
        if name != "__builtins__" and not isinstance(value, (types.ModuleType, types.FunctionType, type)):
            names[name] = None


def close_files() -> None:
    """Write what is in the buffers of files that libraries hold open. A file comes before the one that it writes to."""
    streams = (sys.stdin, sys.stdout, sys.stderr)
    kept = {id(each) for stream in streams for each in (stream, getattr(stream, "buffer", None))}
    base = io.IOBase.__mro__[1]  # io.IOBase itself would ask each object for its class, and some import then
    found = [each for each in gc.get_objects() if issubclass(type(each), base) and id(each) not in kept]
    native = (io.BufferedWriter, io.BufferedRandom, io.BufferedRWPair)
    for is_next in (
        lambda file: isinstance(file, io.TextIOBase),
        lambda file: not isinstance(file, (io.TextIOBase, io.RawIOBase, *native)),  # such as GzipFile
        lambda file: isinstance(file, native),
    ):
        for file in filter(is_next, found):
            with contextlib.suppress(Exception):  # it is closed, broken or only half made
                file.close()
