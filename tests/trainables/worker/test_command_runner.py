"""Run programs as trials: what they print or report is judged, and may end them."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from searchlight.trainables.worker.messages import Infeasibility
from tests.trainables.worker.command_project import COUNT, ENDLESS, end, find_notes, is_running, losses

pytestmark = pytest.mark.usefixtures("as_in_a_worker")


def test_workspace_of_cublas_is_not_reserved_for_programs(project, monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    project.worker()
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ


def test_each_line_with_a_metric_is_a_report(project):
    project.write(COUNT)
    reports = [*project.worker("{epochs}").run(project.segment(epochs=3, until=3))]
    metrics = [report.metrics for report in reports[:-1]]
    assert metrics == [{"loss": 1}, {"loss": 1 / 2}, {"loss": 1 / 3}], "and no usage, which is that of the worker"
    assert end(reports) == ("completed", "")
    assert project.output() == ["step 1 loss 1.0", "step 2 loss 0.5", f"step 3 loss {1 / 3}"]


def test_later_programs_have_the_imports_of_the_first_one(project, monkeypatch):
    libraries = project.folder.parent / "site-packages"
    libraries.mkdir()
    (libraries / "slow.py").write_text("import os; PROCESS = os.getpid()")
    monkeypatch.setenv("PYTHONPATH", str(libraries), prepend=os.pathsep)
    project.write("import os, slow, sys; print('loss', int(slow.PROCESS == os.getpid())); sys.exit(sys.argv[1] == '1')")
    worker = project.worker("{trial}", metrics=(r"loss=loss (\S+)",))
    assert worker._server is not None
    ends, outputs = [], []
    for trial in range(4):
        reports = [*worker.run(project.segment(trial=trial))]
        worker.drop_trial_unless_continued(None)
        worker._server.wait()
        ends.append(end(reports)[0])
        outputs.append(project.output(trial)[0])
    assert ends == ["completed", "failed", "completed", "completed"]
    assert outputs == ["loss 1", "loss 0", "loss 0", "loss 0"]
    assert worker.recycle_reason == ""


def test_forked_program_has_libraries_that_saw_its_variables(project, monkeypatch):
    libraries = project.folder.parent / "site-packages"
    libraries.mkdir()
    (libraries / "slow.py").write_text("import os; LEVEL, PROCESS = os.environ.get('LEVEL', '-1'), os.getpid()")
    monkeypatch.setenv("PYTHONPATH", str(libraries), prepend=os.pathsep)
    project.write("""
        import os, sys
        os.environ["LEVEL"] = {"2": "4"}.get(sys.argv[1], "3")
        import slow
        print(f"step 1 loss {slow.LEVEL}{int(slow.PROCESS == os.getpid())}")
    """)
    worker = project.worker("{trial}")
    assert worker._server is not None
    found = []
    for trial in range(4):
        found += losses(worker.run(project.segment(trial=trial)))
        worker.drop_trial_unless_continued(None)
        assert worker._server.wait()
    assert found == [31, 30, 41, 30]
    assert project.output(2)[0].startswith("searchlight: begins again as a new process, since LEVEL")


def test_program_that_prints_its_metric_gives_its_imports_before_it_is_stopped(project, monkeypatch):
    libraries = project.folder.parent / "site-packages"
    libraries.mkdir()
    (libraries / "slow.py").write_text("import os; PROCESS = os.getpid()")
    monkeypatch.setenv("PYTHONPATH", str(libraries), prepend=os.pathsep)
    project.write("""
        import itertools, os, sys, time, slow
        is_own = slow.PROCESS == os.getpid()
        for epoch in itertools.count(1):
            print(f"step {epoch} loss {int(is_own)}")
            while is_own and not sys.modules["searchlight_hook"].get_connection().is_used:
                time.sleep(0.01)
    """)
    worker = project.worker()
    assert worker._server is not None
    found = []
    for trial in range(2):
        reports = [*worker.run(project.segment(trial=trial, until=3))]
        found.append(losses(reports))
        worker.drop_trial_unless_continued(None)
        assert worker._server.wait()
    assert found == [[1] * 3, [0] * 3]


def test_program_that_renames_checkpoints_at_its_end_does_not_go_on(project, monkeypatch):
    project.write(ENDLESS)
    rglob = Path.rglob

    def meet_renamed_folder(path, pattern):
        if path.name == "checkpoints":
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path / "temporary"))
        return rglob(path, pattern)

    monkeypatch.setattr(Path, "rglob", meet_renamed_folder)
    worker = project.worker(resume_with=("--resume",), stop_grace=0.1)
    reports = [*worker.run(project.segment(until=3))]
    assert (end(reports), find_notes(reports)) == (("completed", ""), [])
    assert not is_running(int(project.output()[0].split()[1]))


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import sys; print('loss 1'); sys.exit(3)", "exit code 3: loss 1"),
        ("print('loss 1'); raise ValueError('too large')", "exit code 1: ValueError: too large"),
        ("import os; os.kill(os.getpid(), 11)", "the program was killed by SIGSEGV"),
    ],
)
def test_failure_says_what_happened(project, code, reason):
    project.write(code)
    reports = [*project.worker().run(project.segment())]
    assert end(reports) == ("failed", reason)
    assert "output.txt" in reports[-1].traceback


@pytest.mark.parametrize(
    ("code", "metrics", "reason"),
    [
        ("print('accuracy 1')", (),
         "it gave no metric. With --try-first, the same command proposes what to judge it by"),
        ("import searchlight; searchlight.report(loss='low')", (),
         "it gave no metric; loss of searchlight.report must be a number, but got str. It is left out"),
        ("print('acc 1'); print('acc 2')", ("acc=acc (.+)",),
         "it gave acc (2 times, output). With --try-first, the same command proposes what to judge it by"),
        ("print('acc 1'); print('test Loss: 2')", ("acc=acc (.+)", "loss=loss: (.+)"),
         "it gave acc (1 times, output); --metric 'loss=loss: (.+)' matched none of the 2 lines. The nearest one is: "
         "test Loss: 2"),
        ("print('begins'); print('ends')", ("loss=loss: (.+)",),
         "--metric 'loss=loss: (.+)' matched none of the 2 lines, of which none has a number"),
        ("print('loss: low')", ("loss=loss: (.+)",), "--metric 'loss=loss: (.+)' matched 'low', which is no number"),
        ("print('loss: 2')", ("loss=json",),
         "none of the 1 line is JSON with a number loss. The nearest one is: loss: 2"),
        ("", ("loss=json",), "--metric loss=json had nothing to read, since the program printed no line"),
    ],
)  # fmt: skip
def test_program_without_its_objective_says_what_it_gave(project, code, metrics, reason):
    project.write(code)
    reports = [*project.worker(metrics=metrics).run(project.segment())]
    assert end(reports) == ("failed", f"the program ended without loss: {reason}")


def test_failure_has_the_last_lines_of_the_output_and_its_place(project):
    project.write("for i in range(99): print('line', i)\ndef main():\n    raise KeyError('lr')\nmain()")
    failed = [*project.worker().run(project.segment())][-1]
    assert failed.reason == "exit code 1: KeyError: 'lr'"
    assert failed.traceback.startswith("line ")
    assert failed.location == f"{project.folder}/train.py, line 3, in main", "the same in all trials"


def test_failure_after_the_last_report_leaves_the_trial_complete(project):
    project.write("print('loss 1'); raise SystemExit(1)")
    reports = [*project.worker().run(project.segment(until=1))]
    assert (losses(reports), end(reports)) == ([1.0], ("completed", ""))


def test_metric_that_is_not_finite_is_a_divergence(project):
    project.write("print('loss 1'); print('loss nan')\nimport time; time.sleep(600)")
    reports = [*project.worker().run(project.segment())]
    assert end(reports) == ("diverged", "loss is nan in report 2")


@pytest.mark.parametrize(
    ("error", "lacks_memory"),
    [
        ("MemoryError()", True),
        ("type('_ArrayMemoryError', (MemoryError,), {})('Unable to allocate 8.00 PiB')", True),
        ("RuntimeError('CUDA out of memory. Tried to allocate 2.00 GiB')", True),
        ("ValueError('too large')", False),
    ],
)
def test_program_without_memory_is_infeasible(project, error, lacks_memory):
    project.write(f"print('loss 1'); raise {error}")
    (*_, last) = project.worker().run(project.segment())
    assert last.outcome == "failed"
    assert last.infeasibility == (Infeasibility("memory") if lacks_memory else None)


def test_last_value_of_a_step_counts(project):
    project.write("print('step 1 loss 3'); print('step 2 loss 2'); print('step 2 loss 1')")
    reports = [*project.worker().run(project.segment(until=2))]
    assert losses(reports) == [3, 1]


NEW_WORKER = """
import sys
from pathlib import Path
from searchlight.trainables.private_api import LocalTrainFnUtils, set_train_fn_utils
from searchlight.trainables.worker import worker
from tests.trainables.worker.command_project import COUNT, Project, end

set_train_fn_utils(LocalTrainFnUtils("test"))
project = Project(Path(sys.argv[1]))
project.write(COUNT)
print(end([*project.worker("{epochs}").run(project.segment(epochs=2, until=2))]), "torch" in sys.modules)
"""


def test_worker_of_a_program_does_not_import_torch(tmp_path):
    done = subprocess.run([sys.executable, "-c", NEW_WORKER, str(tmp_path)], capture_output=True, text=True)
    assert done.stdout.strip() == "('completed', '') False", done.stderr
