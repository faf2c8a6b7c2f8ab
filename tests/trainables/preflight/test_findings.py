"""Findings: their order, and their page."""

import ast
from unittest.mock import Mock

import pytest
import torch

from searchlight.trainables.precision import Precision
from searchlight.trainables.preflight.audit import Audit  # noqa: F401  # imports all checks
from searchlight.trainables.preflight.checks import errors
from searchlight.trainables.preflight.findings import KINDS, format_page, has_errors, make_finding, sort_findings
from searchlight.trainables.preflight.messages import AuditResult
from searchlight.trainables.preflight.modes import ModeReport
from tests.conftest import ROOT
from tests.test_layers import modules_imported_by

PREFLIGHT = ROOT / "trainables" / "preflight"
PAGE = (ROOT / "docs" / "preflight.md").read_text(encoding="utf-8")


def test_page_is_generated_from_the_kinds_and_has_an_example_of_each():
    assert format_page(PAGE) == PAGE
    rows = {line.split("`")[1]: line for line in PAGE.splitlines() if line.startswith("| `")}
    assert rows.keys() == KINDS.keys()
    assert not [name for name, row in rows.items() if "|  |" in row]


def list_kinds(tree, *functions):
    """The kinds that a file names in calls of the functions."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) in functions]
    return {call.args[0].value for call in calls if call.args and isinstance(call.args[0], ast.Constant)}


def find_own(names, own):
    """The modules of the preflight among imported names."""
    return {module for module in own for name in names if name == module or name.startswith(f"{module}.")}


def test_who_imports_a_check_has_all_kinds_of_its_findings():
    """A worker of a function imports a part of the checks."""
    own = {str(path.relative_to(ROOT).with_suffix("")).replace("/", "."): path for path in PREFLIGHT.rglob("*.py")}
    trees = {module: ast.parse(path.read_text(encoding="utf-8")) for module, path in own.items()}
    imports = {module: find_own(modules_imported_by(path), own) for module, path in own.items()}
    others = [path for top in ("search", "trainables") for path in (ROOT / top).rglob("*.py")]
    entries = set().union(
        *(find_own(modules_imported_by(path), own) for path in others if PREFLIGHT not in path.parents)
    )
    assert {"trainables.preflight.audit", "trainables.preflight.function_audit"} <= entries
    for entry in entries:
        loaded, pending = set(), {entry}
        while pending:
            loaded |= pending
            pending = set().union(*(imports[module] for module in pending)) - loaded
        made, declared = (
            set().union(*(list_kinds(trees[module], *functions) for module in loaded))
            for functions in (("make_finding", "make_group"), ("Kind",))
        )
        assert made <= declared, entry


def test_findings_are_sorted_by_severity_and_told_once():
    note, warning = make_finding("random-loss", "a", "1"), make_finding("zero-gradient", "a", "1")
    error, again = make_finding("no-optimizer", "b", "1"), make_finding("zero-gradient", "a", "2")
    assert sort_findings([note, warning, error, again]) == [error, warning, note]
    assert has_errors([note, error])
    assert not has_errors([note, warning])
    assert str(warning).startswith("warning zero-gradient: a: 1. Look for")


def test_result_has_no_value_whose_reader_would_import_torch():
    result = AuditResult([], modes=[ModeReport(Precision.BF16, 0.5, 0.1, 8, 1.0)]).as_json()
    assert result["modes"][0]["precision"] == "bf16"
    assert type(result["modes"][0]["precision"]) is str


@pytest.mark.parametrize("is_synchronous", [False, True])
def test_error_of_cuda_has_a_doubtful_line_unless_synchronous(monkeypatch, is_synchronous):
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", str(int(is_synchronous)))
    error = torch.AcceleratorError("CUDA error: device-side assert triggered")
    trial = Mock(error=error, phase="train", stack="", updates={}, is_empty=False)
    monkeypatch.setattr(errors, "find_structure", lambda task: [])
    (finding,) = errors.find_error(trial)
    assert ("The line may be a later one" in finding.figure) != is_synchronous
