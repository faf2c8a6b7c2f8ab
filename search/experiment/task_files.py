"""The files that a search keeps of its task: its code, also of a task without a file, its data, and its audit."""

import base64
import hashlib
import inspect
import itertools
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import cloudpickle

from searchlight.search.command.code import find_code
from searchlight.search.config import SearchConfig
from searchlight.search.errors import UsageError
from searchlight.search.folder.locations import process_folder
from searchlight.search.space.search_space import Space
from searchlight.search.storage.options import StorageOptions
from searchlight.search.study.study import SearchStudy
from searchlight.search.task_source import (
    TaskSource,
    check_target,
    find_imported_modules,
    find_loaded_modules,
    find_modules,
    load_task_source,
    locate_folder,
)
from searchlight.search.tracking.provenance import compute_digests
from searchlight.trainables.filesystem.paths import StoragePath
from searchlight.trainables.registry import PACKAGE

if TYPE_CHECKING:  # Task imports torch, and the search of a program needs none
    from searchlight.trainables.task import Task

LARGEST_MIB = 64  # every worker loads it again before each trial
CODE = "code"
EMPTY = hashlib.sha256(b"").hexdigest()  # of a file that marks a package: earlier versions recorded these as well
TASK_FILES = "files"
AUDIT_FILE = "preflight.json"


def resolve_task(config: SearchConfig) -> tuple[SearchConfig, TaskSource]:
    """Return `config` with its task as a text that a later process can load, and what that text means.

    A class or a function in a file becomes "path/to/file.py:Name". For one in a package, the search keeps a file that
    imports it. For one of a script or a notebook, it keeps a file with the pickled object.

    Raises:
        UsageError: The task cannot be used.
    """
    task = config.task
    if isinstance(task, str):
        return config, find_source(config)
    name, module = task.__name__, sys.modules.get(task.__module__)
    task_class = check_target(task, name)
    root = _find_root(module)
    is_named = _is_importable(module, task)
    is_installed = is_named and _is_installed(task.__module__, root)
    if is_named and "." not in task.__module__ and not is_installed:
        text = f"{root / task.__module__}.py:{name}"
        return config.model_copy(update={"task": text}), load_task_source(text)
    content = f"from {task.__module__} import {name}\n" if is_named else _pickle(task)
    file = _write(f"task_{name}.py", content)
    others = {} if is_installed else _find_neighbors(module, root, is_named)
    modules = {file.name: file, **others}
    # The search copies the file there before its first trial.
    text = f"{config.local_path / 'code' / file.name}:{name}"
    return config.model_copy(update={"task": text}), TaskSource(name, task_class, f"{file.stem}:{name}", modules)


def find_source(config: SearchConfig) -> TaskSource:
    """Return what the task of `config`, a text, means. Nothing of the program of a command is imported.

    Raises:
        UsageError: The task cannot be used.
    """
    if config.command:
        return TaskSource(config.task, None, "", find_code(config.command, locate_folder(Path(config.folder))))
    return load_task_source(config.task)


def _find_root(module: ModuleType | None) -> Path:
    """Return the folder that Python imports `module` and its neighbors from. A notebook has no file."""
    file, package = getattr(module, "__file__", None), getattr(module, "__package__", None)
    return Path(file).absolute().parents[len(package.split(".")) if package else 0] if file else Path.cwd()


def _find_neighbors(module: ModuleType | None, root: Path, is_named: bool) -> dict[str, Path]:
    """Return the file or package in `root` of the task's `module`, and those that it imports, by name.

    A notebook has no file whose text tells its imports: return all in `root`.
    """
    file = Path(getattr(module, "__file__", None) or "").absolute()
    if file.suffix != ".py" or not file.is_file():
        return {path.name: path for path in find_modules(root).values()}
    own = root / file.relative_to(root).parts[0]
    # A pickled object may refer to what was imported in a way that the text of its file does not show.
    loaded = {} if is_named else find_loaded_modules(root)
    return {own.name: own, **find_imported_modules(own), **loaded}


def _is_importable(module: ModuleType | None, task: Any) -> bool:
    """Return whether `module` is a file that has `task`, or has it again: a file that was changed is imported anew."""
    if module is None or module.__name__ == "__main__" or not getattr(module, "__file__", None):
        return False
    found = getattr(module, task.__name__, None)
    return [getattr(found, name, None) for name in ("__module__", "__qualname__")] == [module.__name__, task.__name__]


def _is_installed(module: str, root: Path) -> bool:
    return root.name in ("site-packages", "dist-packages") or module.partition(".")[0] == PACKAGE.name


def _pickle(task: Any) -> str:
    """Return the text of a module that has `task`, with what it refers to in its own module."""
    name = task.__name__
    try:
        content = cloudpickle.dumps(task)
    except Exception as error:  # whatever an object that the task refers to raises
        raise UsageError(
            f"task must be picklable, but {name} raised {type(error).__name__}: {error}. "
            "Create objects that cannot be pickled in build, or put the task into a file."
        ) from error
    if (size := len(content) / 2**20) > LARGEST_MIB:
        raise UsageError(
            f"task must have at most {LARGEST_MIB} MiB when it is pickled, but {name} has {size:.0f} with the objects "
            "that it refers to. Load them in build."
        )
    version = ".".join(map(str, sys.version_info[:2]))
    return (
        f'"""{name} as Python {version} pickled it: it was defined in a script or a notebook."""\n\n'
        "import base64\n\nimport cloudpickle\n\n"
        f'{name} = cloudpickle.loads(base64.b64decode("{base64.b64encode(content).decode()}"))\n'
    )


def _write(name: str, content: str) -> Path:
    """Write a file to a folder of this process, which has it until the search has a copy."""
    folder = process_folder() / "tasks" / hashlib.sha256(content.encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(content, encoding="utf-8")
    return folder / name


def record_code(study: SearchStudy, source: TaskSource, options: StorageOptions) -> list[str]:
    """Record the files that the task imports. Return a line about those that have changed since the search last ran."""
    before, current = study.metadata["files"], compute_digests(source.modules)
    before = {name: digest for name, digest in before.items() if digest != EMPTY or not name.endswith("/__init__.py")}
    changed = [name for name in sorted({**before, **current}) if before.get(name) != current.get(name)]
    # An older search has recorded files that it did not import.
    changed = [name for name in changed if {name, name.partition("/")[0]} & source.modules.keys()]
    if not changed:
        return []
    study.save_metadata({**study.metadata, "files": current})
    code, archived = options.local_path / CODE, ""
    if code.exists() and _is_outdated(code, source):  # else trials run the copy
        archived = f"; the earlier code is in {options.path / _get_archive(code).name}"
    return [f"{', '.join(changed)} changed since {options.name} last ran, and the new code is used{archived}"]


def copy_code(source: TaskSource, folder: Path) -> None:
    """Copy the modules of a task to the folder of its search, unless they are there. Archive an earlier copy.

    The copy is complete or absent: a search that is killed meanwhile must not resume with a part of its task.
    """
    code = folder / CODE
    if not source.modules or (code.exists() and not _is_outdated(code, source)):
        return
    unfinished = code.with_name(f"{CODE}.tmp")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    for name, path in source.modules.items():
        if path.is_dir():
            shutil.copytree(path, unfinished / name, ignore=shutil.ignore_patterns("__pycache__"))
            # Else a package of this name that is later on the path of a worker would win.
            (unfinished / name / "__init__.py").touch()
        else:
            (unfinished / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, unfinished / name)
    if code.exists():
        code.rename(_get_archive(code))
    unfinished.rename(code)


def _is_outdated(code: Path, source: TaskSource) -> bool:
    """Return whether the task imports a file whose copy has other content."""
    copies = compute_digests({name: path for name in source.modules if (path := code / name).exists()})
    return compute_digests(source.modules) != copies


def _get_archive(code: Path) -> Path:
    return next(path for n in itertools.count(1) if not (path := code.with_name(f"{CODE}-{n}")).exists())


def prepare_task_files(options: StorageOptions, task: "type[Task[Any]] | None", space: Space) -> StoragePath:
    """Let the task's `prepare` fill its folder in the search's folder, complete or not at all. Return its final path.

    A resumed search keeps its files. A task that prepares nothing has no folder. In a bucket, the folder exists once
    the search has begun. No files are left if `prepare` raises an error.
    """
    folder, kept = options.local_path / TASK_FILES, options.path / TASK_FILES
    if kept.exists() or task is None:
        return kept
    from searchlight.trainables.task import Task

    if inspect.getattr_static(task, "prepare") is Task.__dict__["prepare"]:
        return kept
    staging = folder.with_name(f"{TASK_FILES}.tmp")
    shutil.rmtree(staging, ignore_errors=True)  # of a driver that was killed
    staging.mkdir()
    try:
        task.prepare(space.build_config(space.get_defaults()), staging)
    except BaseException:  # also Ctrl-C: incomplete files must not pass for complete ones
        shutil.rmtree(staging)
        raise
    staging.rename(folder)
    return kept
