"""Findings: their order, and their page."""

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

PAGE = (ROOT / "docs" / "preflight.md").read_text(encoding="utf-8")


def test_page_is_generated_from_the_kinds_and_has_an_example_of_each():
    assert format_page(PAGE) == PAGE
    rows = {line.split("`")[1]: line for line in PAGE.splitlines() if line.startswith("| `")}
    assert rows.keys() == KINDS.keys()
    assert not [name for name, row in rows.items() if "|  |" in row]


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
