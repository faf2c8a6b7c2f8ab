"""Send the messages between a search and its workers as text, and continue segments from them."""

import copy
import importlib
import math
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
import torch

from searchlight.trainables.registry import find_user_frame, link_modules
from searchlight.trainables.worker import messages
from searchlight.trainables.worker.messages import SegmentBudget, from_json, to_json

LAST = messages.EpochReport(2, {"val/loss": math.inf}, None, {}, False, [], [])


@pytest.mark.parametrize(
    "report",
    [
        messages.EpochReport(1, {"loss": 0.5, "message": 3.0}, None, {"c": 2.0}, True, [{"name": "data"}], ["a note"]),
        messages.SegmentEnd("diverged", "it did", "Traceback", messages.Divergence("skips", 2), LAST, notes=["a note"]),
        messages.TrialRelease("no room", begun=True, notes=[]),
    ],
    ids=["report", "end", "release"],
)
def test_result_survives_its_way_through_text(report):
    result = messages.GangResult("gang-1", [report], taken=7.5)
    assert from_json(to_json(result)) == result


def test_text_that_no_file_takes_is_escaped():
    said = messages.SegmentEnd("failed", "half \udc80, whole \U0001f600, line\n", "back\\slash \ud800")
    (end,) = from_json(to_json(messages.GangResult("gang-1", [said]))).reports
    assert (end.reason, end.traceback) == ("half \\udc80, whole \U0001f600, line\n", "back\\slash \\ud800")


def test_segment_continues_after_a_report_with_its_budget():
    budget = SegmentBudget("samples", 1, 5.0, 9.0)
    segment = messages.SegmentAssignment(3, {}, 1, 9, "folder", "a", ("1.pt", None), "other.pt", budget)
    rest = segment.continue_after(messages.EpochReport(2, {}, "2.pt", {"samples": 5.0}))
    spent = SegmentBudget("samples", 2, 10.0, 9.0)
    assert rest == messages.SegmentAssignment(3, {}, 2, 9, "folder", "a", ("2.pt", "1.pt", None), "other.pt", spent)


def test_user_frame_is_the_innermost_outside_of_libraries(tmp_path, monkeypatch):
    task, helper = tmp_path / "my_task.py", tmp_path / "parts" / "sums.py"
    helper.parent.mkdir()
    task.write_text("from parts.sums import add\n\n\ndef loss(batch):\n    return add(batch)\n")
    helper.write_text("import json\n\n\ndef add(batch):\n    return json.loads(batch)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_task", raising=False)  # of another test
    try:
        importlib.import_module("my_task").loss("{")
    except ValueError:
        stack = traceback.format_exc()
    assert "json/decoder.py" in stack
    assert find_user_frame(stack) == "parts/sums.py, line 5, in add"
    monkeypatch.setattr(sys, "path", [str(link_modules(tmp_path / "links", tmp_path))])
    assert find_user_frame(stack) == "parts/sums.py, line 5, in add", "of a gang, about its workers"
    monkeypatch.setattr(sys, "path", [])
    assert find_user_frame(stack) == f"{helper}, line 5, in add"


def test_stack_of_libraries_alone_has_no_user_frame():
    update = Path(messages.__file__).parents[1] / "update" / "updater.py"
    liquid = update.parents[1] / "liquid" / "task.py"
    libraries = [torch.__file__, update, "<string>"]
    stack = "".join(f'  File "{path}", line {line}, in step\n' for line, path in enumerate(libraries, start=1))
    assert find_user_frame(stack) == find_user_frame("") == ""
    assert find_user_frame(f'  File "{liquid}", line 9, in loss\n{stack}').endswith("liquid/task.py, line 9, in loss")


def test_messages_are_imported_without_ray_and_torch():
    code = "import sys, searchlight.trainables.worker.messages; sys.exit(bool({'ray', 'torch'} & {*sys.modules}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_settings_of_gangs_are_not_copied_for_each_trial():
    settings = messages.GangSettings(
        1, {"CPU": 1.0}, "pack", False, object(), 3, messages.WorkerSettings("task.py:Task")
    )
    assert copy.deepcopy({"gang": settings})["gang"] is settings
