"""Tells which functions are programs: they take their values from the command line, and no config."""

import ast
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from searchlight.search.errors import UsageError
from searchlight.search.formatting import join_words
from searchlight.search.task_source import find_module_file
from searchlight.trainables.registry import find_tasks

# Libraries that parse the command line. A file that imports Ray has functions of a config, which report by Ray Train.
PARSERS = {
    "absl",
    "argparse",
    "click",
    "fire",
    "hydra",
    "jsonargparse",
    "simple_parsing",
    "transformers",
    "typer",
    "tyro",
}
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

    The file is read and not executed. If it calls the function, as `if __name__ == "__main__":` does, it is run as a
    script or module. Otherwise, Python loads it and calls the function.

    Args:
        task: A text like "train.py:main" or "package.module:main".
        folder: The folder in which relative paths begin, and modules are looked up.
        parameters: The names of those that the user gives to the task.

    Raises:
        UsageError: The function takes the parameters themselves.
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
    functions = [node for node in body if isinstance(node, ast.FunctionDef) and node.name == name]
    others = [node for node in body if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)]
    is_called = any(_is_name(node, name) for statement in others for node in ast.walk(statement))
    if not functions:
        return None
    if not _is_program(functions[-1], body, is_called):
        names = [argument.arg for argument in functions[-1].args.args]
        if names and names[0] in parameters and _takes_values(functions[-1], others):
            rule = f"{task} must take one config, as in def {name}(config), but takes {join_words(names)}."
            call = f"{name}({names[0]}=searchlight.params()[{names[0]!r}])"
            raise UsageError(f"{rule} Or search a script that calls it: {call}")
        return None
    if module and is_called:
        return (sys.executable, "-m", f"{path}.__init__" if file.name == "__init__.py" else path)
    if module:
        return (sys.executable, "-c", CALL_MODULE, path, name)
    return (sys.executable, path) if is_called else (sys.executable, "-c", CALL, path, name)


def _is_program(function: ast.FunctionDef, body: Sequence[ast.stmt], is_called: bool) -> bool:
    imported = _list_imports(body)
    if "ray" in imported:
        return False
    decorators = [node.func if isinstance(node, ast.Call) else node for node in function.decorator_list]
    has_parser = bool(PARSERS & imported)
    if has_parser and any(isinstance(node, ast.Attribute) and node.attr in ("command", "main") for node in decorators):
        return True  # of click, typer and Hydra
    arguments = function.args
    takes_values = any((arguments.posonlyargs, arguments.args, arguments.kwonlyargs, arguments.vararg))
    return not takes_values or (has_parser and is_called)  # e.g. main(tyro.cli(Args)), main(parser.parse_args())


def _takes_values(function: ast.FunctionDef, others: Sequence[ast.stmt]) -> bool:
    """Return whether a function is no function of a config: it is not replaced, and its first argument is no dict."""
    first = function.args.args[0].arg
    uses = [node for statement in function.body for node in ast.walk(statement)]
    is_dict = any(isinstance(node, ast.Subscript | ast.Attribute) and _is_name(node.value, first) for node in uses)
    is_dict |= any(isinstance(node, ast.keyword) and node.arg is None and _is_name(node.value, first) for node in uses)
    targets = [target for node in others if isinstance(node, ast.Assign) for target in node.targets]
    is_replaced = bool(function.decorator_list) or any(_is_name(target, function.name) for target in targets)
    return first != "config" and not is_dict and not is_replaced


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _list_imports(body: Sequence[ast.stmt]) -> set[str]:
    """Return the packages that the statements import, those inside functions included."""
    found = set()
    for node in (node for statement in body for node in ast.walk(statement)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        found |= {name.partition(".")[0] for name in names}
    return found
