"""Finds the command for a function that takes no config: it reads the command line, or takes the parameters."""

import ast
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from searchlight.search.command.options import CALL_OBJECTIVE, CALLS
from searchlight.search.command.targets import SEED
from searchlight.search.errors import UsageError
from searchlight.search.task_source import find_module_file
from searchlight.trainables.command.call import CALL_FUNCTION
from searchlight.trainables.registry import find_tasks

PARSER_CLASS = "HfArgumentParser"  # transformers has it, which many import for other things
# What parses the command line. A file that imports Ray has functions of a config, which report by Ray Train.
PARSERS = {
    "absl",
    "argparse",
    "click",
    "fire",
    "hydra",
    "jsonargparse",
    "simple_parsing",
    "typer",
    "tyro",
    PARSER_CLASS,
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

    The file is read and not executed. A function that takes the parameters gets them. If the file calls the function,
    as `if __name__ == "__main__":` does, it is run as a script or module. Otherwise, Python loads it and calls the
    function.

    Args:
        task: A text like "train.py:main" or "package.module:main".
        folder: The folder in which relative paths begin, and modules are looked up.
        parameters: The names of those that the user gives to the task.

    Raises:
        UsageError: The function cannot be called with these parameters.
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
    function = _find_function(body, name)
    others = [node for node in body if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)]
    is_called = any(_is_name(node, name) for statement in others for node in ast.walk(statement))
    if function is None:
        return None
    if _is_objective(function, body):
        _check_call(task, function, body)
        return (sys.executable, "-m", CALL_OBJECTIVE, path, name)
    if not _is_program(function, body, is_called):
        if not _takes_parameters(function, others, parameters):
            return None
        _check_call(task, function, body, [each for each in _list_required(function) if each not in parameters])
        return (sys.executable, "-m", CALL_FUNCTION, path, name)
    if module and is_called:
        return (sys.executable, "-m", f"{path}.__init__" if file.name == "__init__.py" else path)
    if module:
        return (sys.executable, "-c", CALL_MODULE, path, name)
    return (sys.executable, path) if is_called else (sys.executable, "-c", CALL, path, name)


def find_called_function(words: Sequence[str], trees: Sequence[ast.Module]) -> ast.FunctionDef | None:
    """Return the function that a command calls with the parameters, or None if it is another command.

    Args:
        trees: Those of the code that the command runs, its own file first.
    """
    return _find_function(trees[0].body, words[-1]) if trees and name_called_function(words) else None


def name_called_function(words: Sequence[str]) -> str:
    """Return what a function that a command calls with the parameters is called, or "" for another command.

    >>> name_called_function(("python", "-m", CALL_FUNCTION, "train.py", "evaluate"))
    'train.py:evaluate'
    """
    return ":".join(words[-2:]) if any(word in CALLS for word in words) else ""


def list_arguments(function: ast.FunctionDef) -> list[tuple[str, ast.expr | None]]:
    """Return the arguments of a function that have a name, with their defaults."""
    given = function.args
    named = [*given.posonlyargs, *given.args]
    defaults = [*[None] * (len(named) - len(given.defaults)), *given.defaults, *given.kw_defaults]
    return [(each.arg, default) for each, default in zip([*named, *given.kwonlyargs], defaults, strict=True)]


def _find_function(body: Sequence[ast.stmt], name: str) -> ast.FunctionDef | None:
    return next((node for node in reversed(body) if isinstance(node, ast.FunctionDef) and node.name == name), None)


def _is_program(function: ast.FunctionDef, body: Sequence[ast.stmt], is_called: bool) -> bool:
    imported = _list_imports(body)
    if "ray" in imported:
        return False
    decorators = [node.func if isinstance(node, ast.Call) else node for node in function.decorator_list]
    has_parser = bool(PARSERS & imported)
    if has_parser and any(isinstance(node, ast.Attribute) and node.attr in ("command", "main") for node in decorators):
        return True  # of click, typer and Hydra
    takes_values = bool(list_arguments(function) or function.args.vararg or function.args.kwarg)
    return not takes_values or (has_parser and is_called)  # e.g. main(tyro.cli(Args)), main(parser.parse_args())


def _takes_parameters(function: ast.FunctionDef, others: Sequence[ast.stmt], parameters: Collection[str]) -> bool:
    """Return whether a function takes the parameters themselves: it is not replaced, and its first argument no dict."""
    given = function.args
    targets = [target for node in others if isinstance(node, ast.Assign) for target in node.targets]
    is_replaced = bool(function.decorator_list) or any(_is_name(target, function.name) for target in targets)
    if is_replaced or given.posonlyargs or given.vararg:
        return False
    names = {name for name, _ in list_arguments(function)}
    if not given.args:
        return bool(given.kwarg or names & {*parameters})
    first = given.args[0].arg
    uses = [node for statement in function.body for node in ast.walk(statement)]
    is_dict = any(isinstance(node, ast.Subscript | ast.Attribute) and _is_name(node.value, first) for node in uses)
    is_dict |= any(isinstance(node, ast.keyword) and node.arg is None and _is_name(node.value, first) for node in uses)
    if first == "config" or is_dict or not names & {*parameters}:
        return False
    required = {*_list_required(function)}
    return first in parameters or len(required) > 1 or required <= {*parameters}  # a config is the only required one


def _list_required(function: ast.FunctionDef) -> list[str]:
    """Return the arguments without a default that only a user can give."""
    return [name for name, default in list_arguments(function) if default is None and name != SEED]


def _is_objective(function: ast.FunctionDef, body: Sequence[ast.stmt]) -> bool:
    """Return whether a function is an objective of Optuna: it takes a trial, and is not decorated."""
    names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    required = {*_list_required(function)}
    if function.decorator_list or not names or required != {names[0]}:
        return False
    uses = (node for statement in function.body for node in ast.walk(statement) if isinstance(node, ast.Attribute))
    suggests = any(node.attr.startswith("suggest_") and _is_name(node.value, names[0]) for node in uses)
    return suggests or (names[0] == "trial" and "optuna" in _list_imports(body))  # which it gives to other functions


def _check_call(task: str, function: ast.FunctionDef, body: Sequence[ast.stmt], missing: Collection[str] = ()) -> None:
    remedy = "Give it by --search or --set, or give it a default."
    problems = [f"{task} must get a value for its argument {name}, but gets none. {remedy}" for name in missing]
    reaching = {function.name}  # functions that call it, perhaps by another one
    functions = [node for node in body if isinstance(node, ast.FunctionDef)]
    while new := {each.name for each in functions if _uses_any(each, reaching)} - reaching:
        reaching |= new
    for statement in body:
        if isinstance(statement, ast.Expr | ast.Assign | ast.For | ast.With) and _calls_any(statement, reaching):
            rule = f"{task} must be called only below if __name__ == '__main__':, because each trial imports its file"
            problems.append(f"{rule}, but line {statement.lineno} calls it: {ast.unparse(statement):.100}")
    if problems:
        raise UsageError(*problems)


def _uses_any(tree: ast.AST, names: Collection[str]) -> bool:
    return any(isinstance(node, ast.Name) and node.id in names for node in ast.walk(tree))


def _calls_any(statement: ast.stmt, names: Collection[str]) -> bool:
    """Return whether a statement calls one of the functions, or gives one to a call, as an optimizer takes it."""
    calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call)]
    parts = [part for call in calls for part in (call.func, *call.args, *(each.value for each in call.keywords))]
    return any(isinstance(part, ast.Name) and part.id in names for part in parts)


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _list_imports(body: Sequence[ast.stmt]) -> set[str]:
    """Return the packages that the statements import, those inside functions included, and PARSER_CLASS if used."""
    found = set()
    for node in (node for statement in body for node in ast.walk(statement)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        found |= {name.partition(".")[0] for name in names}
        if (isinstance(node, ast.Attribute) and node.attr == PARSER_CLASS) or _is_name(node, PARSER_CLASS):
            found.add(PARSER_CLASS)
    return found
