"""The built-in tasks by name, the class of a task by its reference, and the modules that came with it."""

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:  # it imports torch, and a command line reads the names below
    from trainables.task import Task

# A built-in task is a folder of this package and a line here.
BUILT_IN_TASKS = {"arc": "trainables.arc:ArcTask", "liquid": "trainables.liquid:LiquidTask"}
OURS = ("search", "trainables")  # no user's module has such a name; they may have travelled along with them
MODELS = f"{Path(__file__).parents[1] / 'models'}{os.sep}"
RAY_FILES = "py_modules_files"  # Ray lays each file that travels into a folder of its own in there


def load_class(reference: str) -> "type[Task[Any]]":
    """Import and return the task class that "module:Class" names."""
    module, _, name = reference.partition(":")
    return cast("type[Task[Any]]", getattr(importlib.import_module(module), name))


class OwnModules:
    """The modules of a user's own task: a file, and what lies beside it.

    A task in a package, as the built-in ones are, has none: what is installed is imported once.
    """

    def __init__(self, reference: str) -> None:
        self._folder = _find_module_folder(reference.partition(":")[0])
        self._others: set[str] = set()  # thousands, and looked at once

    def forget(self) -> bool:
        """Let them be imported anew, for what they hold is what the last trial left there; whether there were any.

        Extension modules stay: they cannot be imported twice.
        """
        own = [name for name in sys.modules.keys() - self._others if self._is_own(name)]
        for name in own:
            del sys.modules[name]
        self._others.update(sys.modules)
        return bool(own)

    def _is_own(self, name: str) -> bool:
        file = vars(sys.modules[name]).get("__file__")  # not as an attribute: some modules import others when asked
        if not file or not self._folder or not file.startswith(self._folder) or not file.endswith(".py"):
            return False
        if name == "__main__" or name.partition(".")[0] in OURS or file.startswith(MODELS):
            return False
        return f"{os.sep}site-packages{os.sep}" not in file


def _find_module_folder(module: str) -> str | None:
    """The folder of a module that is in no package."""
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
