"""The section about the audit of the task."""

from dataclasses import asdict

from searchlight.search.reporting.html.sections.preflight import build
from searchlight.search.space.objectives import Objective
from searchlight.search.study.record import SearchRecord
from searchlight.trainables.preflight.audit import Audit  # noqa: F401  # imports all checks
from searchlight.trainables.preflight.findings import make_finding
from searchlight.trainables.preflight.messages import AuditResult


def record(about):
    return SearchRecord("name", (), (Objective("val/loss", "min"),), about)


def test_section_has_a_row_for_each_finding():
    finding = make_finding("zero-gradient", "model.0", "gradient of 0 in 8 windows")
    section = build(
        record(
            {"preflight": AuditResult([finding], seconds={"flow": 0.5, "modes": 0.75}).as_json(), "notes": ["a note"]}
        )
    )
    assert section.says == "a note\nThe first worker audited the task on cpu before its first trial, in 1.2 s."
    assert section.table[0] == ("severity", "finding", "subject", "figure", "remedy")
    assert [*section.table[1]] == [asdict(finding)[key] for key in ("severity", "name", "subject", "figure", "remedy")]


def test_section_is_left_out_where_nothing_was_found_or_audited():
    assert build(record({})) is None
    assert build(record({"notes": ["bf16 is left out"]})).says == "bf16 is left out"
    assert build(record({"preflight": AuditResult([]).as_json()})) is None
