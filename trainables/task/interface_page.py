"""Writes docs/task-interface.md: python -m searchlight.trainables.task.interface_page."""

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

FILE = Path(__file__).resolve().parents[2] / "docs" / "task-interface.md"
HEAD = """# Task interface

`python -m searchlight.trainables.task.interface_page` writes this page from the code. [Tasks](tasks.md) explains
the interface with examples. Most tasks need only `Task`, `TaskConfig`, `searchable` and `Context`. The methods that a
class requires come first.
"""
PUBLIC = {
    "searchlight.trainables.task": ("Task", "TaskConfig", "searchable", "DataSet", "digest_of"),
    "searchlight.trainables.context": ("Context",),
    "searchlight.trainables.update": ("UpdateReport", "Updater", "windows", "Ema"),
    "searchlight.trainables.precision": ("Precision", "LossScale", "Diverged", "autocast"),
    "searchlight.trainables.checkpoint": ("save", "load", "link", "delete", "plain", "Writer", "CheckpointError"),
    "searchlight.trainables.training.trainer": ("train",),
}


def format_interface_page() -> str:
    """Return the text of docs/task-interface.md."""
    lines = [HEAD]
    for module, names in PUBLIC.items():
        lines += [f"## {module}", ""]
        for name in names:
            source = inspect.getsource(getattr(importlib.import_module(module), name))
            (node,) = ast.parse(source).body
            assert isinstance(node, ast.ClassDef | ast.FunctionDef)
            lines += _format_definition(f"### {name}", node, source.splitlines())
    return "\n".join(lines)


def _format_definition(heading: str, node: ast.ClassDef | ast.FunctionDef, lines: list[str]) -> Iterator[str]:
    """Yield the lines of a function, or of a class with its fields and public methods."""
    code = _get_signature(node, lines)
    methods: list[ast.FunctionDef] = []
    for part in node.body if isinstance(node, ast.ClassDef) else ():
        if isinstance(part, ast.Assign | ast.AnnAssign):
            code += lines[part.lineno - 1 : part.end_lineno]
        elif isinstance(part, ast.FunctionDef) and part.name == "__init__":
            code += _get_signature(part, lines)
        elif isinstance(part, ast.FunctionDef) and not part.name.startswith("_"):
            methods.append(part)
    methods.sort(key=lambda method: not _is_required(method))
    yield from (heading, "", "```python", textwrap.dedent("\n".join(code)), "```", "")
    if text := ast.get_docstring(node):
        yield from (_format_docstring(text), "")
    for method in methods:
        yield from _format_definition(f"#### {node.name}.{method.name}", method, lines)


def _is_required(method: ast.FunctionDef) -> bool:
    return any(ast.unparse(decorator) == "abstractmethod" for decorator in method.decorator_list)


def _get_signature(node: ast.ClassDef | ast.FunctionDef, lines: list[str]) -> list[str]:
    """Return the source from the first decorator to the colon."""
    first = min(part.lineno for part in (node, *node.decorator_list))
    return lines[first - 1 : node.body[0].lineno - 1]


def _format_docstring(text: str) -> str:
    """Return a docstring in Google style as Markdown, with a list for each section and a block for each example."""
    text = re.sub(r"^ +>>> .+\n(?: +\S.*\n?)*", _format_example, text, flags=re.MULTILINE)
    text = re.sub(r"^(Args|Attributes|Raises):$", r"*\1*\n", text, flags=re.MULTILINE)
    text = re.sub(r"^ {4}(\w[\w, ]*): ", r"- `\1`: ", text, flags=re.MULTILINE)
    return re.sub(r"^ {4,}", "  ", text, flags=re.MULTILINE).rstrip()


def _format_example(lines: re.Match[str]) -> str:
    return f"\n```python\n{textwrap.dedent(lines[0]).rstrip()}\n```\n"


if __name__ == "__main__":
    FILE.write_text(format_interface_page(), encoding="utf-8")
