"""Finds the literals of Python code by the names that lead to them."""

import ast
import re
from collections.abc import Iterable, Iterator

_Found = Iterator[tuple[str, ast.expr]]


def find_literals(source: str) -> Iterator[tuple[str, int, int]]:
    """Yield the literals of a module as (dotted place, start, end), with places in `source` as characters.

    A place begins with the names of the functions and classes around it. Then follow the variable, argument or
    attribute that takes the value, or the function that is called for no value. In these, keys of dicts, indices of
    lists, and names or indices of arguments follow. The arguments of a method that is called on what a call returns
    follow its name, e.g. net.to.0 of `net = Net(64).to("cuda")`.

    >>> source = "def main(seed=1):\\n    manual_seed(2)\\n    config = {'lr': 2e-5}\\n    net = Net(64, p=[0.5])"
    >>> {place: source[start:end] for place, start, end in find_literals(source)}
    {'main.seed': '1', 'main.manual_seed.0': '2', 'main.config.lr': '2e-5', 'main.net.0': '64', 'main.net.p.0': '0.5'}

    Raises:
        SyntaxError: It is not Python code of this version.
    """
    lines = re.split(r"(?<=\n)|(?<=\r)(?!\n)", source)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))

    def locate(line: int, column: int) -> int:  # a column counts bytes
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    for place, node in _find_in_body(ast.parse(source).body, ""):
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        yield place, locate(node.lineno, node.col_offset), locate(node.end_lineno, node.end_col_offset)


def _find_in_body(body: Iterable[ast.AST], scope: str) -> _Found:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _find_defaults(node.args, f"{scope}{node.name}.")
            yield from _find_in_body(node.body, f"{scope}{node.name}.")
        elif isinstance(node, ast.ClassDef):
            yield from _find_in_body(node.body, f"{scope}{node.name}.")
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if node.value is not None and (name := _find_name(target)):
                    yield from _find_in_value(node.value, scope + name)
        elif isinstance(node, ast.Expr | ast.Return) and isinstance(node.value, ast.Call):
            first = node.value  # of a chain like Trainer(9).fit(model)
            while isinstance(first.func, ast.Attribute) and isinstance(first.func.value, ast.Call):
                first = first.func.value
            if name := _find_name(first.func):
                yield from _find_in_value(node.value, scope + name)
        elif not isinstance(node, ast.expr):  # what holds further statements: if, for, while, with, try, match
            yield from _find_in_body(ast.iter_child_nodes(node), scope)


def _find_defaults(arguments: ast.arguments, scope: str) -> _Found:
    positional = [*arguments.posonlyargs, *arguments.args]
    with_default = positional[len(positional) - len(arguments.defaults) :]
    pairs = [*zip(with_default, arguments.defaults, strict=True)]
    pairs += [(name, value) for name, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if value]
    for argument, value in pairs:
        yield from _find_in_value(value, scope + argument.arg)


def _find_in_value(node: ast.expr, place: str) -> _Found:
    if _is_literal(node):
        yield place, node
    elif isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant):
                yield from _find_in_value(value, f"{place}.{key.value!s}")
    elif isinstance(node, ast.List | ast.Tuple):
        for index, item in enumerate(node.elts):
            yield from _find_in_value(item, f"{place}.{index}")
    elif isinstance(node, ast.Call):
        if isinstance(node.func, ast.Call):
            yield from _find_in_value(node.func, place)
        elif isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Call):
            yield from _find_in_value(node.func.value, place)
            place = f"{place}.{node.func.attr}"
        for index, argument in enumerate(node.args):
            yield from _find_in_value(argument, f"{place}.{index}")
        for keyword in node.keywords:
            if keyword.arg:
                yield from _find_in_value(keyword.value, f"{place}.{keyword.arg}")


def _is_literal(node: ast.expr) -> bool:
    """Return whether `node` is a constant or arithmetic with constants, like -1 or 32 * 1024."""
    parts = [part for part in ast.walk(node) if isinstance(part, ast.expr)]
    return all(isinstance(part, ast.Constant | ast.UnaryOp | ast.BinOp) for part in parts)


def _find_name(node: ast.expr) -> str:
    """Return the dotted name of what is set or called, for example "config.lr" of `config["lr"]`, or ""."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (name := _find_name(node.value)):
        return f"{name}.{node.attr}"
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and (name := _find_name(node.value)):
        return f"{name}.{node.slice.value!s}"
    return ""
