"""A task that is given as a class or a function: the file of it that workers, and later processes, import."""

import base64
import hashlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle

from searchlight.search.config import SearchConfig
from searchlight.search.errors import UsageError
from searchlight.search.folder.locations import process_folder
from searchlight.search.task_source import TaskSource, check_target, find_modules, load_task_source
from searchlight.trainables.registry import PACKAGE

LARGEST_MIB = 64  # every worker loads it again before each trial


def resolve_task(config: SearchConfig) -> tuple[SearchConfig, TaskSource]:
    """Return `config` with its task as a text that a later process can load, and what that text means.

    A class or a function in a file becomes "path/to/file.py:Name". For one in a package, the search keeps a file that
    imports it. For one of a script or a notebook, it keeps a file with the pickled object.

    Raises:
        UsageError: The task cannot be used.
    """
    task = config.task
    if isinstance(task, str):
        return config, load_task_source(task)
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
    # What a pickled object imports is not known before it runs.
    others = () if is_installed else find_modules(root).values()
    modules = {module.name: module for module in (file, *others)}
    # The search copies the file there before its first trial.
    text = f"{config.local_path / 'code' / file.name}:{name}"
    return config.model_copy(update={"task": text}), TaskSource(name, task_class, f"{file.stem}:{name}", modules)


def _find_root(module: ModuleType | None) -> Path:
    """Return the folder that Python imports `module` and its neighbors from. A notebook has no file."""
    file, package = getattr(module, "__file__", None), getattr(module, "__package__", None)
    return Path(file).absolute().parents[len(package.split(".")) if package else 0] if file else Path.cwd()


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
