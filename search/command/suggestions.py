"""Reads the search space of an objective of Optuna from its code."""

import ast
import inspect
import re
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import BaseTrial

from searchlight.search.command.code import read_trees
from searchlight.search.command.options import CALL_OBJECTIVE
from searchlight.search.command.script import name_called_function
from searchlight.search.errors import UsageError
from searchlight.search.space.function_config import build_function_config
from searchlight.search.space.space_parsing import parse_distribution
from searchlight.trainables.command.template import format_value

KINDS = ("float", "int", "categorical", "uniform", "loguniform")
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


def read_suggestions(trees: Iterable[ast.AST]) -> Suggestions:
    """Return what the code in syntax trees suggests.

    >>> code = "trial.suggest_float('lr', 1e-5, 0.1, log=True); trial.suggest_int(f'width{i}', 8, 64)"
    >>> found = read_suggestions([ast.parse(code)])
    >>> found.spaces, found.patterns
    ({'lr': '1e-05..0.1:log'}, {'width.+': '8..64'})
    """
    found = Suggestions()
    for node in (node for tree in trees for node in ast.walk(tree)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        _, is_suggestion, kind = node.func.attr.partition("suggest_")
        if not is_suggestion or kind not in KINDS:
            continue
        keywords = {each.arg: each.value for each in node.keywords if each.arg}
        try:
            given = inspect.signature(getattr(BaseTrial, node.func.attr)).bind(None, *node.args, **keywords).arguments
        except TypeError:  # the objective itself will say so
            continue
        parts = given.pop("name")
        space = _write_space(kind, {key: _read_literal(value) for key, value in given.items() if key != "self"})
        name, spaces = _read_literal(parts), found.spaces
        if not isinstance(name, str):
            name, spaces = _find_pattern(parts), found.patterns
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
    found = read_suggestions(read_trees(words, folder))
    given, objective = {*searched, *fixed}, name_called_function(words)
    problems = [
        f"{objective} suggests {name} in a way that only its running code knows: {found.calls[name]}. "
        f"Give --search {name}=... or --set {name}=..."
        for name, space in found.spaces.items()
        if not space and name not in given
    ]
    problems += [
        f"{objective} suggests names that only its running code knows: {found.calls[pattern]}. "
        f"Give each of them, e.g. --search {pattern.replace('.+', '0')}={space or '...'}"
        for pattern, space in found.patterns.items()
        if not any(re.fullmatch(pattern, name) for name in given)
    ]
    if problems:
        raise UsageError(*problems)
    return {**{name: space for name, space in found.spaces.items() if name not in given}, **searched}


def _read_literal(node: ast.expr) -> Any:
    """Return the value of a literal, or ... for anything else."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ...


def _find_pattern(name: ast.expr) -> str:
    """Return an expression for the texts that a name like f"width{index}" can be."""
    parts = name.values if isinstance(name, ast.JoinedStr) else [name]
    return "".join(re.escape(str(part.value)) if isinstance(part, ast.Constant) else ".+" for part in parts)


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
    return FloatDistribution(**given, **({"log": True} if kind == "loguniform" else {}))


def _write_choice(choice: Any) -> str:
    """Return a choice as --search takes it. A text is in quotes if it could be read as something else."""
    is_word = isinstance(choice, str) and WORD.fullmatch(choice) and choice.lower() not in ("true", "false", "null")
    return format_value(choice) if is_word or not isinstance(choice, str) else repr(choice)
