"""The installed tasks by name, the class of a task by its reference, and the modules of a user's task."""

import importlib
import importlib.util
import linecache
import os
import re
import sys
import sysconfig
import tomllib
import traceback
from collections.abc import Mapping
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:  # Task imports torch, and a command line reads the names below
    from searchlight.trainables.task import Task

PACKAGE = Path(__file__).parents[1]
TASKS = "searchlight.tasks"  # the group of entry points
FRAME = re.compile(r'^ *File "([^"<]+)", line (\d+), in (.+)$', re.MULTILINE)
TASK_FOLDER = "searchlight_task"  # no module of a user has this name
FORMER = "trainables"  # the name of searchlight.trainables when it was a package of its own
# A module of that name, for processes that a task spawns, such as the workers of a DataLoader.
FORMER_MODULE = f"""\
import sys
from searchlight import {FORMER}
from searchlight.trainables.registry import accept_former_names
accept_former_names()
sys.modules[__name__] = {FORMER}
"""


@cache
def find_tasks() -> dict[str, str]:
    """Return the references "module:Class" of all installed tasks by name, the built-in ones first.

    A package adds a task by an entry point of the group `searchlight.tasks`. A clone that is not installed has those of
    the built-in tasks in its pyproject.toml.
    """
    project = PACKAGE.resolve().parent / "pyproject.toml"
    text = project.read_text(encoding="utf-8") if project.is_file() else ""
    ours = tomllib.loads(text).get("project", {}).get("entry-points", {}).get(TASKS, {})
    return {**ours, **{point.name: point.value for point in entry_points(group=TASKS) if point.name not in ours}}


def load_class(reference: str) -> "type[Task[Any]]":
    """Import and return the task class of a reference "module:Class"."""
    accept_former_names()
    module, _, name = reference.partition(":")
    return cast("type[Task[Any]]", getattr(importlib.import_module(module), name))


class OwnModules:
    """The modules of a user's own task: its file and modules in the same folder.

    A task in an installed package, e.g. a built-in one, has none: these packages are imported once.
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
        # Not getattr: some modules import others on attribute access. An entry may be None, to block a library.
        file = getattr(sys.modules[name], "__dict__", {}).get("__file__")
        if not file or not self._folder or not file.startswith(self._folder) or not file.endswith(".py"):
            return False
        if name == "__main__" or file.startswith(f"{PACKAGE}{os.sep}"):
            return False
        return f"{os.sep}site-packages{os.sep}" not in file


def _find_module_folder(module: str) -> str | None:
    """Return the folder of a module that is not in an installed package, or None."""
    top, dot, _ = module.partition(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.origin or not spec.has_location:
        return None
    folder = Path(spec.origin).parents[1 if dot else 0]
    is_installed = dot and str(Path(spec.origin).resolve().parents[1]) not in _list_task_folders()
    return None if is_installed else f"{folder}{os.sep}"


def link_modules(folder: Path, code: Path | None) -> Path:
    """Create `folder` with links to Searchlight and to `code`, the copy of a task's modules, if any. Return `folder`.

    A process that has `folder` in PYTHONPATH imports this Searchlight, and finds the modules by `enter_task_folder`.
    Other processes of Ray, such as those of the task's own remote functions, import the modules from there, too. Files
    such as queue.py are left out: they would hide a module of the standard library from every process.
    """
    folder.mkdir()
    (folder / PACKAGE.name).symlink_to(PACKAGE.resolve())
    if code is not None and code.is_dir():
        (folder / TASK_FOLDER).symlink_to(code)
        for module in code.iterdir():
            if module.name != "__pycache__" and not is_library(module.name.removesuffix(".py")):
                (folder / module.name).symlink_to(module)
    if not {FORMER, f"{FORMER}.py"} & {link.name for link in folder.iterdir()} and not is_library(FORMER):
        (folder / f"{FORMER}.py").write_text(FORMER_MODULE, encoding="utf-8")
    return folder


def is_library(name: str) -> bool:
    """Return whether a top-level module of this name is installed, or belongs to Python or to Searchlight."""
    if name in sys.stdlib_module_names or name in (PACKAGE.name, "__main__"):
        return True
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):  # a module that was created without a spec
        return False
    return spec is not None and "-packages" in str(spec.origin)


def enter_task_folder() -> None:
    """Let this process import the modules of the user's task, as Python does for the folder of a script.

    A process of an installed task has no such folder.
    """
    sys.path[:0] = [folder for folder in _list_task_folders()[:1] if folder not in sys.path]


def get_python_path() -> str:
    """Return the PYTHONPATH with which another process finds what this one does, except the user's modules."""
    folders = _list_task_folders()
    return os.pathsep.join(entry for entry in sys.path if entry and entry not in folders)


def _list_task_folders() -> list[str]:
    return [str(path.resolve()) for entry in sys.path if (path := Path(entry, TASK_FOLDER)).is_dir()]


class _FormerNames:
    """Finds `trainables` for tasks of searches that began when it was no part of `searchlight`."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the spec of a former name, unless the user has a package of that name.

        In the root of a clone, Python finds this one by that name.
        """
        top, _, inner = name.partition(".")
        if top != FORMER:
            return None
        if inner:
            is_ours = sys.modules[top].__name__ != top
        else:
            found = PathFinder.find_spec(name)
            is_ours = found is None or Path(str(found.origin)).resolve() == (PACKAGE / FORMER / "__init__.py").resolve()
        return ModuleSpec(name, cast(Any, self)) if is_ours else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module of the present name, so that it is not loaded twice."""
        module = importlib.import_module(f"{PACKAGE.name}.{spec.name}")
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the spec, which the import has replaced."""
        module.__spec__ = getattr(module.__spec__, "loader_state", module.__spec__)


def accept_former_names() -> None:
    """Let tasks of searches that began earlier import `trainables`."""
    if not any(isinstance(finder, _FormerNames) for finder in sys.meta_path):
        sys.meta_path.insert(0, cast(Any, _FormerNames()))


def describe_missing_file(error: BaseException) -> str:
    """Return a remedy, to follow the message of `error`, if a task has opened a file by a relative path, or "".

    The file exists for the user, but not in the folder of a worker, which has the modules of the task alone.
    """
    name = error.filename if isinstance(error, FileNotFoundError) else None
    if not isinstance(name, str | os.PathLike) or os.path.isabs(name):
        return ""
    return ". Workers get no data files: give an absolute path"


def describe_missing_value(error: BaseException, config: Mapping[str, Any]) -> str:
    """Return a remedy, to follow the message of `error`, if a function asks its config for what it lacks, or "".

    The line that raised the error must have `config["key"]`, since a function may ask other dicts, too.
    """
    key = error.args[0] if isinstance(error, KeyError) and error.args else None
    if not isinstance(key, str):
        return ""
    *_, (frame, number) = traceback.walk_tb(error.__traceback__)
    line = linecache.getline(frame.f_code.co_filename, number)
    owners = [name for name, value in frame.f_locals.items() if isinstance(value, dict) and {*config} <= {*value}]
    is_asked = any(f"{owner}[{quote}{key}{quote}]" in line for owner in owners for quote in ("'", '"'))
    return f": the config has no value of that name; add --set {key}=VALUE" if is_asked else ""


def find_user_frame(stack: str) -> str:
    """Return the innermost frame of `stack` in the user's files, such as "my_task.py, line 7, in loss", or "".

    The path is relative to sys.path, since workers import a copy of the file.
    """
    frames = [frame for frame in FRAME.findall(stack) if not is_library_file(frame[0])]
    if not frames:
        return ""
    path, line, function = frames[-1]
    # A gang tells a stack of its workers, and has not entered their folder.
    folders = [entry for entry in (*sys.path, *_list_task_folders()) if entry and Path(path).is_relative_to(entry)]
    if folders:
        path = str(Path(path).relative_to(max(folders, key=len)))
    return f"{path}, line {line}, in {function}"


def is_library_file(path: str) -> bool:
    """Return whether the file at `path` is of Python, a package or Searchlight, but not of an installed task."""
    modules = (reference.partition(":")[0].replace(".", os.sep) for reference in find_tasks().values())
    if any(f"{os.sep}{module}{os.sep}" in path for module in modules):
        return False
    return "-packages/" in path or path.startswith((sysconfig.get_path("stdlib"), str(PACKAGE)))
