"""Findings: their order, and their page."""

import searchlight.trainables.preflight.audit  # noqa: F401, which imports all checks
from searchlight.trainables.preflight.findings import KINDS, format_page, has_errors, make_finding, sort_findings
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
