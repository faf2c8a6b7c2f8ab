"""Imports point one way: search -> trainables -> models."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FORBIDDEN = {
    "models": {"search", "trainables", "ray", "optuna", "mlflow"},
    "trainables": {"search", "optuna", "mlflow"},
}


def imports_of(file: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").split(".")[0])
    return names


@pytest.mark.parametrize("package", sorted(FORBIDDEN))
def test_package_imports_nothing_above_it(package):
    files = list((ROOT / package).rglob("*.py"))
    assert files
    wrong = {str(f.relative_to(ROOT)): imports_of(f) & FORBIDDEN[package] for f in files}
    assert not {file: names for file, names in wrong.items() if names}


def test_only_the_workers_of_trainables_know_ray():
    with_ray = {f.name for f in (ROOT / "trainables").rglob("*.py") if "ray" in imports_of(f)}
    assert with_ray == {"worker.py", "train_function.py"}
