"""Reads the search space of an objective of Optuna from its code."""

import ast
import inspect
import re
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import BaseTrial

from searchlight.search.command.code import read_trees
from searchlight.search.command.functions import find_reached_code, name_called_function
from searchlight.search.command.options import CALL_OBJECTIVE
from searchlight.search.errors import UsageError
from searchlight.search.space.function_config import build_function_config
from searchlight.search.space.space_parsing import parse_distribution
from searchlight.trainables.command.template import format_value

KINDS = ("float", "int", "categorical", "uniform", "loguniform", "discrete_uniform")
READING = {"get", "items", "keys", "values"}  # methods that change nothing
METHODS = [f"suggest_{kind}" for kind in KINDS]
WORD = re.compile(r"[A-Za-z_](?:[\w+/-]|\.(?!\.))*")  # a choice that needs no quotes


@dataclass(frozen=True)
class Suggestions:
    """What an objective suggests.

    Attributes:
        spaces: By the name of a parameter, the text of its --search, or "" if only the running code knows it.
        patterns: The same by an expression that names match which only the running code knows.
        calls: By the name or the expression, the call in the code.
    """

    spaces: dict[str, str] = field(default_factory=dict)
    patterns: dict[str, str] = field(default_factory=dict)
    calls: dict[str, str] = field(default_factory=dict)


def read_suggestions(trees: Sequence[ast.Module], objective: str) -> Suggestions:
    """Return what an objective and the functions that it uses suggest.

    Args:
        trees: Those of its file and of others, whose constants they may use.

    >>> calls = "trial.suggest_float('lr', 1e-5, 0.1, log=True), trial.suggest_int(f'width{i}', 8, 64)"
    >>> code = f"def objective(trial): {calls}"
    >>> found = read_suggestions([ast.parse(code)], "objective")
    >>> found.spaces, found.patterns
    ({'lr': '1e-05..0.1:log'}, {'width.+': '8..64'})
    """
    found, constants = Suggestions(), _find_constants(trees)
    code = find_reached_code(trees, objective)
    for node in (node for part in code for node in ast.walk(part)):
        match node:
            case ast.Call(func=ast.Attribute(attr=method)) if method in METHODS:
                given = _bind(node, method, constants)
                name, spaces = given.pop("name"), found.spaces
                if not isinstance(name, str):
                    name, spaces = _find_pattern(_find_name(node)), found.patterns
                space = _write_space(method.removeprefix("suggest_"), given)
                spaces[name] = space if spaces.get(name, space) == space else ""
                found.calls[name] = ast.unparse(node)
    return found


def add_suggestions(
    words: Sequence[str], folder: Path, searched: Mapping[str, str], fixed: Collection[str]
) -> dict[str, str]:
    """Return the search space of an objective that a command calls: `searched`, and what its code suggests besides.

    Args:
        words: Those of any command. Another one suggests nothing.
        fixed: The names of parameters that are not searched.

    Raises:
        UsageError: The code does not say what it suggests, and `searched` and `fixed` lack it as well.
    """
    if CALL_OBJECTIVE not in words:
        return {**searched}
    found = read_suggestions(read_trees(words, folder), words[-1])
    given, objective = {*searched, *fixed}, name_called_function(words)
    problems = [
        f"{objective} suggests {name} by more than literals and constants: {found.calls[name]}. "
        f"Give --search {name}=... or --set {name}=..."
        for name, space in found.spaces.items()
        if not space and name not in given
    ]
    problems += [
        f"{objective} suggests names that only its running code knows: {found.calls[pattern]}. "
        f"Give each that a trial can ask for, e.g. --search {_write_example(pattern)}={space or '...'}"
        for pattern, space in found.patterns.items()
        if not any(re.fullmatch(pattern, name) for name in given)
    ]
    if problems:
        raise UsageError(*problems)
    return {**{name: space for name, space in found.spaces.items() if name not in given}, **searched}


def _find_constants(trees: Sequence[ast.Module]) -> dict[str, Any]:
    """Return the variables of files that have one value, which is a literal, by name.

    A name that is bound twice in any file is left out, and so is one that may be changed in its place.
    """
    values: dict[str, Any] = {}
    for statement in (statement for tree in trees for statement in tree.body):
        match statement:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=value)
            ):
                values[name] = _read(value, {})
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=parts)):
                named = zip(targets, parts, strict=False)
                values |= {each.id: _read(part, {}) for each, part in named if isinstance(each, ast.Name)}
    bound = Counter(name for tree in trees for node in ast.walk(tree) for name in _list_bound(node))
    return {name: value for name, value in values.items() if value is not ... and bound[name] == 1}


def _list_bound(node: ast.AST) -> Iterator[str]:
    """Yield the names to which a node gives a value, or whose value it may change."""
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name):
            yield name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.alias(name=name, asname=other):
            yield other or name.partition(".")[0]
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            yield name
        case ast.MatchMapping(rest=str(name)):
            yield name
        case ast.Global(names=names) | ast.Nonlocal(names=names):
            yield from names
        case ast.Subscript(value=ast.Name(id=name), ctx=ast.Store() | ast.Del()):
            yield name
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)) if method not in READING:
            yield name


def _read(node: ast.expr | None, constants: Mapping[str, Any]) -> Any:
    """Return the value of a literal, of a constant, or of an item in one. Return ... for anything else."""
    match node:
        case ast.Name(id=name):
            return constants.get(name, ...)
        case ast.Subscript(value=owner, slice=key):
            try:
                return _read(owner, constants)[_read(key, constants)]
            except (TypeError, LookupError):
                return ...
    try:
        return ... if node is None else ast.literal_eval(node)
    except ValueError:
        return ...


def _bind(call: ast.Call, method: str, constants: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a suggestion by name. One that only the running code knows is ... ."""
    keywords: dict[str, Any] = {}
    try:
        for each in call.keywords:
            value = _read(each.value, constants)
            keywords |= {each.arg: value} if each.arg else value
        groups = [
            _read(each.value, constants) if isinstance(each, ast.Starred) else [_read(each, constants)]
            for each in call.args
        ]
        given = inspect.signature(getattr(BaseTrial, method)).bind(None, *chain(*groups), **keywords).arguments
    except TypeError:  # of unknown arguments, or of wrong ones, which the objective itself will tell
        given = {"name": _read(_find_name(call), constants), "": ...}
    return {name: value for name, value in given.items() if name != "self"}


def _find_name(call: ast.Call) -> ast.expr | None:
    """Return the name that a suggestion gives."""
    named = [each.value for each in call.keywords if each.arg == "name"]
    return next(iter([*named, *call.args]), None)


def _find_pattern(name: ast.expr | None) -> str:
    """Return an expression for the texts that a name like f"width{index}" or "width" + index can be."""
    match name:
        case ast.Constant(value=value):
            return re.escape(str(value))
        case ast.JoinedStr(values=parts):
            return "".join(map(_find_pattern, parts))
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _find_pattern(left) + _find_pattern(right)
        case ast.BinOp(left=ast.Constant(value=str(text)), op=ast.Mod()):
            return ".+".join(map(re.escape, re.split(r"%\w", text)))
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(text)), attr="format")):
            return ".+".join(map(re.escape, re.split(r"\{[^}]*\}", text)))
    return ".+"


def _write_example(pattern: str) -> str:
    r"""Return a name that an expression matches.

    >>> _write_example(r"units\-l.+"), _write_example(".+")
    ('units-l0', 'NAME')
    """
    return "NAME" if pattern == ".+" else re.sub(r"\\(.)", r"\1", pattern.replace(".+", "0"))


def _write_space(kind: str, given: Mapping[str, Any]) -> str:
    """Return the text of --search for what Optuna is given, or "" if there is none."""
    if ... in given.values():
        return ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a range that the step does not divide, which Optuna shortens
            distribution = _build_distribution(kind, given)
    except (TypeError, ValueError):  # the objective itself will say so
        return ""
    if isinstance(distribution, CategoricalDistribution):
        text = ",".join(map(_write_choice, distribution.choices))
    else:
        step = f":step={distribution.step}" if distribution.step and (kind, distribution.step) != ("int", 1) else ""
        text = f"{distribution.low}..{distribution.high}{':log' if distribution.log else step}"
    return text if _read_space(text) == distribution else ""


def _read_space(text: str) -> BaseDistribution | None:
    try:
        return parse_distribution("it", text, build_function_config((), {"it": text}).model_fields["it"])
    except UsageError:  # e.g. a single choice, or a text with a comma
        return None


def _build_distribution(
    kind: str, given: Mapping[str, Any]
) -> CategoricalDistribution | FloatDistribution | IntDistribution:
    if kind == "categorical":
        return CategoricalDistribution(**given)
    if kind == "int":
        return IntDistribution(**given)
    if kind == "discrete_uniform":
        return FloatDistribution(given["low"], given["high"], step=given["q"])
    return FloatDistribution(**given, **({"log": True} if kind == "loguniform" else {}))


def _write_choice(choice: Any) -> str:
    """Return a choice as --search takes it. A text is in quotes if it could be read as something else."""
    is_word = isinstance(choice, str) and WORD.fullmatch(choice) and choice.lower() not in ("true", "false", "null")
    return format_value(choice) if is_word or not isinstance(choice, str) else repr(choice)
