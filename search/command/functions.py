"""Reads from the code of a function how it is called: with a config, with the parameters, or with a trial of Optuna."""

import ast
import difflib
from collections.abc import Collection, Iterator, Sequence

from searchlight.search.command.flags import EPOCHS
from searchlight.search.command.options import CALLS
from searchlight.search.command.targets import SEED

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
CONFIGS = {"args", "cfg", "conf", "config", "hparams", "params"}  # what functions of a config call it
DICT_METHODS = {"copy", "get", "items", "keys", "pop", "setdefault", "update", "values"}
DECORATING = {"contextlib", "functools", "jax", "torch"}  # libraries whose decorators keep the arguments
NEAR = 0.75  # similarity of a misspelt name


def find_function(body: Sequence[ast.stmt], name: str) -> ast.FunctionDef | None:
    """Return the last function of a name, or None."""
    return next((node for node in reversed(body) if isinstance(node, ast.FunctionDef) and node.name == name), None)


def find_called_function(words: Sequence[str], trees: Sequence[ast.Module]) -> ast.FunctionDef | None:
    """Return the function that a command calls with the parameters, or None if it is another command.

    Args:
        trees: Those of the code that the command runs, its own file first.
    """
    return find_function(trees[0].body, words[-1]) if trees and name_called_function(words) else None


def name_called_function(words: Sequence[str]) -> str:
    """Return what a function that a command calls with the parameters is called, or "" for another command.

    >>> name_called_function(("python", "-m", CALLS[0], "train.py", "evaluate"))
    'train.py:evaluate'
    """
    return ":".join(words[-2:]) if any(word in CALLS for word in words) else ""


def find_reached_code(trees: Sequence[ast.Module], name: str) -> list[ast.stmt]:
    """Return the functions and classes that a function of the first file uses, itself included.

    A name stands for the definition in its own file, or else for all of that name in other files.
    """
    files = [{node.name: node for node in tree.body if isinstance(node, DEFINITIONS)} for tree in trees]
    pending = [(0, name)] if files and name in files[0] else []
    reached: dict[tuple[int, str], ast.stmt] = {}
    while pending:
        file, used = pending.pop()
        if (file, used) in reached:
            continue
        reached[file, used] = files[file][used]
        for node in ast.walk(files[file][used]):
            match node:
                case ast.Name(id=other) | ast.Attribute(value=ast.Name(), attr=other):
                    others = [place for place, found in enumerate(files) if other in found]
                    pending += [(place, other) for place in ([file] if file in others else others)]
    return [*reached.values()]


def list_arguments(function: ast.FunctionDef) -> list[tuple[str, ast.expr | None]]:
    """Return the arguments of a function that have a name, with their defaults."""
    given = function.args
    named = [*given.posonlyargs, *given.args]
    defaults = [*[None] * (len(named) - len(given.defaults)), *given.defaults, *given.kw_defaults]
    return [(each.arg, default) for each, default in zip([*named, *given.kwonlyargs], defaults, strict=True)]


def takes_parameters(function: ast.FunctionDef, body: Sequence[ast.stmt], parameters: Collection[str]) -> bool:
    """Return whether a function takes the parameters themselves: it has their names, and takes no dict.

    A misspelt name counts, since then the user is told the right one.

    Args:
        body: The file of the function.
    """
    given = function.args
    roots = {ast.unparse(each).partition(".")[0] for each in function.decorator_list}
    if assigns(body, function.name) or given.posonlyargs or given.vararg or roots - DECORATING:
        return False  # what replaces or decorates it may turn a config into arguments
    own = [name for name, _ in list_arguments(function)]
    named = [name for name in parameters if name not in (EPOCHS, SEED)]
    if not given.args:
        return bool(given.kwarg or {*named} & {*own})
    first = given.args[0].arg
    if not named or first in CONFIGS or _is_dict(function, first):
        return False
    is_near = [bool(difflib.get_close_matches(name, own, n=1, cutoff=NEAR)) for name in named]
    return first in named or ("ray" not in list_imports(body) and {*named} <= {*own}) or (len(own) > 1 and all(is_near))


def is_objective(function: ast.FunctionDef, body: Sequence[ast.stmt]) -> bool:
    """Return whether a function takes a trial of Optuna, and is not decorated.

    Args:
        body: The file of the function.
    """
    names = [name for name, _ in list_arguments(function)]
    if function.decorator_list or not names:
        return False
    uses = (node for statement in function.body for node in ast.walk(statement) if isinstance(node, ast.Attribute))
    suggests = any(node.attr.startswith("suggest_") and is_name(node.value, names[0]) for node in uses)
    # It may give the trial to other functions.
    return suggests or (names[0] == "trial" and "optuna" in list_imports(body) and not _is_dict(function, "trial"))


def find_missing(task: str, function: ast.FunctionDef, given: Collection[str], remedy: str) -> Iterator[str]:
    """Yield a line for each argument without a default that gets no value. The search gives the seed."""
    for name, default in list_arguments(function):
        if default is None and name not in (*given, SEED):
            yield f"{task} must get a value for its argument {name}, but gets none. {remedy}"


def assigns(body: Sequence[ast.stmt], name: str) -> bool:
    """Return whether statements assign a variable of a name."""
    return any(is_name(target, name) for node in body if isinstance(node, ast.Assign) for target in node.targets)


def is_name(node: ast.AST, name: str) -> bool:
    """Return whether an expression is the variable of a name."""
    return isinstance(node, ast.Name) and node.id == name


def list_imports(body: Sequence[ast.stmt]) -> set[str]:
    """Return the packages that the statements import, those inside functions included."""
    found = set()
    for node in (node for statement in body for node in ast.walk(statement)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        found |= {name.partition(".")[0] for name in names}
    return found


def _is_dict(function: ast.FunctionDef, name: str) -> bool:
    """Return whether a function takes an argument for a dict of parameters."""
    for node in (node for statement in function.body for node in ast.walk(statement)):
        match node:
            case ast.Subscript(value=ast.Name(id=owner), slice=ast.Constant(value=str())) if owner == name:
                return True
            case ast.Attribute(value=ast.Name(id=owner), attr=method) if owner == name and method in DICT_METHODS:
                return True
            case ast.keyword(arg=None, value=ast.Name(id=owner)) if owner == name:
                return True
    return False
