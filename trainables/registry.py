"""The built-in tasks by name, the class of a task by its reference, and the modules of a user's task."""

import importlib
import importlib.util
import os
import re
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:  # it imports torch, and a command line reads the names below
    from searchlight.trainables.task import Task

# To add a built-in task, add a folder to this package and a line here.
BUILT_IN_TASKS = {
    "arc": "searchlight.trainables.arc:ArcTask",
    "liquid": "searchlight.trainables.liquid:LiquidTask",
    "lm": "searchlight.trainables.lm:LmTask",
}
OURS = ("search", "trainables")  # Ray may ship these next to a user's modules
MODELS = f"{Path(__file__).parents[1] / 'models'}{os.sep}"
FRAME = re.compile(r'^ *File "([^"<]+)", line (\d+), in (.+)$', re.MULTILINE)
BUILT_IN_FOLDERS = tuple(f"/trainables/{name}/" for name in BUILT_IN_TASKS)
RAY_FILES = "py_modules_files"  # Ray puts each shipped file into a separate folder in it


def load_class(reference: str) -> "type[Task[Any]]":
    """Import and return the task class of a reference "module:Class"."""
    module, _, name = reference.partition(":")
    return cast("type[Task[Any]]", getattr(importlib.import_module(module), name))


class OwnModules:
    """The modules of a user's own task: its file and modules in the same folder.

    A task in a package, e.g. a built-in one, has none: installed packages are imported once.
    """

    def __init__(self, reference: str) -> None:
        self._folder = _find_module_folder(reference.partition(":")[0])
        self._others: set[str] = set()  # thousands of other modules, checked only once

    def forget(self) -> bool:
        """Remove them from sys.modules, so that no trial sees another's state. Return whether there were any.

        Extension modules stay, since they cannot be imported twice.
        """
        own = [name for name in sys.modules.keys() - self._others if self._is_own(name)]
        for name in own:
            del sys.modules[name]
        self._others.update(sys.modules)
        return bool(own)

    def _is_own(self, name: str) -> bool:
        file = vars(sys.modules[name]).get("__file__")  # not getattr: some modules import others on attribute access
        if not file or not self._folder or not file.startswith(self._folder) or not file.endswith(".py"):
            return False
        if name == "__main__" or name.partition(".")[0] in OURS or file.startswith(MODELS):
            return False
        return f"{os.sep}site-packages{os.sep}" not in file


def _find_module_folder(module: str) -> str | None:
    """Return the folder of a module that is not in a package, or None."""
    if "." in module:
        return None
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.origin or not spec.has_location:
        return None
    folder = Path(spec.origin).parent
    return f"{folder.parent if folder.parent.name == RAY_FILES else folder}{os.sep}"


def find_user_frame(stack: str) -> str:
    """Return the innermost frame of `stack` in the user's files, such as "my_task.py, line 7, in loss", or "".

    The path is relative to sys.path, since workers import a copy of the file.
    """
    frames = [frame for frame in FRAME.findall(stack) if not _is_library(frame[0])]
    if not frames:
        return ""
    path, line, function = frames[-1]
    folders = [entry for entry in sys.path if entry and Path(path).is_relative_to(entry)]
    if folders:
        path = str(Path(path).relative_to(max(folders, key=len)))
    return f"{path}, line {line}, in {function}"


def _is_library(path: str) -> bool:
    if any(task in path for task in BUILT_IN_FOLDERS):
        return False
    return "-packages/" in path or path.startswith((sysconfig.get_path("stdlib"), str(Path(__file__).parent)))
