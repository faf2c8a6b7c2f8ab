"""Trials whose checkpoints lie in a bucket: they go on from there on any machine, and fail with its reason."""

import logging
import os
import threading

import pytest
from ray.train.v2._internal.execution.train_fn_utils import LocalTrainFnUtils, set_train_fn_utils

from tests.trainables.toy_models import FULL, identical, timeless
from tests.trainables.worker import train_functions
from tests.trainables.worker.test_worker_resume import AfterWindows, metrics, run, straight
from trainables.checkpoint import CheckpointError, directory, file
from trainables.context import Context
from trainables.filesystem import paths, remote_path
from trainables.filesystem.paths import parse_path
from trainables.worker.messages import SegmentAssignment, WorkerSettings
from trainables.worker.train_function import FunctionRunner
from trainables.worker.worker import TrialRunner

CONFIG = {**FULL, "precision": "fp16"}  # three windows per epoch


@pytest.fixture
def stretch(s3):
    """Makes stretches of a trial that writes into the bucket."""

    def make(epoch=0, until=3, reports=(), attempt="a", storage=s3, **config):
        found = [report.checkpoint for report in reports][::-1]
        checkpoints = (*found, None)
        return SegmentAssignment(
            0, config or CONFIG, epoch, until, str(parse_path(storage) / "trial-0"), attempt, checkpoints
        )

    return make


def in_bucket(stretch):
    """The files of a trial, without their digests."""
    return [name for name in parse_path(stretch.folder).list_files() if not name.endswith(".sha256")]


def spoil(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


# Tasks


@pytest.mark.parametrize("windows", [1, 3])
def test_a_trial_goes_on_from_the_middle_of_an_epoch_in_a_bucket(stretch, windows):
    first = run(stretch(until=2))
    assert first[-1].checkpoint == f"{stretch().folder}/epoch-2-a.pt"
    (interrupted,) = run(stretch(2, 4, first), windows)
    assert interrupted.outcome == "interrupted"
    assert in_bucket(stretch()) == ["epoch-1-a.pt", "epoch-2-a.pt", "midway-a.pt"]
    rest = run(stretch(2, 4, first, attempt="b"))
    assert identical(metrics(first + rest), straight(4))


def test_an_epoch_saves_itself_in_a_bucket_while_it_goes_on_and_is_deleted_when_it_is_done(stretch):
    worker = TrialRunner(
        WorkerSettings("tests.trainables.toy_models:Augmented"), Context(), AfterWindows(), autosave_s=0.0
    )
    reports = list(worker.run(stretch(until=2)))
    assert identical(metrics(reports), straight(2))
    assert worker.training is not None
    worker.training.close()  # what is deleted in the background
    assert in_bucket(stretch()) == ["epoch-1-a.pt", "epoch-2-a.pt"]


def test_a_bucket_is_asked_to_delete_what_was_saved_alone_and_no_trial_fails_when_it_refuses(
    stretch, monkeypatch, caplog
):
    asked = []

    def refused(path):
        asked.append(path.name)
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(file, "delete", refused)
    assert [report.epoch for report in run(stretch(until=3))] == [1, 2, 3]
    assert asked == []
    workers = TrialRunner(
        WorkerSettings("tests.trainables.toy_models:Augmented"), Context(), AfterWindows(), autosave_s=0.0
    )
    assert [report.epoch for report in workers.run(stretch(until=3, attempt="b"))] == [1, 2, 3]
    assert workers.training is not None
    workers.training.close()
    assert asked == ["midway-b.pt"] * 3
    assert "could not be deleted: [Errno 13] Permission denied" in caplog.text


def test_a_checkpoint_that_is_corrupt_in_a_bucket_is_told_and_the_one_before_it_is_used(stretch):
    first = run(stretch(until=2))
    run(stretch(2, 3, first), 1)
    spoil(parse_path(stretch().folder) / "midway-a.pt")
    spoil(parse_path(first[-1].checkpoint))
    second = run(stretch(2, 3, first, attempt="b"))
    assert identical(metrics(second), straight(3)[1:])
    assert [note.partition("/trial-0/")[2].partition(" ")[0] for note in second[0].notes] == [
        "midway-a.pt", "epoch-2-a.pt"
    ]  # fmt: skip
    assert all("The one before it is used." in note for note in second[0].notes)


def test_a_trial_whose_bucket_is_gone_fails_with_one_reason(stretch, s3, monkeypatch):
    monkeypatch.setattr(remote_path, "ATTEMPTS", 1)
    first = run(stretch(until=1))
    gone = f"{s3}?endpoint_override=http://127.0.0.1:1"
    for reports in (run(stretch(until=1, storage=gone)), run(stretch(1, 2, first, storage=gone))):
        (report,) = reports
        assert report.outcome == "failed"
        assert report.reason.startswith(f"OSError: {s3}/trial-0")
        assert "http://127.0.0.1:1" in report.reason


# Functions

PLAIN = {"trial": 0, "seed": 7}


def call(function, stretch, rank=0, ranks=1):
    """The reports of a function."""
    task = f"tests.trainables.worker.train_functions:{function}"
    context = Context("cpu", rank, ranks) if ranks > 1 else Context()
    return list(FunctionRunner(WorkerSettings(task, "loss"), context, threading.Event()).run(stretch))


@pytest.mark.usefixtures("as_in_a_worker")
def test_a_function_goes_on_from_its_directory_in_a_bucket(stretch):
    first = call("resumes", stretch(**PLAIN))
    assert [report.checkpoint for report in first] == [f"{stretch().folder}/epoch-{n}-a" for n in (1, 2, 3)]
    assert (parse_path(first[1].checkpoint) / "epoch").read_text() == "2"
    second = call("resumes", stretch(3, 4, first, **PLAIN))
    assert train_functions.SEEN == [(0, 0, 0), (0, 3, 1)]
    assert [report.epoch for report in second] == [4]


@pytest.mark.usefixtures("as_in_a_worker")
@pytest.mark.parametrize("damage", ["corrupt", "half uploaded", "gone"])
def test_a_directory_in_a_bucket_that_is_not_whole_is_told_and_the_one_before_it_is_used(stretch, damage):
    first = call("resumes", stretch(**PLAIN))
    path = parse_path(first[-1].checkpoint)
    if damage == "corrupt":
        (path / "epoch").write_text("99")
    elif damage == "gone":
        paths.remove_tree(path)
    else:  # what is known of it comes last
        (path / directory.ABOUT).unlink()
    second = call("resumes", stretch(3, 4, first, **PLAIN))
    assert train_functions.SEEN[-1] == (0, 2, 1)
    assert "The one before it is used." in second[0].notes[0]
    assert directory.read(path)["epoch"] == 3, "the repeated report heals it"


@pytest.mark.usefixtures("as_in_a_worker")
def test_a_function_whose_bucket_is_gone_fails_with_one_reason(stretch, s3, monkeypatch):
    monkeypatch.setattr(remote_path, "ATTEMPTS", 1)
    (report,) = call("resumes", stretch(storage=f"{s3}?endpoint_override=http://127.0.0.1:1", **PLAIN))
    assert report.outcome == "failed"
    assert report.reason.startswith(f"its bucket must take a checkpoint, but got {s3}/trial-0/epoch-1-a")


def call_on(rank, environment, function, scratch, stretch):
    """What both ranks of a pair do."""
    os.environ.update(environment)
    logging.getLogger("trainables").setLevel(logging.INFO)
    set_train_fn_utils(LocalTrainFnUtils("test", world_size=2, world_rank=rank))
    train_functions.SCRATCH[0] = scratch
    return call(function, stretch, rank, 2)


@pytest.mark.parametrize(
    ("function", "losses", "parts"),
    [("each_saves_a_part", [0.0, 3.0], ["rank-0", "rank-1"]), ("all_save_the_same_name", [0.0], ["state"])],
)
def test_all_ranks_put_their_files_into_one_directory_of_a_bucket(
    pair, stretch, s3_server, tmp_path, function, losses, parts
):
    ours, theirs = pair.run(call_on, s3_server.env, function, str(tmp_path), stretch(until=len(losses), **PLAIN))
    assert [timeless(report.metrics) for report in ours] == [{"loss": loss} for loss in losses]
    assert ours == theirs
    path = parse_path(ours[0].checkpoint)
    assert directory.read(path)["epoch"] == 1
    assert path.list_files() == [directory.ABOUT, *parts]
    assert (path / parts[-1]).read_text() == "1", "of those that have one of a name, the last rank's"


def test_of_files_that_several_ranks_have_each_is_put_by_the_last():
    assert directory.assign_files([{"a": "0", "b": "0"}, {}, {"b": "2"}]) == [{"a": "0"}, {}, {"b": "2"}]


def test_a_directory_is_none_before_all_of_it_is_there(s3, tmp_path):
    (tmp_path / "state").write_text("state")
    path = parse_path(s3) / "c"
    paths.upload(tmp_path, path)
    with pytest.raises(CheckpointError, match=f"{path} must be readable"):
        directory.read(path)
    directory.put(tmp_path, path, [directory.compute_digests(tmp_path)], {"epoch": 4}, Context())
    assert directory.read(path)["epoch"] == 4
