"""Finds the statements of a file that call a function when the file is imported."""

import ast
from collections.abc import Collection, Iterator, Sequence

from searchlight.search.command.functions import DEFINITIONS

# What calls the functions that it or its object gets, as optimizers and tuners do.
RUNNERS = {"fit", "fmin", "maximize", "minimize", "optimize", "run", "search", "submit", "tune"}
SCOPES = (*DEFINITIONS, ast.Lambda)  # not run where they are defined


def find_calls(task: str, body: Sequence[ast.stmt]) -> Iterator[str]:
    """Yield a line for each statement of a file that calls a function of it when the file is imported.

    Args:
        task: A text like "train.py:main".
    """
    name = task.rpartition(":")[2]
    calling = {name}  # and functions that call it, perhaps by another one
    holding = {name}  # and what is made of it, as in tuner = Tuner(objective)
    count = 0
    while count < len(calling) + len(holding):
        count = len(calling) + len(holding)
        for statement in body:
            own = _list_own_names(statement)
            nodes = [*_walk(statement)]
            held = _follow_assignments(nodes, holding - own)
            if not isinstance(statement, SCOPES):
                holding |= held
            elif isinstance(statement, ast.FunctionDef):
                results = [node.value for node in nodes if isinstance(node, ast.Return) and node.value]
                calling |= {statement.name} if _calls_any(nodes, calling - own, held) else set()
                holding |= {statement.name} if any(_list_names(each) & held for each in results) else set()
        holding |= calling
    for statement in body:
        is_run = not isinstance(statement, (*SCOPES, ast.If))
        if is_run and _calls_any([*_walk(statement)], calling, holding):
            rule = f"{task} must run only below \"if __name__ == '__main__':\", since each trial imports its file"
            yield f"{rule}, but line {statement.lineno} runs it: {ast.unparse(statement):.100}"


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that run with a statement, or within a function, unless the file is a script."""
    yield node
    for child in ast.iter_child_nodes(node):
        is_guard = isinstance(child, ast.If) and "__name__" in _list_names(child.test)
        if not is_guard and not isinstance(child, SCOPES):
            yield from _walk(child)


def _list_own_names(statement: ast.stmt) -> set[str]:
    """Return the names that have another meaning within a function."""
    if not isinstance(statement, ast.FunctionDef):
        return set()
    nodes = [*ast.walk(statement)][1:]
    arguments = {node.arg for node in nodes if isinstance(node, ast.arg)}
    return arguments | {node.name for node in nodes if isinstance(node, ast.FunctionDef)} | _list_stored(nodes)


def _follow_assignments(nodes: Sequence[ast.AST], holding: Collection[str]) -> set[str]:
    """Return the names that hold one of the functions after the statements."""
    held = {*holding}
    for node in nodes:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value and _list_names(node.value) & held:
            held |= _list_stored(ast.walk(node))
    return held


def _calls_any(nodes: Sequence[ast.AST], calling: Collection[str], holding: Collection[str]) -> bool:
    """Return whether a statement calls one of the functions, or what runs one that it holds."""
    for call in (node for node in nodes if isinstance(node, ast.Call)):
        match call.func:
            case ast.Name(id=name) if name in calling:
                return True
            case ast.Name(id="map") | ast.Attribute(attr="map"):
                parts = call.args[:1]
            case ast.Name(id=name) | ast.Attribute(attr=name) if name in RUNNERS:
                parts = [call.func, *call.args, *(each.value for each in call.keywords)]
            case _:
                continue
        if any(_list_names(part) & {*holding} for part in parts):
            return True
    return False


def _list_names(tree: ast.AST) -> set[str]:
    """Return the variables in a tree, except in texts about them as `function.__name__`."""
    nodes = [*ast.walk(tree)]
    texts = [node.value for node in nodes if isinstance(node, ast.Attribute) and node.attr.startswith("__")]
    return {node.id for node in nodes if isinstance(node, ast.Name) and node not in texts}


def _list_stored(nodes: Iterator[ast.AST] | Sequence[ast.AST]) -> set[str]:
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
