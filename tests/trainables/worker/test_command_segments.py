"""Run programs as trials of several segments: they go on, continue from checkpoints, and end with their trial."""

import errno
import threading
import time
from pathlib import Path

import pytest

from searchlight.trainables.command.trial_folder import TrialFolder
from tests.trainables.worker.command_project import ENDLESS, RESUMING, end, is_running, losses

pytestmark = pytest.mark.usefixtures("as_in_a_worker")
LIMIT_S = 120.0


def test_program_goes_on_between_segments_and_ends_with_its_trial(project):
    project.write(ENDLESS)
    worker = project.worker()
    first = [*worker.run(project.segment(until=2, is_last=False))]
    assert losses(first) == [1, 1 / 2]
    assert first[-1].done
    second = [*worker.run(project.segment(epoch=2, until=4, is_last=False))]
    assert losses(second) == [1 / 3, 1 / 4]
    pid = int(project.output()[0].split()[1])
    assert is_running(pid)
    worker.drop_trial_unless_continued(None)
    assert not is_running(pid)
    assert worker.recycle_reason == ""


def test_time_of_a_report_begins_with_the_one_before_although_the_function_waits(project):
    project.write("""
        import sys, time
        from pathlib import Path
        print("step 1 loss 1")
        while not Path(sys.argv[1]).exists():
            time.sleep(0.01)
        time.sleep(0.5)
        print("step 2 loss 2")
    """)
    begin = project.folder.parent / "begin"
    worker = project.worker(str(begin))
    assert losses(worker.run(project.segment(until=1, is_last=False))) == [1]
    begin.touch()
    while len(project.output()) < 2:
        time.sleep(0.01)
    second = [*worker.run(project.segment(epoch=1, until=2))]
    assert losses(second) == [2]
    assert second[0].costs["gpu_seconds"] >= 0.5


def test_program_ends_at_once_if_the_search_does(project):
    project.write("import time; print('up', flush=True); time.sleep(600)")
    worker = project.worker()
    threading.Timer(1.0, project.stopping.set).start()
    assert end([*worker.run(project.segment())]) == ("interrupted", "the search was stopped")


def test_program_that_goes_on_after_its_last_report_is_stopped(project):
    project.write(ENDLESS)
    reports = [*project.worker().run(project.segment(until=3))]
    assert (losses(reports), end(reports)) == ([1, 1 / 2, 1 / 3], ("completed", ""))
    assert not is_running(int(project.output()[0].split()[1]))


def test_program_with_checkpoints_continues_after_its_last_report(project):
    project.write(RESUMING)
    worker = project.worker("{checkpoint_dir}", "2", resume_with=("--resume",))
    first = [*worker.run(project.segment(until=2, is_last=False))]
    other = [*worker.run(project.segment(trial=1, until=1, is_last=False))]
    second = [*worker.run(project.segment(epoch=2, until=4, is_last=False))]
    worker.drop_trial_unless_continued(None)
    assert [report.epoch for report in (*first, *second)] == [1, 2, 3, 4]
    assert losses([*first, *second]) == [1, 1 / 2, 1 / 3, 1 / 4]
    assert losses(other) == [1]
    started = [line for line in project.output() if line.startswith("begins")]
    assert started == ["begins after 0", "begins after 2"]


def test_reports_of_a_program_are_kept_while_its_function_waits(project):
    """The program saves its state meanwhile, and would not make them again after its worker was killed."""
    project.write(RESUMING)
    worker = project.worker("{checkpoint_dir}", "3", resume_with=("--resume",))
    assert losses(worker.run(project.segment(until=1, is_last=False))) == [1]
    end_at = time.monotonic() + LIMIT_S
    while len(kept := TrialFolder(worker.command, 0).read_reports()) < 3:
        assert time.monotonic() < end_at
        time.sleep(0.05)
    assert [report.step for report in kept] == [1, 2, 3]
    worker.drop_trial_unless_continued(None)


def test_report_that_cannot_be_kept_interrupts_the_program(project):
    full = project.folder.parent / "full"
    full.touch()
    project.write("""
        import os, sys, time
        from pathlib import Path
        full = Path(sys.argv[2])
        if full.exists():
            os.symlink("/dev/full", ".reports.jsonl")
        print("step 1 loss 1")
        print("step 2 loss 2")
        while full.exists():
            time.sleep(0.01)
    """)
    worker = project.worker("{checkpoint_dir}", str(full), resume_with=("--resume",))
    *_, last = worker.run(project.segment())
    assert (last.outcome, last.unwritable) == ("interrupted", True)
    place = project.trials / "0" / ".reports.jsonl"
    assert last.reason == f"its folder cannot be written: [Errno {errno.ENOSPC}] No space left on device: '{place}'"
    full.unlink()
    reports = [*worker.run(project.segment())]
    assert (losses(reports), end(reports)) == ([1, 2], ("completed", ""))


def test_half_a_report_is_cut_before_others_follow_it(project):
    """A full disk or a killed worker has left it."""
    project.write(RESUMING)
    options = {"resume_with": ("--resume",)}
    made = []
    for epoch in range(3):
        worker = project.worker("{checkpoint_dir}", "1", **options)
        made += worker.run(project.segment(epoch=epoch, until=epoch + 1, is_last=False))
        worker.drop_trial_unless_continued(None)
        with (project.trials / "0" / ".reports.jsonl").open("a") as file:
            file.write('{"step": ')
    assert losses(made) == [1, 1 / 2, 1 / 3]


def test_claim_that_cannot_be_read_interrupts_the_program(project, monkeypatch):
    project.write("import time; time.sleep(600)")
    place = project.trials / ".0.claim"
    read_text = Path.read_text

    def refuse(path, **options):
        if path == place:
            raise OSError(errno.ESTALE, "as the disk says", str(path))
        return read_text(path, **options)

    monkeypatch.setattr(Path, "read_text", refuse)
    (last,) = project.worker().run(project.segment())
    assert (last.outcome, last.unwritable) == ("interrupted", True)
    assert last.reason == f"its folder cannot be read: [Errno {errno.ESTALE}] as the disk says: '{place}'"


def test_program_that_another_worker_continues_ends_first(project):
    """The first worker keeps it while it has nothing else to do."""
    project.write(RESUMING)
    options = {"resume_with": ("--resume",)}
    first, second = (project.worker("{checkpoint_dir}", "2", **options) for _ in range(2))
    assert losses(first.run(project.segment(until=2, is_last=False))) == [1, 1 / 2]
    assert losses(second.run(project.segment(epoch=2, until=4, is_last=False))) == [1 / 3, 1 / 4]
    folder = project.trials / "0"
    assert (folder / "train.py").is_symlink()
    first.drop_trial_unless_continued(None)
    assert (folder / "train.py").is_symlink(), "the second worker needs it"
    second.drop_trial_unless_continued(None)
    assert not (folder / "train.py").exists()
    started = [line for line in project.output() if line.startswith("begins")]
    assert started == ["begins after 0", "begins after 2"]


def test_program_without_checkpoints_starts_again_in_a_new_folder(project):
    project.write("from pathlib import Path; assert not Path('x').exists(); Path('x').touch(); print('loss 1')")
    for _ in range(2):
        reports = [*project.worker().run(project.segment())]
        assert (losses(reports), end(reports)) == ([1.0], ("completed", ""))
    assert [line.partition(",")[0] for line in project.output()] == [
        "loss 1", "--- searchlight: the program starts again", "loss 1",
    ]  # fmt: skip


def test_what_the_program_left_running_ends_with_the_trial(project):
    project.write("""
        import subprocess, sys
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        print("child", child.pid)
        print("loss 1")
    """)
    reports = [*project.worker().run(project.segment())]
    assert end(reports) == ("completed", "")
    assert not is_running(int(project.output()[0].split()[1]))
