import math
import subprocess
import sys

import pytest

from trainables.worker.messages import (
    Divergence,
    EpochReport,
    GangResult,
    SegmentAssignment,
    SegmentBudget,
    SegmentEnd,
    TrialRelease,
    from_json,
    to_json,
)

DATASETS = [{"name": "digits", "digest": "a", "source": "", "use": "training"}]


@pytest.mark.parametrize(
    "report",
    [
        EpochReport(1, {"val/loss": 0.5, "message": 3.0}, None, {"samples": 2.0}, True, DATASETS, ["a note"]),
        SegmentEnd("failed", "KeyError: 'x'", "Traceback: here", notes=["a note"]),
        SegmentEnd(
            "diverged",
            "it did",
            divergence=Divergence("objective", 2),
            last=EpochReport(2, {"val/loss": math.inf}, None, {}, False, [], []),
            notes=[],
        ),
        TrialRelease("no room", begun=True, notes=[]),
    ],
)
def test_a_result_is_the_same_after_its_way_through_text(report):
    result = GangResult("gang-1", [report], taken=7.5)
    assert from_json(to_json(result)) == result


def test_a_segment_continues_from_the_checkpoint_and_the_budget_of_a_report():
    segment = SegmentAssignment(
        3, {}, 1, 9, "folder", "a", ("1.pt", None), "other.pt", SegmentBudget("samples", 1, 5.0, 9.0)
    )
    rest = segment.continue_after(EpochReport(2, {}, "2.pt", {"samples": 5.0}))
    assert rest == SegmentAssignment(
        3, {}, 2, 9, "folder", "a", ("2.pt", "1.pt", None), "other.pt", SegmentBudget("samples", 2, 10.0, 9.0)
    )
    assert rest.budget.is_spent


def test_messages_are_imported_without_ray_and_torch():
    code = "import sys, trainables.worker.messages; sys.exit(bool({'ray', 'torch'} & {*sys.modules}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
