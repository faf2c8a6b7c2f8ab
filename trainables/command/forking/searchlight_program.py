"""Runs a script or a module in a forked process, as the command line of Python does."""

from __future__ import annotations

import builtins
import importlib.machinery
import os
import runpy
import sys
import types
from typing import Any

from searchlight_process import flush


def run(request: dict[str, Any]) -> int:
    """Run a script or a module as Python's command line does. Return its exit code, or raise what ends it otherwise."""
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if "__mp_main__" in sys.modules:
        sys.modules["__mp_main__"] = main  # as multiprocessing does when it is imported
    main.__builtins__ = builtins  # type: ignore[attr-defined]
    if sys.version_info < (3, 14):
        main.__annotations__ = {}
    try:
        if request["module"]:
            runpy._run_module_as_main(request["module"])  # type: ignore[attr-defined]
        else:
            exec(load(request["script"], main), vars(main))
    except SystemExit as error:
        if error.code is not None and not isinstance(error.code, int):
            raise  # a message
        return error.code or 0
    except BaseException as error:
        if not request["module"]:  # Python does not do so for modules
            flush()
        traceback = error.__traceback__
        while traceback is not None and traceback.tb_frame.f_code.co_filename == __file__:
            traceback = traceback.tb_next
        sys.excepthook(type(error), error.with_traceback(traceback), traceback)
        sys.excepthook = lambda *_: None
        raise  # sets the exit code
    return 0


def load(script: str, main: types.ModuleType) -> types.CodeType:
    """Return the code of a script, and set the attributes of its module."""
    path = script if sys.version_info < (3, 9) else os.path.join(os.getcwd(), script)
    main.__file__, main.__cached__ = path, None  # type: ignore[attr-defined]
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
    try:
        with open(path, "rb") as file:
            source = file.read()
    except OSError as error:
        reason = f"[Errno {error.errno}] {error.strerror}"
        print(f"{sys.executable}: can't open file {path!r}: {reason}", file=sys.stderr)
        sys.exit(2)
    return compile(source, path, "exec", dont_inherit=True)
