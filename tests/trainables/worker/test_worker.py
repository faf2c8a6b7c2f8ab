"""Run one segment of a trial after another, of which none is affected by the one before."""

import errno
import math
import re
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from searchlight.trainables import checkpoint
from searchlight.trainables.checkpoint import file
from searchlight.trainables.precision import Diverged
from searchlight.trainables.preflight.findings import describe_error
from searchlight.trainables.worker.endings import build_interruption, check_other_metrics
from searchlight.trainables.worker.messages import Divergence, Infeasibility, Migration, SegmentEnd
from tests.trainables.toy_models import Compiled, Regression, identical
from tests.trainables.worker.local_worker import TASK, AfterWindows, metrics, straight, workers


def test_each_epoch_is_reported_with_its_checkpoint(stretch, tmp_path):
    reports = list(workers().run(stretch(until=3)))
    assert [(report.epoch, report.done) for report in reports] == [(1, False), (2, False), (3, True)]
    assert not any(isinstance(report, SegmentEnd) for report in reports)
    assert identical(metrics(reports), straight(3))
    for report in reports:
        assert report.checkpoint == str(tmp_path / "trial-0" / f"epoch-{report.epoch}-a.pt")
        assert checkpoint.load(Path(report.checkpoint))["epoch"] == report.epoch


def test_first_report_after_a_build_has_its_datasets(stretch, monkeypatch):
    build = Regression.build

    def build_named(task):
        build(task)
        task.dataset("sines", task.inputs, source="made here")

    monkeypatch.setattr(Regression, "build", build_named)
    worker = workers()
    first = list(worker.run(stretch(until=2)))
    on = list(worker.run(stretch(epoch=2, until=3)))
    again = list(workers().run(stretch(epoch=2, until=3, start=first[-1].checkpoint)))
    sines = [{"name": "sines", "digest": first[0].datasets[0]["digest"], "source": "made here", "use": "training"}]
    assert [report.datasets for report in (*first, *on, *again)] == [sines, [], [], sines]


def test_report_without_an_objective_fails_its_trial(stretch):
    (report,) = workers(others=["time/samples_per_s", "val/size"]).run(stretch())
    assert (report.done, report.outcome) == (True, "failed")
    assert report.reason.startswith("ValueError: a report must have the metric 'val/size', but got amp/")
    assert " val/loss," in report.reason


def test_non_finite_secondary_objective_raises_diverged():
    with pytest.raises(Diverged, match="train/grad_norm is inf after epoch 2") as caught:
        check_other_metrics(["train/grad_norm"], {"train/grad_norm": math.inf}, "after epoch 2")
    assert caught.value.metrics == {"train/grad_norm": math.inf}


def test_reports_carry_notes_logged_since_the_one_before(stretch):
    reports = list(workers().run(stretch(precision="auto")))
    assert [report.notes for report in reports] == [["precision auto is bf16 on cpu"], ()]


@pytest.mark.parametrize("way", ["in memory", "from the checkpoint", "in a fresh worker"])
def test_later_segment_continues_its_trial_exactly(stretch, way):
    worker = workers()
    first = list(worker.run(stretch(until=2)))
    if way == "in memory":
        checkpoint.delete(Path(first[-1].checkpoint))
    if way == "from the checkpoint":  # another trial in between takes its place
        list(worker.run(stretch(trial=1, until=1, seed=5)))
    if way == "in a fresh worker":
        worker = workers()
    second = list(worker.run(stretch(epoch=2, until=4, start=first[-1].checkpoint)))
    assert [report.epoch for report in second] == [3, 4]
    assert identical(metrics(first + second), straight(4))


def test_trial_restarts_from_an_earlier_epoch(stretch):
    worker = workers()
    first = list(worker.run(stretch(until=3)))
    again = list(worker.run(stretch(epoch=1, until=3, start=first[0].checkpoint)))
    assert identical(metrics(again), metrics(first)[1:])


@pytest.mark.parametrize("windows", [0, 2])
def test_interrupted_trial_does_not_continue_in_memory(stretch, windows):
    stopping = AfterWindows()
    worker = workers(stopping)
    reports = list(worker.run(stretch(until=1)))
    later = stretch(epoch=1, until=2, start=reports[0].checkpoint)
    stopping.left = windows
    assert [report.outcome for report in worker.run(later)] == ["interrupted"]
    stopping.left = math.inf
    assert identical(metrics(reports + list(worker.run(later))), straight(2))


@pytest.mark.parametrize(
    ("task", "settings", "reason", "source"),
    [
        (TASK, {"fault": "raises in build"}, "RuntimeError: the data is gone$", "in misbehave"),
        (TASK, {"fault": "raises in evaluate"}, r"KeyError: 'no such puzzle\\nsecond line'$", "in evaluate"),
        (TASK, {"fault": "too large for torch"}, "out of memory: ", "in misbehave"),
        (TASK, {"fault": "too large for numpy"}, "out of memory: ", "in misbehave"),
        (TASK, {"size": "many"}, ".*RegressionConfig", ""),
        ("tests.trainables.toy_models:Missing", {}, ".*Missing", ""),
        (TASK, {}, "SystemExit: no data$", "in exit_there"),
    ],
)
def test_trial_that_raises_fails_and_the_next_is_unharmed(stretch, monkeypatch, task, settings, reason, source):
    def exit_there(*_):
        sys.exit("no data")

    worker = workers(task=task)
    with monkeypatch.context() as patch:
        if "SystemExit" in reason:
            patch.setattr(Regression, "train_batches", exit_there)
        (report,) = worker.run(stretch(**settings))
    assert (report.done, report.outcome) == (True, "failed")
    assert re.match(reason, report.reason)
    assert report.traceback.startswith("Traceback")
    assert source in report.traceback
    assert worker.training is None
    worker.task = TASK
    assert identical(metrics(list(worker.run(stretch(trial=1, until=1)))), straight(1))


@pytest.mark.parametrize(
    ("method", "error", "infeasibility"),
    [
        ("build", MemoryError(), Infeasibility("memory")),
        ("loss", torch.OutOfMemoryError("CUDA out of memory"), Infeasibility("memory", in_window=True)),
        ("evaluate", RuntimeError("DefaultCPUAllocator: can't allocate memory"), Infeasibility("memory")),
        ("build", ValueError("width must be a multiple of the heads"), Infeasibility("build")),
        ("build", AssertionError("embed_dim must be divisible by num_heads"), Infeasibility("build")),
        ("build", OSError("the data is gone"), None),
        ("evaluate", ValueError("not of the build"), None),
    ],
    ids=str,
)
def test_failure_that_its_config_causes_is_infeasible(stretch, monkeypatch, method, error, infeasibility):
    def refuse(*_):
        raise error

    monkeypatch.setattr(Regression, method, refuse)
    (end,) = workers().run(stretch())
    assert (end.outcome, end.infeasibility) == ("failed", infeasibility)


UNWRITABLE = [errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO, errno.ESTALE]


@pytest.mark.parametrize("number", UNWRITABLE)
def test_folder_that_cannot_be_written_interrupts_a_trial(stretch, monkeypatch, number):
    def refuse(path, content):
        raise OSError(number, "as the disk says")

    with monkeypatch.context() as patch:
        patch.setattr(file, "write_durable", refuse)
        (end,) = workers().run(stretch())
    path = f"{stretch().folder}/epoch-1-a.pt"
    assert (end.outcome, end.unwritable) == ("interrupted", True)
    assert end.reason == f"a checkpoint cannot be written: [Errno {number}] as the disk says: '{path}'"
    assert identical(metrics(list(workers().run(stretch()))), straight(2))


def test_file_in_place_of_the_folder_interrupts_a_trial(stretch):
    folder = Path(stretch().folder)
    folder.write_text("in the way")
    (end,) = workers().run(stretch())
    assert (end.outcome, end.unwritable) == ("interrupted", True)
    folder.unlink()
    assert identical(metrics(list(workers().run(stretch()))), straight(2))


@pytest.mark.parametrize("method", ["train_batches", "evaluate", "state_dict"])
@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ENOSPC])
def test_file_error_of_the_task_itself_fails_its_trial(stretch, monkeypatch, method, number):
    def refuse(*_):
        raise OSError(number, "as the disk says", "data.bin")

    monkeypatch.setattr(Regression, method, refuse)
    (end,) = workers().run(stretch())
    assert (end.outcome, end.unwritable) == ("failed", False)


def test_missing_data_file_is_answered_with_an_absolute_path(stretch, monkeypatch, tmp_path):
    for name, remedy in [("data.csv", ". Workers get no data files: give an absolute path"), (tmp_path / "no.csv", "")]:
        monkeypatch.setattr(Regression, "evaluate", lambda _, name=name: Path(name).read_text())
        (end,) = workers().run(stretch())
        assert end.reason == f"FileNotFoundError: [Errno 2] No such file or directory: {str(name)!r}{remedy}"
        with pytest.raises(FileNotFoundError) as caught:
            Path(name).read_text()
        assert describe_error(caught.value) == end.reason


def test_file_that_grows_too_large_fails_its_trial(stretch, monkeypatch):
    monkeypatch.setattr(file, "write_durable", Mock(side_effect=OSError(errno.EFBIG, "File too large")))
    (end,) = workers().run(stretch())
    assert (end.outcome, end.reason) == ("failed", "OSError: [Errno 27] File too large")


def test_diverged_trial_says_so_and_the_next_is_unharmed(stretch):
    worker = workers()
    (report,) = worker.run(stretch(fault="nan loss", precision="bf16", max_consecutive_skips=1))
    assert (report.done, report.outcome) == (True, "diverged")
    assert re.match(r"2 windows in a row were not finite: at step 0 .* first in model\.0\.weight", report.reason)
    assert report.divergence == Divergence("skips", 1)
    assert worker.training is None
    assert identical(metrics(list(worker.run(stretch(trial=1, until=1)))), straight(1))


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_non_finite_objective_ends_its_trial_with_a_report(stretch, value):
    _, report = workers().run(stretch(until=4, fault=f"lost: {value}"))
    assert (report.outcome, report.reason) == ("diverged", f"val/loss is {value} after epoch 2")
    assert report.divergence == Divergence("objective", 2)
    assert (report.last.epoch, str(report.last.metrics["val/loss"])) == (2, str(value))


def test_task_that_raises_diverged_ends_its_trial_without_report(stretch, monkeypatch):
    def evaluate(task):
        if task.seen > task.config.size:  # in its second epoch
            raise Diverged("it got lost", {"entropy": 0.0})
        return {"val/loss": 1.0}

    monkeypatch.setattr(Regression, "evaluate", evaluate)
    first, report = workers().run(stretch(until=4))
    assert first.epoch == 1
    assert (report.outcome, report.reason) == ("diverged", "it got lost")
    assert report.divergence == Divergence("other", 2)
    assert report.last is None


def test_stop_before_the_first_window_leaves_no_file(stretch, tmp_path):
    (report,) = workers(AfterWindows(0)).run(stretch())
    assert report == SegmentEnd("interrupted", "the search was stopped")
    assert not (tmp_path / "trial-0").exists()


def test_trial_migrates_unless_a_rank_knows_of_a_stop():
    going, stop, nothing = (True, "node 10.0.0.3 is going away"), (True, ""), (False, "")
    for ranks in ([going], [going, going], [going, nothing], [nothing, (False, going[1])]):
        assert build_interruption(ranks) == Migration(going[1])
    for ranks in ([stop], [stop, going], [nothing, stop]):
        assert build_interruption(ranks).outcome == "interrupted"


def test_build_windows_and_evaluation_are_progress(stretch, monkeypatch):
    """Count as the heartbeat does while the trial hangs in one of its methods."""
    worker, seen = workers(), []

    def watch(name: str) -> None:
        method = getattr(Regression, name)

        def watched(task: Any, *arguments: Any) -> Any:
            seen.append((name, worker.progress))
            return method(task, *arguments)

        monkeypatch.setattr(Regression, name, watched)

    for name in ("build", "loss", "evaluate", "state_dict"):
        watch(name)
    list(worker.run(stretch(until=1, accumulation=1, size=12)))
    names, progress = zip(*seen, strict=True)
    # The state is asked for between build and the first window, and when the epoch is saved.
    assert names == ("build", "state_dict", "loss", "loss", "loss", "evaluate", "state_dict")
    assert sorted(set(progress)) == list(progress), "it stood still between two of them"


def test_each_compiled_trial_is_compiled_anew(stretch):
    worker = workers(task="tests.trainables.toy_models:Compiled")
    counts = []
    for trial, width in enumerate((4, 5, 6)):
        Compiled.compilations = 0
        (report,) = worker.run(stretch(trial=trial, until=1, precision="fp32", width=width))
        assert not isinstance(report, SegmentEnd)
        counts.append(Compiled.compilations)
        assert worker.recycle_reason == "", "the next trial may use the process, although compiling changed it"
    assert counts[0] > 0
    assert counts == [counts[0]] * 3
