"""Finds the command for a function that takes no config: it reads the command line, or takes the parameters."""

import ast
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from searchlight.search.command.functions import (
    DEFINITIONS,
    assigns,
    find_function,
    find_missing,
    is_name,
    is_objective,
    list_arguments,
    list_imports,
    takes_parameters,
)
from searchlight.search.command.import_calls import find_calls
from searchlight.search.command.options import CALL_OBJECTIVE
from searchlight.search.errors import UsageError
from searchlight.search.task_source import find_module_file, find_package_root, get_module_name
from searchlight.trainables.command.call import CALL_FUNCTION
from searchlight.trainables.registry import find_tasks

# Libraries that parse the command line. A file that imports Ray has functions of a config, which report by Ray Train.
PARSERS = {"argparse", "click", "fire", "hydra", "jsonargparse", "simple_parsing", "typer", "tyro"}
PARSING = re.compile(r"parse_args|HfArgumentParser|FLAGS\b|DEFINE_")  # begins names of what these libraries do then
ALSO_PARSERS = {"absl", "transformers"}  # which most programs import for other things
# The arguments are the file, the function, and those of the program.
CALL = (
    "import os, runpy, sys; del sys.argv[0]; sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0])); "
    "name = sys.argv.pop(1); runpy.run_path(sys.argv[0])[name]()"
)


# The arguments are the module, the function, and those of the program.
CALL_MODULE = (
    "import importlib, sys; del sys.argv[0]; name = sys.argv.pop(1); "
    "getattr(importlib.import_module(sys.argv[0]), name)()"
)


def find_script_command(task: str, folder: Path, parameters: Collection[str] = ()) -> tuple[str, ...] | None:
    """Return the command that calls the function of a task, or None if it takes a config or does not exist.

    The file is read and not executed. A function that takes the parameters gets them. If the file calls the function,
    as `if __name__ == "__main__":` does, it is run as a script or module. Otherwise, Python loads it and calls the
    function.

    Args:
        task: A text like "train.py:main" or "package.module:main".
        folder: The folder in which relative paths begin, and modules are looked up.
        parameters: The names of those that the user gives to the task.

    Raises:
        UsageError: The function cannot be called with these parameters, or its file calls it when it is imported.
    """
    path, _, name = task.rpartition(":")
    module = None if path.endswith(".py") or task in find_tasks() else find_module_file(path, folder)
    file = folder / (module or path)
    if not file.is_file() or file.suffix != ".py":
        return None
    try:
        body = ast.parse(file.read_bytes()).body
    except (SyntaxError, ValueError):  # whoever imports it tells the problem
        return None
    function = find_function(body, name)
    if function is None:
        # A class is no variable; what makes one of a task does not train it.
        _refuse(find_calls(task, body) if assigns(body, name) else ())
        return None
    root = None if module else find_package_root(file)
    label = get_module_name(file, root) if root == folder else path  # which finds relative imports
    if is_objective(function, body):
        [(trial, _), *_] = list_arguments(function)
        remedy = "Give it a default, or name a function of the trial alone."
        _refuse(find_missing(task, function, [trial], remedy), find_calls(task, body))
        return (sys.executable, "-m", CALL_OBJECTIVE, label, name)
    if takes_parameters(function, body, parameters) and not _is_program(function, body, PARSERS):
        remedy = "Give it by --search or --set, or give it a default."
        _refuse(find_missing(task, function, parameters, remedy), find_calls(task, body))
        return (sys.executable, "-m", CALL_FUNCTION, label, name)
    if not _is_program(function, body, PARSERS | ALSO_PARSERS):
        _refuse(find_calls(task, body))
        return None
    is_called = _is_called(function, body)
    if module and is_called:
        return (sys.executable, "-m", f"{path}.__init__" if file.name == "__init__.py" else path)
    if module:
        return (sys.executable, "-c", CALL_MODULE, path, name)
    return (sys.executable, path) if is_called else (sys.executable, "-c", CALL, path, name)


def _refuse(*problems: Iterable[str]) -> None:
    if lines := [*chain(*problems)]:
        raise UsageError(*lines)


def _is_program(function: ast.FunctionDef, body: Sequence[ast.stmt], parsers: Collection[str]) -> bool:
    imported = list_imports(body)
    if "ray" in imported:
        return False
    names = {name for each in body for node in ast.walk(each) for name in _list_names(node)}
    decorators = [node.func if isinstance(node, ast.Call) else node for node in function.decorator_list]
    has_parser = not imported.isdisjoint(parsers) or any(map(PARSING.match, names))
    if has_parser and any(isinstance(node, ast.Attribute) and node.attr in ("command", "main") for node in decorators):
        return True  # of click, typer and Hydra
    if has_parser and _is_called(function, body):
        return True  # e.g. main(tyro.cli(Args)), main(parser.parse_args())
    if list_arguments(function) or function.args.vararg:
        return False
    return not function.args.kwarg or _is_called(function, body, is_bare=True)


def _list_names(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name):
            yield name


def _is_called(function: ast.FunctionDef, body: Sequence[ast.stmt], is_bare: bool = False) -> bool:
    """Return whether a file uses a function outside of others, or calls it there without arguments."""
    nodes = [node for each in body if not isinstance(each, DEFINITIONS) for node in ast.walk(each)]
    if is_bare:
        nodes = [node.func for node in nodes if isinstance(node, ast.Call) and not (node.args or node.keywords)]
    return any(is_name(node, function.name) for node in nodes)
