"""Finds the class of a task that the command line names, and the modules that its workers must import."""

import ast
import importlib
import importlib.util
import inspect
import re
import sys
import textwrap
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from searchlight.search.errors import UsageError, suggest_nearest
from searchlight.search.formatting import join_words
from searchlight.trainables.registry import BUILT_IN_TASKS, OURS, load_class
from searchlight.trainables.task import Task

DYNAMIC = {"importlib", "importlib.util", "pkgutil", "runpy"}  # imports that are only known at run time
DOTTED_NAME = re.compile(r"[A-Za-z_]\w*\.[\w.]*")  # name of a class in a text, which a library may import
ROOT = Path(__file__).resolve().parents[2]
OWN = [ROOT / name for name in ("search", "trainables", "models")]


@dataclass(frozen=True)
class TaskSource:
    """A task and what a worker needs to import it."""

    name: str
    task_class: type[Task[Any]] | None  # None for a plain Ray Train function
    reference: str  # "module:Class"
    modules: tuple[Path, ...]  # the Python files and packages next to the task's file; none for a built-in task
    imported: tuple[Path, ...]  # those that the task imports, directly or indirectly


def load_task_source(text: str) -> TaskSource:
    """Return the task that `text` names: a built-in one, "path/to/file.py:ClassName" or ":function".

    Raises:
        UsageError: The task, file or class does not exist, or the file cannot be imported.
    """
    if text in BUILT_IN_TASKS:
        return TaskSource(text, _load_built_in_task(text), BUILT_IN_TASKS[text], (), ())
    path_text, colon, name = text.rpartition(":")
    if not colon or not path_text.endswith(".py"):
        raise UsageError(
            f"task must be one of {', '.join(BUILT_IN_TASKS)} or like my_task.py:MyTask, but got {text!r}."
            + (f" {suggest_nearest(text, BUILT_IN_TASKS)}" if not text.endswith(".py") else f" Use {text}:YourTask.")
        )
    path = Path(path_text).resolve()
    if not path.is_file():
        raise UsageError(f"task must be a file that exists, but there is no {path}.")
    _check_module_name(path)
    modules = find_modules(path.parent, path.name)
    module = _import_module(path)
    target = getattr(module, name, None)
    found = [  # an imported function is not meant as the task
        key
        for key, value in vars(module).items()
        if _is_task(value) or (_is_trainable_function(value) and value.__module__ == module.__name__)
    ]
    hint = suggest_nearest(name, found) if found else "The file defines no task."
    if target is None:
        raise UsageError(f"{path.name} must define {name!r}, but does not. {hint}")
    task_class = check_target(target, text, hint)
    return TaskSource(name, task_class, f"{path.stem}:{name}", modules, _find_imported_modules(path, modules))


def check_target(target: Any, text: str, hint: str = "") -> type[Task[Any]] | None:
    """Return `target`, named `text` by the user, if it is a task class, or None for a training function.

    Raises:
        UsageError: It is neither, or the class is incomplete.
    """
    if _is_task(target):
        check_task_class(target, text)
    elif not _is_trainable_function(target):
        problem = "must be a class that derives from Task, or a function of a config, but is neither."
        raise UsageError(f"{text} {problem} {hint}".rstrip())
    return target if isinstance(target, type) else None


def _load_built_in_task(name: str) -> type[Task[Any]]:
    models = ROOT / "models"
    _forget_models(models)
    file = getattr(importlib.util.find_spec("models"), "origin", None)
    if file is None or not Path(file).resolve().is_relative_to(models):
        raise UsageError(f"task {name} must import the package models of Searchlight, but gets {file}. Rename that.")
    return load_class(BUILT_IN_TASKS[name])


def _forget_models(folder: Path) -> None:
    """Remove the module `models` from sys.modules unless it is in `folder`. Users may have a module of that name."""
    file = getattr(sys.modules.get("models"), "__file__", None)
    if file is not None and not Path(file).resolve().is_relative_to(folder):
        for name in [name for name in sys.modules if name.partition(".")[0] == "models"]:
            del sys.modules[name]


def _check_module_name(path: Path) -> None:
    if path.stem in sys.stdlib_module_names or not path.stem.isidentifier():
        raise UsageError(f"the file of a task must have a module name of its own, but got {path.name}. Rename it.")


def _import_module(path: Path) -> Any:
    if _has_models(path.parent):
        _forget_models(path.parent)
    if getattr(sys.modules.get(path.stem), "__file__", None) == str(path):
        del sys.modules[path.stem]  # in a notebook, the file may have changed since its import
    sys.path.insert(0, str(path.parent))
    try:
        with redirect_stdout(sys.stderr):  # standard output may be used for JSON
            module = importlib.import_module(path.stem)
    except (Exception, SystemExit) as error:  # importing runs the user's code, which may raise anything
        hint = _explain_models(error, path.parent)
        raise UsageError(f"{path} must be importable, but raised {type(error).__name__}: {error}{hint}") from error
    finally:
        sys.path.remove(str(path.parent))
    if Path(module.__file__ or "").resolve() != path:
        raise UsageError(f"{path.name} must not have the name of an installed module, but got {module.__file__}.")
    return module


def _has_models(folder: Path) -> bool:
    return (folder / "models.py").exists() or (folder / "models" / "__init__.py").exists()


def _explain_models(error: BaseException, folder: Path) -> str:
    """Return how to resolve an `error` at the import of `models`, which tasks in `folder` and Searchlight may have."""
    if folder == ROOT or not isinstance(error, ImportError) or (error.name or "").partition(".")[0] != "models":
        return ""
    if _has_models(folder):
        return ". The models next to it hides the package models of Searchlight. Rename it to use both."
    if (folder / "models").is_dir():
        return ". The folder models next to it must have a file __init__.py: Searchlight has a package of that name."
    return ""


def _is_task(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Task) and value is not Task


def _is_trainable_function(value: Any) -> bool:
    """Return whether `value` is a function that can be called with a config or without arguments."""
    for count in (0, 1) if inspect.isfunction(value) else ():
        with suppress(TypeError, ValueError):  # it has other arguments, or wraps a builtin
            inspect.signature(value).bind(*range(count))
            return True
    return False


def check_task_class(task_class: type[Task[Any]], text: str) -> None:
    if inspect.isabstract(task_class):
        missing = ", ".join(sorted(task_class.__abstractmethods__))
        raise UsageError(f"{text} must define {missing}, but does not.")
    if not isinstance(getattr(task_class, "objective", None), str):
        raise UsageError(
            f"{text} must name its objective, a metric of evaluate, but does not. Add e.g. objective = 'val/loss'."
        )
    if task_class.mode not in ("min", "max"):
        raise UsageError(f"{text} must have mode 'min' or 'max', but got {task_class.mode!r}.")
    try:
        task_class.config_class()
    except TypeError as error:
        raise UsageError(str(error)) from error


def find_model_problems(task_class: type[Task[Any]]) -> list[str]:
    """Return why a trained task cannot be logged as a model, as far as its class shows it."""
    names = _find_module_names(task_class)
    if len(names) < 2 or task_class.predict is not Task.predict:
        return []
    return [
        f"must come with a task of one module, or one that defines predict(self, inputs), but {task_class.__name__} "
        f"has {join_words(names)}. Define their common prediction: docs/models.md."
    ]


def _find_module_names(task_class: type[Task[Any]]) -> list[str]:
    """Return the names of the modules that `build` creates outside of branches and loops.

    It parses the source and does not call `build`, which may load data and need a GPU.
    """
    try:
        function: Any = ast.parse(textwrap.dedent(inspect.getsource(task_class.build))).body[0]
    except (OSError, SyntaxError, TypeError):  # no source, e.g. of a class that was created at run time
        return []
    names: list[str] = []
    for statement in getattr(function, "body", ()):  # a lambda has none
        for target in statement.targets if isinstance(statement, ast.Assign) else ():
            if ast.unparse(target) == "self.modules" and isinstance(statement.value, ast.Dict):
                names = [str(key.value) for key in statement.value.keys if isinstance(key, ast.Constant)]
            elif isinstance(target, ast.Subscript) and ast.unparse(target.value) == "self.modules":
                names += [str(target.slice.value)] if isinstance(target.slice, ast.Constant) else []
    return list(dict.fromkeys(names))


def find_modules(folder: Path, beside: str) -> tuple[Path, ...]:
    """Return all Python files and packages in `folder`, next to the task `beside`, which workers may need.

    Raises:
        UsageError: One of them would hide a module that every worker needs.
    """
    files = sorted(file for file in folder.glob("*.py") if file.stem.isidentifier())
    # A task in this project's folder, e.g. of a submitted job, is next to our packages, which every worker has.
    packages = sorted(init.parent for init in folder.glob("*/__init__.py") if init.parent not in OWN)
    needed = dict.fromkeys(sys.stdlib_module_names, "Ray") | dict.fromkeys(OURS, "Searchlight")
    for file in (file for file in (*files, *packages) if file.stem in needed):
        raise UsageError(
            f"no file next to {beside} must have the name of a module that {needed[file.stem]} needs, but {file.name} "
            "has. Rename it, or move the task to a folder without it."
        )
    return (*files, *packages)


def _find_imported_modules(path: Path, modules: Sequence[Path]) -> tuple[Path, ...]:
    """Return the `modules` that the file `path` imports, directly or indirectly.

    A package is returned as a whole. Return all modules if a file's imports are only known at run time.
    """
    by_name = {module.name.removesuffix(".py"): module for module in modules}
    found, pending = {path.stem}, [path]
    while pending:
        names = _list_imported_names(pending.pop())
        if names & DYNAMIC:
            return tuple(modules)
        new = {name.partition(".")[0] for name in names} & by_name.keys() - found
        found |= new
        for module in (by_name[name] for name in new):
            pending += [module] if module.is_file() else module.rglob("*.py")
    return tuple(module for name, module in by_name.items() if name in found)


def _list_imported_names(file: Path) -> set[str]:
    """Return the names of modules that `file` imports anywhere or that occur in its string constants."""
    try:
        nodes = [*ast.walk(ast.parse(file.read_bytes()))]
    except (SyntaxError, ValueError):  # nothing can import the file either
        return set()
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level}
    names |= {"importlib" for node in nodes if isinstance(node, ast.Name) and node.id == "__import__"}
    texts = (node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return names | {text for text in texts if DOTTED_NAME.fullmatch(text)}
