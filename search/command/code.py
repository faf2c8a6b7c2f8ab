"""Finds the Python files of a program, of which a search keeps a copy."""

import ast
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from searchlight.search.command.options import CALLS
from searchlight.search.command.script import CALL_MODULE
from searchlight.search.task_source import find_imported_modules, find_module_file
from searchlight.trainables.command.file_values import read_source

STARTING = ("-m", "--module", CALL_MODULE, *CALLS)  # come before the name of a module


def find_code(words: Sequence[str], folder: Path) -> dict[str, Path]:
    """Return the script or module that a command runs, and the user's files that it imports, by their relative paths.

    Nothing is imported. A command that names no Python file of the user has no code.

    Args:
        folder: The user's folder.
    """
    scripts = (folder / word for word in words if word.endswith(".py"))
    if script := next((path for path in scripts if path.is_file()), None):
        modules = [script, *find_imported_modules(script).values()]
    elif module := _find_module(words, folder):
        top = folder / module.relative_to(folder).parts[0]
        modules = [module, *([top] if top != module else []), *find_imported_modules(top).values()]
    else:
        return {}
    root = folder if modules[0].is_relative_to(folder) else modules[0].parent
    files = [file for path in modules for file in ([path] if path.is_file() else sorted(path.rglob("*.py")))]
    # An empty __init__.py says nothing, and is in no record of a task's files.
    files = [file for file in files if "-packages" not in str(file) and file.stat().st_size]
    return {file.relative_to(root).as_posix(): file for file in files}


def read_trees(words: Sequence[str], folder: Path) -> list[ast.Module]:
    """Return the syntax trees of the files that `find_code` returns, without those that are no Python."""
    files, trees = [*find_code(words, folder).values()], list[ast.Module]()
    if not files and any(word in CALLS for word in words):  # a function outside of the folder
        files = [Path(words[-2] if words[-2].endswith(".py") else find_module_file(words[-2], folder) or "")]
    for path in files:
        with suppress(OSError, SyntaxError, ValueError):  # the program itself will say so
            trees.append(ast.parse(read_source(path)))
    return trees


def _find_module(words: Sequence[str], folder: Path) -> Path | None:
    """Return the file of the user's module that a command runs, or None."""
    for before, word in pairwise(words):
        if before in STARTING and word not in STARTING:
            names = [word] if before in CALLS else [f"{word}.__main__", word]
            found = [find_module_file(name, folder) for name in names]
            files = [Path(file) for file in found if file and file.startswith(f"{folder}/") and file.endswith(".py")]
            if files:
                return files[0]
    return None
