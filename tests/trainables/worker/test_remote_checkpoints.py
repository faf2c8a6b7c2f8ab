"""Resume trials whose checkpoints are in a bucket, and fail those whose bucket is gone."""

import os
from dataclasses import replace

import pytest

from searchlight.trainables.checkpoint import directory, writer
from searchlight.trainables.filesystem import paths, remote_path
from searchlight.trainables.filesystem.paths import parse_path
from tests.trainables.toy_models import Augmented, identical
from tests.trainables.worker import test_train_function, train_functions
from tests.trainables.worker.local_worker import metrics, straight, stretch_in, workers
from tests.trainables.worker.test_worker_resume import AUGMENTED, run


@pytest.fixture
def stretch(s3):
    """Makes stretches of a trial that writes into the bucket."""

    def make(epoch=0, until=3, reports=(), storage=s3, attempt="a", **config):
        start = (*[report.checkpoint for report in reports][::-1], None)
        segment = stretch_in(parse_path(storage), 0, epoch, until, start, attempt)
        return replace(segment, config=config) if config else segment

    return make


@pytest.fixture
def gone(s3, monkeypatch):
    """The bucket at an endpoint that nobody serves."""
    monkeypatch.setattr(remote_path, "ATTEMPTS", 1)
    return f"{s3}?endpoint_override=http://127.0.0.1:1"


def list_checkpoints(stretch):
    """The files of a trial, without their digests."""
    return [name for name in parse_path(stretch.folder).list_files() if not name.endswith(".sha256")]


def test_trial_resumes_inside_an_epoch_in_a_bucket(stretch):
    first = run(stretch(until=2))
    assert first[-1].checkpoint == f"{stretch().folder}/epoch-2-a.pt"
    (interrupted,) = run(stretch(2, 4, first), 1)
    assert interrupted.outcome == "interrupted"
    assert list_checkpoints(stretch()) == ["epoch-1-a.pt", "epoch-2-a.pt", "midway-a.pt"]
    assert identical(metrics(first + run(stretch(2, 4, first, attempt="b"))), straight(4, Augmented))


def test_bucket_deletes_only_what_was_saved_and_may_refuse(stretch, monkeypatch, caplog):
    asked, delete = [], writer.delete

    def refuse(path):
        asked.append(path.name)
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(writer, "delete", refuse)
    expected = straight(2, Augmented)
    assert identical(metrics(run(stretch(until=2))), expected)
    assert asked == []
    for attempt, deleting in (("b", refuse), ("c", delete)):
        monkeypatch.setattr(writer, "delete", deleting)
        worker = workers(task=AUGMENTED, autosave_s=0.0)
        assert identical(metrics(list(worker.run(stretch(until=2, attempt=attempt)))), expected)
        worker.training.close()  # what is deleted in the background
    assert asked == ["midway-b.pt"] * 2
    assert "could not be deleted: [Errno 13] Permission denied" in caplog.text
    assert [name for name in list_checkpoints(stretch()) if name.startswith("midway")] == ["midway-b.pt"]


def test_trial_whose_bucket_is_gone_is_interrupted_with_one_reason(stretch, s3, gone):
    first = run(stretch(until=1))
    for reports in (run(stretch(until=1, storage=gone)), run(stretch(1, 2, first, storage=gone))):
        (report,) = reports
        assert (report.outcome, report.unwritable) == ("interrupted", True), "another trial would find it so, too"
        assert f"{s3}/trial-0" in report.reason
        assert "http://127.0.0.1:1" in report.reason


PLAIN = {"trial": 0, "seed": 7}


@pytest.mark.usefixtures("as_in_a_worker")
@pytest.mark.parametrize("damage", [None, "corrupt", "half uploaded", "gone"])
def test_function_resumes_from_the_newest_whole_directory(stretch, damage):
    first = test_train_function.run("resumes", stretch(**PLAIN))
    assert [report.checkpoint for report in first] == [f"{stretch().folder}/epoch-{n}-a" for n in (1, 2, 3)]
    path = parse_path(first[-1].checkpoint)
    if damage == "corrupt":
        (path / "epoch").write_text("99")
    elif damage == "gone":
        paths.remove_tree(path)
    elif damage:  # what is known of it comes last
        (path / directory.ABOUT).unlink()
    second = test_train_function.run("resumes", stretch(3, 4, first, **PLAIN))
    assert second[-1].epoch == 4
    assert [(0, 0, 0), (0, 2 if damage else 3, 1)] == train_functions.SEEN
    if damage:
        assert "The one before it is used." in second[0].notes[0]
        assert directory.read(path)["epoch"] == 3, "the repeated report heals it"


@pytest.mark.usefixtures("as_in_a_worker")
def test_function_whose_bucket_is_gone_is_interrupted_with_one_reason(stretch, s3, gone):
    (report,) = test_train_function.run("resumes", stretch(storage=gone, **PLAIN))
    assert (report.outcome, report.unwritable) == ("interrupted", True)
    assert f"{s3}/trial-0/epoch-1-a" in report.reason


def run_on(rank, environment, *arguments):
    os.environ.update(environment)
    return test_train_function.run_on(rank, *arguments)


@pytest.mark.parametrize(
    ("function", "losses", "parts"),
    [("each_saves_a_part", [0.0, 3.0], ["rank-0", "rank-1"]), ("all_save_the_same_name", [0.0], ["state"])],
)
def test_all_ranks_put_their_files_into_one_directory(pair, stretch, s3_server, tmp_path, function, losses, parts):
    segment = stretch(until=len(losses), **PLAIN)
    ours, theirs = pair.run(run_on, s3_server.env, function, str(tmp_path), segment)
    assert metrics(ours) == [{"loss": loss} for loss in losses]
    assert ours == theirs
    path = parse_path(ours[0].checkpoint)
    assert directory.read(path)["epoch"] == 1
    assert path.list_files() == [directory.ABOUT, *parts]
    assert (path / parts[-1]).read_text() == "1", "of those that have one of a name, the last rank's"
