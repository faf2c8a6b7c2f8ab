"""Train the next epoch while a checkpoint is written, and report an epoch when its checkpoint is on the storage."""

import errno
import threading
from pathlib import Path
from typing import Any

import pytest

from searchlight.trainables import checkpoint
from searchlight.trainables.checkpoint import writer
from searchlight.trainables.filesystem.storage_errors import UnwritableError
from searchlight.trainables.precision import Diverged
from searchlight.trainables.worker.messages import EpochReport, SegmentAssignment, SegmentEnd
from tests.trainables.toy_models import Regression, identical
from tests.trainables.two_ranks import RANKS
from tests.trainables.worker.local_worker import AfterWindows, metrics, straight, workers

AUGMENTED = "tests.trainables.toy_models:Augmented"
LIMIT = 60.0


class Gate:
    """Holds writes in the background until it is open. `paths` are the checkpoints that it has let through."""

    def __init__(self) -> None:
        self.opened, self.fails = threading.Event(), False
        self.paths: list[str] = []
        self._save = writer.save

    def save(self, state: dict[str, Any], path: Path) -> None:
        assert self.opened.wait(LIMIT)
        if self.fails:
            raise UnwritableError(errno.ENOSPC, "No space left on device")
        self._save(state, path)
        self.paths.append(path.name)


@pytest.fixture
def gate(monkeypatch):
    gate = Gate()
    monkeypatch.setattr(writer, "save", gate.save)
    return gate


def count_windows(task: Regression) -> int:
    return task.updaters["train"].steps + task.updaters["train"].skipped


class OpensLater(Regression):  # in the second window of the second epoch
    gate: Gate

    def update(self, window: list[Any]) -> None:
        super().update(window)
        if count_windows(self) == 5:
            assert not self.gate.paths, "training must not wait for the write"
            self.gate.opened.set()


def run_with(gate: Gate, segment: SegmentAssignment, monkeypatch: Any, stopping: Any = None) -> list[Any]:
    """Return the reports of a segment. Each must have its checkpoint when it is told."""
    monkeypatch.setattr(OpensLater, "gate", gate, raising=False)
    reports = []
    for report in workers(stopping, f"{__name__}:OpensLater").run(segment):
        if isinstance(report, EpochReport):
            assert checkpoint.load(Path(report.checkpoint))["epoch"] == report.epoch
        reports.append(report)
    return reports


def test_next_epoch_trains_during_the_write_and_the_report_waits(stretch, gate, monkeypatch):
    reports = run_with(gate, stretch(until=3), monkeypatch)
    assert [report.epoch for report in reports] == [1, 2, 3]
    assert gate.paths == ["epoch-1-a.pt", "epoch-2-a.pt"], "the last one of a segment is written at once"
    assert identical(metrics(reports), straight(3))


def test_report_is_told_within_the_next_epoch(stretch, monkeypatch, gate):
    """A long epoch must not hold back the report of the one before, which decides whether its trial goes on."""
    windows = []

    def update(task, window):
        Regression.update(task, window)
        windows.append(len(gate.paths))
        if len(windows) == 4:
            gate.opened.set()
            worker.training.finish_save()

    monkeypatch.setattr(OpensLater, "update", update)
    worker = workers(task=f"{__name__}:OpensLater")
    reports = worker.run(stretch(until=2))
    assert next(reports).epoch == 1
    assert len(windows) == 4, "three are an epoch"
    assert [report.epoch for report in reports] == [2]


def test_epoch_whose_checkpoint_fails_later_is_not_told(stretch, gate, monkeypatch):
    gate.fails = True
    (end,) = run_with(gate, stretch(until=3), monkeypatch)
    assert (end.outcome, end.unwritable) == ("interrupted", True)
    assert "No space left on device" in end.reason


def test_epoch_whose_failed_checkpoint_an_autosave_waits_for_is_not_told(stretch, monkeypatch):
    """The autosave within the next epoch, and not the report, is then the first to see the error."""
    failed, save = threading.Event(), writer.save

    def save_or_fail(state, path):
        if path.name.startswith("epoch"):
            assert failed.wait(LIMIT)
            raise UnwritableError(errno.ENOSPC, "No space left on device")
        save(state, path)

    class FailsLater(Regression):
        def update(self, window):
            super().update(window)
            if count_windows(self) == 4:
                failed.set()

    monkeypatch.setattr(writer, "save", save_or_fail)
    monkeypatch.setattr(f"{__name__}.FailsLater", FailsLater, raising=False)
    (end,) = workers(task=f"{__name__}:FailsLater", autosave_s=0.0).run(stretch(until=3))
    assert (end.outcome, end.unwritable, end.notes) == ("interrupted", True, ())


def test_epoch_is_told_before_the_divergence_of_the_next(stretch, gate, monkeypatch):
    def diverge(task, window):
        if count_windows(task) == 4:
            gate.opened.set()
            raise Diverged("it has seen enough")
        Regression.update(task, window)

    monkeypatch.setattr(OpensLater, "update", diverge)
    first, end = run_with(gate, stretch(until=3), monkeypatch)
    assert (first.epoch, end.outcome, end.divergence.epoch) == (1, "diverged", 2)


def test_stop_during_the_write_reports_and_resumes_exactly(stretch, gate, monkeypatch):
    first, end = run_with(gate, stretch(until=3), monkeypatch, AfterWindows(6))
    assert (first.epoch, end) == (1, SegmentEnd("interrupted", "the search was stopped"))
    rest = list(workers().run(stretch(epoch=1, until=3, start=first.checkpoint)))
    assert identical(metrics([first, *rest]), straight(3))


def test_unfinished_checkpoint_goes_after_that_of_its_epoch(stretch, gate, monkeypatch):
    segment = stretch(until=2)
    midway = Path(segment.folder) / "midway-a.pt"
    list(workers(AfterWindows(1)).run(segment))
    assert midway.exists()

    def update(task, window):
        Regression.update(task, window)
        if count_windows(task) == 4:
            assert midway.exists(), "a crash must find this or the other one"
            gate.opened.set()

    monkeypatch.setattr(OpensLater, "update", update)
    assert [report.epoch for report in run_with(gate, segment, monkeypatch)] == [1, 2]
    assert not midway.exists()


def run_on_rank(rank: int, segment: SegmentAssignment) -> list[Any]:
    return list(workers(task=AUGMENTED, rank=rank, world_size=RANKS).run(segment))


def test_ranks_agree_on_the_window_of_a_report(pair, stretch):
    reports = pair.run(run_on_rank, stretch(until=4))
    for own in reports:
        assert [report.epoch for report in own] == [1, 2, 3, 4]
    assert identical(metrics(reports[0]), metrics(reports[1]))
    again = pair.run(run_on_rank, stretch(epoch=2, until=4, start=reports[0][1].checkpoint, attempt="b"))
    assert identical(metrics(again[0]), metrics(reports[0])[2:])
