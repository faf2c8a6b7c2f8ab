"""Resume a trial whose worker was stopped or lost from the newest checkpoint that is good."""

import errno
import functools
import hashlib
import math
import multiprocessing
import operator
import os
import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from searchlight.trainables import checkpoint
from searchlight.trainables.worker.messages import EpochReport, SegmentAssignment, SegmentEnd
from tests.trainables.toy_models import Augmented, identical
from tests.trainables.training.trials import flip_bit
from tests.trainables.two_ranks import RANKS
from tests.trainables.worker.local_worker import AfterWindows, metrics, straight, workers

AUGMENTED = "tests.trainables.toy_models:Augmented"


def run(segment: SegmentAssignment, windows: float = math.inf, task: str = AUGMENTED, **options) -> list[EpochReport]:
    """The reports of a fresh worker that is stopped after so many windows."""
    return list(workers(AfterWindows(windows), task, **options).run(segment))


def list_checkpoints(segment: SegmentAssignment) -> list[str]:
    return sorted(path.name for path in Path(segment.folder).glob("*.pt"))


@pytest.mark.parametrize("windows", [1, 3])
def test_stopped_trial_resumes_at_its_window(stretch, windows):
    first = run(stretch(until=2))
    later = stretch(epoch=2, until=4, start=(first[-1].checkpoint, first[0].checkpoint, None))
    assert run(later, windows) == [SegmentEnd("interrupted", "the search was stopped")]
    assert list_checkpoints(later) == ["epoch-1-a.pt", "epoch-2-a.pt", "midway-a.pt"]
    assert checkpoint.load(Path(later.folder) / "midway-a.pt")["midway"]["windows"] == windows
    assert identical(metrics(first + run(replace(later, attempt="b"))), straight(4, Augmented))


def test_checkpoint_of_an_epoch_replaces_the_unfinished_one(stretch):
    run(stretch(), 1)
    assert list_checkpoints(stretch()) == ["midway-a.pt"]
    assert identical(metrics(run(stretch())), straight(2, Augmented))
    assert list_checkpoints(stretch()) == ["epoch-1-a.pt", "epoch-2-a.pt"]


def test_unfinished_checkpoint_of_another_epoch_is_ignored(stretch):
    (first,) = run(stretch(until=1))
    run(stretch(epoch=1, until=3, start=first.checkpoint), 2)  # in the second epoch
    assert identical(metrics(run(stretch(attempt="b"))), straight(2, Augmented))
    assert list_checkpoints(stretch()) == ["epoch-1-a.pt", "epoch-1-b.pt", "epoch-2-b.pt", "midway-a.pt"]


def test_broken_unfinished_checkpoint_is_skipped_with_a_note(stretch):  # H84
    (first,) = run(stretch(until=1))
    later = stretch(epoch=1, until=2, start=(first.checkpoint, None))
    run(later, 2)
    flip_bit(f"{later.folder}/midway-a.pt")
    (report,) = run(replace(later, attempt="b"))
    assert identical(metrics([report]), straight(2, Augmented)[1:])
    (note,) = report.notes
    assert "midway-a.pt must have the SHA-256" in note
    assert note.endswith("it is corrupt. The one before it is used.")


def test_older_unfinished_checkpoint_replaces_a_broken_one(stretch):
    folder = Path(stretch().folder)
    run(stretch(until=1), 1)
    run(stretch(until=1, attempt="b"), 1)
    os.utime(folder / "midway-a.pt", ns=(0, 0))  # their ages decide
    assert [checkpoint.load(folder / f"midway-{name}.pt")["midway"]["windows"] for name in "ab"] == [1, 2]
    flip_bit(folder / "midway-b.pt")
    assert identical(metrics(run(stretch(until=1, attempt="c"))), straight(1, Augmented))


def test_checkpoint_deleted_during_the_search_is_skipped(stretch):
    run(stretch(until=1), 1)
    gone = Path(stretch().folder) / "midway-0.pt"  # a name without a file, as after its deletion
    gone.symlink_to(gone.with_name("deleted.pt"))
    (report,) = run(stretch(until=1, attempt="b"))
    assert identical(metrics([report]), straight(1, Augmented))
    assert not report.notes


def test_checkpoint_that_cannot_be_examined_fails_the_trial(stretch):
    loop = Path(stretch().folder) / "midway-0.pt"
    loop.parent.mkdir()
    loop.symlink_to(loop)
    (report,) = run(stretch(until=1))
    assert report.outcome == "failed"
    assert "midway-0.pt" in report.reason


FINISHED = "epoch-1-a.pt"


@pytest.mark.parametrize(
    ("number", "call", "name"),
    [(number, "open", FINISHED) for number in (errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE, errno.EMFILE)]
    + [(errno.ENOMEM, "read_bytes", FINISHED), (errno.EACCES, "iterdir", "")]
    + [(errno.EIO, *of) for of in (("open", f"{FINISHED}.sha256"), ("stat", FINISHED), ("stat", "midway-a.pt"))],
)
def test_checkpoint_that_the_disk_does_not_give_interrupts_a_trial(stretch, monkeypatch, number, call, name):
    (first,) = run(stretch(until=1))
    later = stretch(epoch=1, until=2, start=(first.checkpoint, None))
    if "midway" in name:
        run(later, 2)
    known, place = getattr(Path, call), Path(later.folder, name)

    def refuse(path, *arguments, **options):
        if path == place:
            raise OSError(number, "as the disk says", str(path))
        return known(path, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, call, refuse)
        (end,) = run(replace(later, attempt="b"))
    assert (end.outcome, end.unwritable) == ("interrupted", True)
    assert end.reason == f"a checkpoint cannot be read: [Errno {number}] as the disk says: '{place}'"
    rest = run(replace(later, attempt="b"))
    assert identical(metrics(rest), straight(2, Augmented)[1:]), "no epoch is repeated"
    assert not rest[0].notes, "it is not damaged"


def test_broken_checkpoints_cost_epochs_and_a_note_each(stretch):  # H84
    first = run(stretch())
    newest, before = (report.checkpoint for report in reversed(first))
    later = stretch(epoch=2, until=3, start=(newest, before, None), attempt="b")
    expected = straight(3, Augmented)
    Path(newest).write_bytes(crafted := pickle.dumps(print))  # a right digest, but other objects than tensors
    Path(f"{newest}.sha256").write_text(hashlib.sha256(crafted).hexdigest())
    rest = run(later)
    assert [report.epoch for report in rest] == [2, 3]
    assert identical(metrics(rest), expected[1:])
    assert [len(report.notes) for report in rest] == [1, 0]
    assert newest in rest[0].notes[0]
    flip_bit(before)
    rest = run(later)
    assert identical(metrics(rest), expected), "it began here, so it begins again"
    assert [Path(note.split()[1]).name for note in rest[0].notes] == ["epoch-2-a.pt", "epoch-1-a.pt"]
    (failed,) = run(replace(later, checkpoints=(newest, before)))
    assert (failed.done, failed.outcome) == (True, "failed")
    assert before in failed.reason


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (["midway"], None),  # as in a checkpoint from the end of an epoch
        (["midway"], {}),
        (["midway", "ranks"], [{}]),
        (["epoch"], "1"),
        (["updaters", "main"], {"steps": 1}),
        (["modules"], [1]),
        *(([key], ...) for key in ("task", "blowups", "built")),
    ],
    ids=str,
)
def test_checkpoint_without_a_part_is_a_broken_one(stretch, keys, value):
    """Its digest is right. `...` stands for a part that is missing."""
    (first,) = run(stretch(until=1))
    later = stretch(epoch=1, until=2, start=(first.checkpoint, None), attempt="b")
    run(later, 2)
    *outer, last = keys
    damaged = [Path(later.folder) / "midway-b.pt"]
    damaged += [] if "midway" in keys else [Path(first.checkpoint)]
    for path in damaged:
        state = checkpoint.load(path)
        part = functools.reduce(operator.getitem, outer, state)
        part[last] = value
        if value is ...:
            del part[last]
        checkpoint.save(state, path)
    rest = run(replace(later, attempt="c"))
    assert identical(metrics(rest), straight(2, Augmented)[-len(damaged) :]), "it trains again"
    assert len(rest[0].notes) == len(damaged)
    for note, path in zip(rest[0].notes, damaged, strict=True):
        assert f"{path} must be one of a trial, but its {keys[0]} is not" in note


def run_on_rank(rank: int, segment: SegmentAssignment, windows: float) -> list[EpochReport]:
    return run(segment, windows, rank=rank, world_size=RANKS)


def test_two_ranks_skip_the_same_broken_file(pair, stretch):
    expected = pair.run(run_on_rank, stretch(trial=1), math.inf)
    first = pair.run(run_on_rank, stretch(until=1), math.inf)
    later = stretch(epoch=1, until=2, start=(first[0][0].checkpoint, None))
    assert [reports[-1].outcome for reports in pair.run(run_on_rank, later, 1)] == ["interrupted"] * 2
    assert list_checkpoints(later) == ["epoch-1-a.pt", "midway-a.pt"]
    flip_bit(f"{later.folder}/midway-a.pt")
    rest = pair.run(run_on_rank, later, math.inf)
    for rank in range(RANKS):
        assert identical(metrics(first[rank] + rest[rank]), metrics(expected[rank]))
    assert list_checkpoints(later) == ["epoch-1-a.pt", "epoch-2-a.pt"]


def test_data_loaders_of_a_stopped_trial_end_with_it(stretch):
    before = multiprocessing.active_children()
    (report,) = run(stretch(until=1), 1, task="tests.trainables.training.test_trainer_resume:Prefetched")
    assert report.outcome == "interrupted"
    assert {*multiprocessing.active_children()} <= {*before}
