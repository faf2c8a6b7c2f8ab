"""What the code of a program takes by `searchlight.params()`, or as the arguments of a function."""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from searchlight.search.command.code import read_trees
from searchlight.search.command.flags import EPOCHS, Parameter, suggest_name
from searchlight.search.command.functions import (
    find_called_function,
    list_arguments,
    name_called_function,
)
from searchlight.search.command.options import CALL_OBJECTIVE
from searchlight.search.command.script import PARSERS
from searchlight.search.command.suggestions import Suggestions, read_suggestions

# What reads a command line: modules, and names of those that do other things as well.
READERS = PARSERS | {"absl", "docopt", "getopt", "optparse"}
READING_NAMES = {"argv", "from_cli", "HfArgumentParser", "LightningCLI"}
SHOWING = ("print", "repr", "str", "len")  # functions that take no parameter of what they are given
Fields = Sequence[tuple[str, str | None]]  # names with their defaults as text, "" if unknown, None without one


@dataclass(frozen=True)
class ParamsCode:
    """What the files of a program take by `searchlight.params()`.

    Attributes:
        defaults: By each key that they take of it: what they take without a search, as text, or "" if that is unknown.
        words: If they give it as a whole to other code, e.g. as `**params()`, all words in them. Else empty.
        may_have_options: Whether the program may have options as well.
        function: The function whose arguments are keys, too, e.g. "train.py:evaluate", or "".
        patterns: Expressions that match further keys.
    """

    defaults: dict[str, str] = field(default_factory=dict)
    words: frozenset[str] = frozenset()
    may_have_options: bool = False
    function: str = ""
    patterns: tuple[str, ...] = ()

    def takes(self, parameter: Parameter) -> bool:
        """Return whether a parameter may reach the program without an option. The one of --seed-flag must be `seed`."""
        if parameter.source == "--seed-flag" and (
            parameter.name != "seed" or (self.function and "seed" not in self.defaults)
        ):
            return False
        if any(re.fullmatch(pattern, parameter.name) for pattern in self.patterns):
            return True
        last = re.split(r"\W", parameter.name)[-1]
        return parameter.name in {*self.defaults, EPOCHS} or last in self.words

    def explain_unknown(self, parameter: Parameter) -> str:
        """Return a line that says that the program takes no parameter of that name."""
        if self.function and parameter.source == "--seed-flag":
            rule = f"must be left out, because {self.function} takes the seed as an argument of the name seed."
            return f"--seed-flag {parameter.name} {rule} Rename it."
        if self.function:
            rule = f"must be a parameter of {self.function}, but is none."
            return f"{parameter.source} {parameter.name} {rule} {suggest_name(parameter.name, self.defaults)}".rstrip()
        rule = "must be a key that the code takes of searchlight.params(), but is none."
        if parameter.source == "--seed-flag":
            rule = (
                "must be an option of the program, or seed if its code takes that of searchlight.params(), but is none."
            )
        remedy = f"{suggest_name(parameter.name, self.defaults)} If other code takes it, give --flags none.".lstrip()
        return f"{parameter.source} {parameter.name} {rule} {remedy}"


def read_params_code(words: Sequence[str], folder: Path) -> ParamsCode | None:
    """Return what the code that a command runs takes by `searchlight.params()`, or None if it does not call it.

    Nothing is imported.

    Args:
        folder: The user's folder.
    """
    trees = read_trees(words, folder)
    definitions: dict[str, Fields | None] = {}
    for tree in trees:
        definitions |= _list_definitions(tree)
    uses = [use for tree in trees for use in _find_uses(tree, definitions)]
    function = find_called_function(words, trees)
    if function:  # the trial of an objective is no parameter
        arguments = list_arguments(function)[1 if CALL_OBJECTIVE in words else 0 :]
        uses += [(name, _read_optional(default)) for name, default in arguments]
    suggestions = read_suggestions(trees, words[-1]) if CALL_OBJECTIVE in words else Suggestions()
    uses += [(name, None) for name in suggestions.spaces]
    patterns = [*suggestions.patterns, *([".+"] if function and function.args.kwarg else [])]
    if not uses:
        return None
    found: dict[str, set[str]] = {}
    for key, default in uses:
        if key:
            found.setdefault(key, set()).update([] if default is None else [default])
    defaults = {key: min(texts) if len(texts) == 1 else "" for key, texts in found.items()}
    nodes = [node for tree in trees for node in ast.walk(tree)]
    modules = {part for node in nodes for name in _list_imported(node) for part in name.split(".")}
    names = {name for node in nodes for name in _list_names(node)}
    reads_options = not (READERS.isdisjoint(modules) and READING_NAMES.isdisjoint(modules | names))
    has_words = any(word.startswith("-") for word in words[_find_script(words) + 1 :])
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    is_whole = any(not key for key, _ in uses)
    may_have_options = not function and (has_words or reads_options)
    taken = frozenset(names | texts if is_whole else ())
    return ParamsCode(defaults, taken, may_have_options, name_called_function(words), tuple(patterns))


def _find_script(words: Sequence[str]) -> int:
    """Return the place of the script or module in the words of a command."""
    places = (place for place, word in enumerate(words) if word.endswith(".py") or words[place - 1 : place] == ("-m",))
    return next(places, 0)


def _list_imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield getattr(node, "module", None) or ""
        yield from (alias.name for alias in node.names)


def _list_names(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
            yield name


def _list_definitions(tree: ast.Module) -> dict[str, Fields | None]:
    """Return the arguments of functions, and the fields of classes as a dataclass has them, by name.

    They are None if there may be further ones: **kwargs, base classes, or methods that begin with __init__.
    """
    found: dict[str, Fields | None] = {}
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name):
                own = [(argument, _read_optional(default)) for argument, default in list_arguments(node)]
                found[name] = None if node.args.kwarg or name in found else own
            case ast.ClassDef(name=name, bases=[], body=body):
                fields = [
                    each for each in body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
                ]
                own = [
                    (each.target.id, _read_optional(each.value)) for each in fields if isinstance(each.target, ast.Name)
                ]
                has_init = any(isinstance(each, ast.FunctionDef) and each.name == "__init__" for each in body)
                found[name] = None if has_init or name in found else own
    return found


def _read_optional(node: ast.expr | None) -> str | None:
    return None if node is None else _read_text(node)


def _find_uses(tree: ast.Module, definitions: Mapping[str, Fields | None]) -> Iterator[tuple[str, str | None]]:
    """Yield each key that code takes of `searchlight.params()`, and its default. A use as a whole has the key "".

    The default is that of `get` as text, "" if that is unknown, or None without one.

    Fields of a class and arguments of a function that gets `**params()` are keys, if the code defines it.
    A variable stands for it if it is assigned from it, also as in `{**DEFAULTS, **params()}`.
    """
    nodes = [*ast.walk(tree)]
    parents = {child: node for node in nodes for child in ast.iter_child_nodes(node)}
    imports = [(node, each) for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) for each in node.names]
    modules = {each.asname or each.name for node, each in imports if isinstance(node, ast.Import) and _is_ours(each)}
    functions = {
        each.asname or each.name
        for node, each in imports
        if isinstance(node, ast.ImportFrom) and node.module == "searchlight" and each.name == "params"
    }
    holders = set[str]()

    def stands_for_it(node: ast.AST) -> bool:
        match node:
            case ast.Call(func=ast.Name(id=name)):
                return name in functions
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="params")):
                return name in modules
            case ast.Name(id=name, ctx=ast.Load()):
                return name in holders
        return False

    while new := {name for node in nodes if stands_for_it(node) for name in _find_targets(node, parents)} - holders:
        holders |= new
    for node in filter(stands_for_it, nodes):
        parent = parents[node]
        match parent, parents.get(parent):
            case ast.Subscript(value=owner, slice=ast.Constant(value=str(key))), _ if owner is node:
                yield key, None
            case ast.Attribute(attr="get"), ast.Call(args=[ast.Constant(value=str(key)), *defaults]):
                yield key, _read_text(defaults[0]) if defaults else None
            case ast.Compare(left=ast.Constant(value=str(key)), ops=[ast.In() | ast.NotIn()]), _:
                yield key, None
            case ast.Call(func=function), _ if function is node:
                pass  # a variable has the name of the function
            case ast.keyword(arg=None), ast.Call(func=ast.Name(id=name)) if definitions.get(name):
                yield from definitions[name] or ()
            case ast.If() | ast.UnaryOp() | ast.FormattedValue(), _:
                pass  # whether there are some, or a text of them
            case ast.Call(func=ast.Name(id=name)), _ if name in SHOWING:
                pass
            case _ if not _find_targets(node, parents):
                yield "", None


def _is_ours(alias: ast.alias) -> bool:
    return alias.name == "searchlight"


def _find_targets(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> list[str]:
    """Return the variables that get a value, or a dict with it."""
    parent = parents[node]
    while isinstance(parent, ast.Dict | ast.BinOp | ast.BoolOp) or (
        isinstance(parent, ast.Call) and isinstance(parent.func, ast.Name) and parent.func.id == "dict"
    ):
        parent = parents[parent]
    match parent:
        case ast.Assign(targets=targets):
            return [target.id for target in targets if isinstance(target, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)) | ast.NamedExpr(target=ast.Name(id=name)):
            return [name]
    return []


def _read_text(node: ast.expr) -> str:
    """Return a number, a text, a boolean or None in code as text, or "" for anything else."""
    try:
        value = ast.literal_eval(node)
    except ValueError:  # a name or a call
        return ""
    return str(value) if value is None or isinstance(value, bool | int | float | str) else ""
