"""The distributions that some Python files need, pinned to what is installed."""

import ast
import sys
from collections.abc import Iterable
from importlib.metadata import packages_distributions, version
from pathlib import Path


def pin_requirements(files: Iterable[Path]) -> list[str]:
    """`name==version` of each distribution that one of `files` imports, wherever in the file it does.

    A local version as 2.13.0+cpu loses what follows the plus: package indexes have it without.
    """
    names = {name for file in files for name in _find_imports(file)} - sys.stdlib_module_names
    distributions = packages_distributions()
    found = {found for name in names for found in distributions.get(name, ())}
    return sorted(f"{name}=={version(name).partition('+')[0]}" for name in found)


def _find_imports(file: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names
