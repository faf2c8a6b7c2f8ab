"""A trial whose worker was stopped or lost goes on from the newest checkpoint that is good."""

import math
import multiprocessing
import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainables.toy_models import FULL, Augmented, RegressionConfig, identical, timeless
from tests.trainables.two_ranks import RANKS
from trainables import checkpoint
from trainables.context import Context
from trainables.training.trainer import train
from trainables.worker.messages import EpochReport, SegmentAssignment, SegmentEnd, WorkerSettings
from trainables.worker.worker import TrialRunner

CONFIG = {**FULL, "precision": "fp16"}  # three windows per epoch


class AfterWindows(threading.Event):
    """Is set once as many windows were trained: it is asked before the first one and after each."""

    def __init__(self, windows: float = math.inf) -> None:
        super().__init__()
        self.left = windows

    def is_set(self) -> bool:
        self.left -= 1
        return self.left < 0


@pytest.fixture
def stretch(tmp_path):
    """Makes stretches of one trial."""

    def make(epoch: int, until: int, *checkpoints: str | None, attempt: str = "a") -> SegmentAssignment:
        return SegmentAssignment(0, CONFIG, epoch, until, str(tmp_path / "trial"), attempt, checkpoints or (None,))

    return make


def run(
    stretch: SegmentAssignment, windows: float = math.inf, task: str = "toy_models:Augmented", autosave_s: float = 300.0
) -> list[EpochReport]:
    """The reports of a fresh worker that is stopped after so many windows."""
    return list(
        TrialRunner(WorkerSettings(f"tests.trainables.{task}"), Context(), AfterWindows(windows), autosave_s).run(
            stretch
        )
    )


class Vanishing(Augmented):
    """Its process is gone in the third window."""

    def after_update(self, report: Any) -> None:
        super().after_update(report)
        if self.updaters["train"].steps + self.updaters["train"].skipped == 3:
            os._exit(9)


def run_and_vanish(stretch: SegmentAssignment) -> None:
    torch.set_num_threads(1)
    run(stretch, task="worker.test_worker_resume:Vanishing", autosave_s=0.0)


def metrics(reports: list[EpochReport]) -> list[dict[str, float]]:
    return [timeless(report.metrics) for report in reports]


def straight(epochs: int) -> list[dict[str, float]]:
    return [timeless(report) for report in train(Augmented(RegressionConfig(**CONFIG)), epochs)]


def files(stretch: SegmentAssignment) -> list[str]:
    return sorted(path.name for path in Path(stretch.folder).glob("*.pt"))


def spoil(path: str | Path) -> None:
    content = bytearray(Path(path).read_bytes())
    content[len(content) // 2] ^= 1
    Path(path).write_bytes(content)


# From the middle of an epoch


@pytest.mark.parametrize("windows", [1, 2, 3])
def test_a_stopped_trial_goes_on_from_the_window_that_it_had_reached(stretch, windows):  # H76
    first = run(stretch(0, 2))
    later = stretch(2, 4, first[-1].checkpoint, first[0].checkpoint, None)
    (interrupted,) = run(later, windows)
    assert interrupted == SegmentEnd("interrupted", "the search was stopped")
    assert files(later) == ["epoch-1-a.pt", "epoch-2-a.pt", "midway-a.pt"]
    assert checkpoint.load(Path(later.folder) / "midway-a.pt")["midway"]["windows"] == windows
    rest = run(replace(later, attempt="b"))
    assert identical(metrics(first + rest), straight(4))


def test_the_middle_of_an_epoch_is_deleted_when_the_epoch_is_done(stretch):
    run(stretch(0, 2), 1)
    assert files(stretch(0, 2)) == ["midway-a.pt"]
    reports = run(stretch(0, 2))
    assert identical(metrics(reports), straight(2))
    assert files(stretch(0, 2)) == ["epoch-1-a.pt", "epoch-2-a.pt"]


def test_the_middle_of_another_epoch_is_ignored(stretch):
    first = run(stretch(0, 1))
    run(stretch(1, 3, first[0].checkpoint), 2)  # in the second epoch
    again = run(stretch(0, 2, attempt="b"))
    assert identical(metrics(again), straight(2))
    assert files(stretch(0, 2)) == ["epoch-1-a.pt", "epoch-1-b.pt", "epoch-2-b.pt", "midway-a.pt"]


def test_a_stop_before_the_first_window_of_an_epoch_leaves_no_file(stretch):
    first = run(stretch(0, 1))
    (report,) = run(stretch(1, 2, first[0].checkpoint), 0)
    assert report.outcome == "interrupted"
    assert files(stretch(1, 2)) == ["epoch-1-a.pt"]


def test_a_worker_that_is_lost_in_an_epoch_leaves_the_last_window_that_was_saved(stretch):  # H85
    lost = multiprocessing.get_context("spawn").Process(target=run_and_vanish, args=(stretch(0, 1),))
    lost.start()
    lost.join(60)
    assert lost.exitcode == 9
    saved = checkpoint.load(Path(stretch(0, 1).folder) / "midway-a.pt")
    assert saved["midway"]["windows"] in (1, 2)  # the third one may still have been written
    (report,) = run(stretch(0, 1, attempt="b"))
    assert identical(metrics([report]), straight(1))


def test_a_broken_middle_of_an_epoch_is_passed_over_with_a_note(stretch):  # H84
    first = run(stretch(0, 1))
    later = stretch(1, 2, first[0].checkpoint, None)
    run(later, 2)
    spoil(Path(later.folder) / "midway-a.pt")
    (report,) = run(replace(later, attempt="b"))
    assert identical(metrics([report]), straight(2)[1:])
    (note,) = report.notes
    assert "midway-a.pt must have the SHA-256" in note
    assert note.endswith("it is corrupt. The one before it is used.")


def test_an_older_middle_of_the_epoch_is_taken_where_the_newest_is_broken(stretch):  # H84
    run(stretch(0, 1), 1)
    time.sleep(0.02)  # their ages decide
    run(stretch(0, 1, attempt="b"), 1)
    folder = Path(stretch(0, 1).folder)
    assert [checkpoint.load(folder / f"midway-{name}.pt")["midway"]["windows"] for name in "ab"] == [1, 2]
    spoil(folder / "midway-b.pt")
    (report,) = run(stretch(0, 1, attempt="c"))
    assert identical(metrics([report]), straight(1))


def test_the_middle_of_an_epoch_that_is_deleted_meanwhile_is_passed_over(stretch):
    expected = stretch(0, 1)
    run(expected, 1)
    gone = Path(expected.folder) / "midway-0.pt"  # a name without a file, as after its deletion
    gone.symlink_to(gone.with_name("deleted.pt"))
    (report,) = run(replace(expected, attempt="b"))
    assert identical(metrics([report]), straight(1))
    assert not report.notes


def test_the_middle_of_an_epoch_that_cannot_be_looked_at_fails_the_trial(stretch):
    folder = Path(stretch(0, 1).folder)
    folder.mkdir()
    (folder / "midway-0.pt").symlink_to(folder / "midway-0.pt")
    (report,) = run(stretch(0, 1))
    assert report.outcome == "failed"
    assert "midway-0.pt" in report.reason


# From the end of an epoch


def test_a_broken_newest_checkpoint_costs_an_epoch_and_a_note(stretch):  # H84
    first = run(stretch(0, 2))
    newest, before = (report.checkpoint for report in reversed(first))
    spoil(newest)
    rest = run(stretch(2, 3, newest, before, None, attempt="b"))
    assert [report.epoch for report in rest] == [2, 3]
    assert identical(metrics(rest), straight(3)[1:])
    assert [len(report.notes) for report in rest] == [1, 0]
    assert newest in rest[0].notes[0]


def test_two_broken_checkpoints_cost_the_trial_its_epochs_where_it_began_here(stretch):  # H84
    first = run(stretch(0, 2))
    for report in first:
        spoil(report.checkpoint)
    rest = run(stretch(2, 3, first[1].checkpoint, first[0].checkpoint, None, attempt="b"))
    assert identical(metrics(rest), straight(3))
    assert [Path(note.split()[1]).name for note in rest[0].notes] == ["epoch-2-a.pt", "epoch-1-a.pt"]


def test_two_broken_checkpoints_and_nothing_before_them_fail_the_trial_by_name(stretch):  # H84
    first = run(stretch(0, 2))
    for report in first:
        spoil(report.checkpoint)
    (failed,) = run(stretch(2, 3, first[1].checkpoint, first[0].checkpoint, attempt="b"))
    assert (failed.done, failed.outcome) == (True, "failed")
    assert first[0].checkpoint in failed.reason


def test_a_checkpoint_that_is_gone_is_passed_over(stretch):  # H84
    first = run(stretch(0, 2))
    checkpoint.delete(Path(first[1].checkpoint))
    rest = run(stretch(2, 3, first[1].checkpoint, first[0].checkpoint, None, attempt="b"))
    assert identical(metrics(rest), straight(3)[1:])


# Two ranks


def on_rank(rank: int, stretch: SegmentAssignment, windows: float) -> list[EpochReport]:
    context = Context(rank=rank, world_size=RANKS)
    return list(
        TrialRunner(WorkerSettings("tests.trainables.toy_models:Augmented"), context, AfterWindows(windows)).run(
            stretch
        )
    )


@pytest.mark.parametrize("broken", [False, True], ids=["good", "broken"])
def test_two_ranks_take_up_the_same_file(pair, stretch, broken):  # H76, H84, C61
    expected = pair.run(on_rank, replace(stretch(0, 2), folder=stretch(0, 2).folder + "-straight"), math.inf)
    first = pair.run(on_rank, stretch(0, 1), math.inf)
    later = stretch(1, 2, first[0][0].checkpoint, None)
    assert [reports[-1].outcome for reports in pair.run(on_rank, later, 1)] == ["interrupted"] * 2
    assert files(later) == ["epoch-1-a.pt", "midway-a.pt"]
    if broken:
        spoil(Path(later.folder) / "midway-a.pt")
    rest = pair.run(on_rank, later, math.inf)
    for rank in range(RANKS):
        assert identical(metrics(first[rank] + rest[rank]), metrics(expected[rank]))
    assert files(later) == ["epoch-1-a.pt", "epoch-2-a.pt"]


# What a stopped trial leaves in its process


def test_the_data_loaders_of_a_stopped_trial_end_with_it(stretch):
    start = time.monotonic()
    (report,) = run(stretch(0, 1), 1, task="training.test_trainer_resume:Prefetched")
    assert report.outcome == "interrupted"
    assert time.monotonic() - start < 5, "each process of a loader was waited for"


# Notes


def test_a_report_carries_what_was_logged_since_the_one_before(stretch):
    reports = run(replace(stretch(0, 2), config={**CONFIG, "precision": "auto"}))
    assert [report.notes for report in reports] == [["precision auto is bf16 on cpu"], ()]
