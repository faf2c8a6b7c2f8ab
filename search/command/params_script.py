"""Scripts that take their parameters by `searchlight.params()`."""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from searchlight.search.command.flags import EPOCHS, Parameter, suggest_name
from searchlight.search.command.program_help import read_literal
from searchlight.search.command.script import PARSERS
from searchlight.search.command.targets import SEED

# What reads a command line. A script may import transformers for its models alone, so the parser's name counts.
READERS = (PARSERS - {"transformers"}) | {"HfArgumentParser", "LightningCLI"}


@dataclass(frozen=True)
class ParamsScript:
    """A script that calls `searchlight.params()`.

    Attributes:
        path: The script as its command names it.
        source: Its code.
        nodes: The nodes of its syntax tree.
    """

    path: str
    source: str
    nodes: Sequence[ast.AST]

    @property
    def has_options(self) -> bool:
        """Whether it may have options as well."""
        return not READERS.isdisjoint(re.findall(r"\w+", self.source))

    def has_name(self, parameter: Parameter) -> bool:
        """Return whether its code may take a parameter by its name. The option of --seed-flag is no parameter."""
        if parameter.source == "--seed-flag":
            return False
        return parameter.name == EPOCHS or bool(re.search(rf"(?<!\w){re.escape(parameter.name)}(?!\w)", self.source))

    @property
    def takes_seed(self) -> bool:
        """Whether its code has params["seed"] or params.get("seed")."""
        return any(name == SEED for name, _ in self._find_keys())

    def find_defaults(self) -> dict[str, str]:
        """Return the values that parameters have without a search, as text by name: those of `get("lr", 0.1)`."""
        found: dict[str, set[str | None]] = {}
        for name, default in self._find_keys():
            if default is not None:
                found.setdefault(name, set()).add(read_literal(default))
        return {name: value for name, values in found.items() for value in values if value and len(values) == 1}

    def _find_keys(self) -> Iterator[tuple[str, ast.expr | None]]:
        """Yield the key of each `x["key"]` and of each `x.get("key", default)`, with its default."""
        for node in self.nodes:
            match node:
                case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=str(name)), *defaults]):
                    yield name, defaults[0] if defaults else None
                case ast.Subscript(slice=ast.Constant(value=str(name))):
                    yield name, None

    def explain_unknown(self, parameter: Parameter) -> str:
        """Return a line that says that its code has no such name."""
        if parameter.source == "--seed-flag":
            return f"--seed-flag {parameter.name} must be an option of {self.path}, but its code reads no options."
        names = re.findall(r"""["']([A-Za-z][\w.-]*)["']""", self.source)
        rule = f"must be a name in {self.path}, which calls searchlight.params(), but is none."
        remedy = f"{suggest_name(parameter.name, names)} If other code takes it, give --flags none.".lstrip()
        return f"{parameter.source} {parameter.name} {rule} {remedy}"


def find_params_script(words: Sequence[str], folder: Path) -> ParamsScript | None:
    """Return the script in the words of a command if it calls `searchlight.params()`.

    Args:
        folder: The user's folder.
    """
    path = next((word for word in words if word.endswith(".py") and (folder / word).is_file()), None)
    if path is None:
        return None
    source = (folder / path).read_text(encoding="utf-8", errors="replace")
    try:
        nodes = [*ast.walk(ast.parse(source))]
    except (SyntaxError, ValueError):  # the program itself will say so
        return None
    return ParamsScript(path, source, nodes) if _names_params(nodes) else None


def _names_params(nodes: Sequence[ast.AST]) -> bool:
    """Return whether code imports searchlight and names its function `params`."""
    modules = set()
    for node in nodes:
        match node:
            case ast.Import(names=names):
                modules |= {each.asname or each.name for each in names if each.name == "searchlight"}
            case ast.ImportFrom(module="searchlight", names=names):
                if any(each.name == "params" for each in names):
                    return True
    named = (node.value for node in nodes if isinstance(node, ast.Attribute) and node.attr == "params")
    return any(isinstance(owner, ast.Name) and owner.id in modules for owner in named)
