"""Which checkpoints the searcher keeps, and which of them a stretch starts from."""

from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from optuna.samplers import RandomSampler

from searchlight.search.analysis.best_trials import find_pareto_front
from searchlight.search.errors import StoreError
from searchlight.search.execution import checkpoint_manager
from searchlight.search.execution.checkpoint_manager import CheckpointManager, measure_largest
from searchlight.search.folder import retry
from searchlight.search.folder.deletion_queue import DeletionQueue
from searchlight.search.space.objectives import Objective
from searchlight.search.space.search_space import resolve_space
from searchlight.search.study.study import create_study
from searchlight.search.study.trial import get_reports
from searchlight.trainables import checkpoint
from searchlight.trainables.checkpoint import images
from searchlight.trainables.checkpoint.file import DIGEST
from searchlight.trainables.filesystem.paths import RemotePath, parse_path
from tests.search.execution.searcher_harness import Config, end, lose, report
from tests.search.objectives import VAL_LOSS


def save(searcher, tune_id, folder, epoch, loss, attempt="a", **more):
    """Report as `report` does, with a checkpoint that exists."""
    path = folder / f"epoch-{epoch}-{attempt}.pt"
    path.write_bytes(b"")
    report(searcher, tune_id, epoch, loss, checkpoint=str(path), **more)
    return str(path)


def begin(searcher):
    """Begin a trial, and return its folder."""
    folder = Path(searcher.suggest("t0")["segment"].folder)
    folder.mkdir(parents=True)
    return folder


def test_best_and_last_two_checkpoints_are_kept_with_pictures(make_searcher):
    searcher, _, _ = make_searcher(trials=1, rungs=(9,))
    folder = begin(searcher)
    for epoch, loss in enumerate([0.3, 0.1, 0.2, 0.4], start=1):
        images.save({"one": np.full((2, 2, 3), epoch, np.uint8)}, folder / f"epoch-{epoch}-a.pt")
        save(searcher, "t0", folder, epoch, loss)
        kept = sorted(int(file.name.split("-")[1]) for file in folder.glob("*.pt"))
        assert kept == {1: [1], 2: [1, 2], 3: [2, 3], 4: [2, 3, 4]}[epoch]
    images.save({"one": np.full((2, 2, 3), 5, np.uint8)}, folder / "epoch-5-a.pt")  # which then diverged
    end(searcher, "t0", "diverged", "a weight is not finite")
    assert sorted(path.name for path in folder.iterdir()) == ["epoch-2-a.pt", "epoch-2-a.pt.pictures"]


def test_path_outside_of_the_trials_folders_is_not_deleted(make_searcher, tmp_path):
    searcher, _, _ = make_searcher(trials=1, rungs=(9,))
    folder, foreign = begin(searcher), tmp_path / "thesis" / "drafts"
    foreign.mkdir(parents=True)
    (foreign / "final.txt").write_text("years of work")
    for epoch, path in enumerate([foreign, folder / "..", folder.parent / "1" / ".." / "..", foreign / ".."], start=1):
        report(searcher, "t0", epoch, 1 / epoch, checkpoint=str(path))
    for epoch in (5, 6, 7):
        save(searcher, "t0", folder, epoch, 1 / epoch)
    end(searcher, "t0", "completed", "")
    assert (foreign / "final.txt").read_text() == "years of work"
    assert [path.name for path in folder.iterdir()] == ["epoch-7-a.pt"]


@pytest.mark.parametrize("outcome", ["failed", "completed", "interrupted"])
def test_midway_checkpoint_is_deleted_when_its_trial_ends(make_searcher, outcome):
    searcher, _, _ = make_searcher(trials=1, rungs=(1,))
    folder = begin(searcher)
    for name in ("midway-a.pt", "midway-a.pt.sha256", "midway-b.pt"):
        (folder / name).write_bytes(b"")
    report(searcher, "t0", 1, 0.3)
    end(searcher, "t0", outcome, "it ended")
    searcher.finish(prune=True)
    assert len([*folder.iterdir()]) == (3 if outcome == "interrupted" else 0)


def test_segment_names_older_checkpoints_and_the_start(make_searcher, tmp_path):
    searcher, _, _ = make_searcher(trials=1, rungs=(9,))
    assert searcher.suggest("t0")["segment"].checkpoints == [None]
    paths = [save(searcher, "t0", tmp_path, epoch, loss) for epoch, loss in enumerate([0.1, 0.3, 0.2, 0.4], 1)]
    lose(searcher, "t0")
    segment = searcher.suggest("t1")["segment"]
    assert segment.epoch == 4
    assert segment.checkpoints == [paths[3], paths[2], paths[0], None], "the second was dropped, the first is the best"


def test_repeated_epoch_is_kept_and_not_told_again(make_searcher, caplog):
    searcher, study, watching = make_searcher(trials=1, rungs=(9,))
    folder = begin(searcher)
    for epoch, loss in enumerate([0.3, 0.2], start=1):
        save(searcher, "t0", folder, epoch, loss)
    lose(searcher, "t0")
    assert searcher.suggest("t1")["segment"].epoch == 2
    note = "epoch-2-a.pt is corrupt. The one before it is used."
    again = save(searcher, "t1", folder, 2, 0.2, "b", notes=[note])
    save(searcher, "t1", folder, 3, 0.1, "b")
    assert watching.find("reported") == [("reported", 0, n) for n in (1, 2, 3)]
    assert get_reports(study.get_trial(0))[2]["checkpoint"] == again
    assert sorted(path.name for path in folder.glob("*.pt")) == ["epoch-2-b.pt", "epoch-3-b.pt"]
    assert f"trial 0: {note}" in caplog.text


def test_repeated_report_without_a_checkpoint_only_costs(make_searcher):
    searcher, study, watching = make_searcher(trials=1)
    searcher.suggest("t0")
    report(searcher, "t0", 1, 0.3, done=True, checkpoint=None)
    segment = searcher.suggest("t1")["segment"]
    assert (segment.epoch, segment.checkpoints) == (1, [None])
    for _ in range(2):
        report(searcher, "t1", 1, 0.7, checkpoint=None, costs={"gpu_seconds": 2.0})
    assert study.get_trial(0).intermediate_values == {1: 0.3}
    assert get_reports(study.get_trial(0))[1]["repeated_s"] == 4.0, "which only the table counts"
    assert get_reports(study.get_trial(0))[1]["metrics"] == {"val/loss": 0.3}
    assert watching.find("reported") == [("reported", 0, 1)]


def test_reports_without_checkpoints_leave_the_last_two_others(make_searcher):
    searcher, _, _ = make_searcher(trials=1, rungs=(9,))
    folder = begin(searcher)
    for epoch, loss in enumerate([0.4, 0.1, 0.3, 0.2, 0.5, 0.6], start=1):
        path = folder / str(epoch)
        if epoch % 2:  # a directory, as functions report it
            path.mkdir()
            (path / "state").touch()
        report(searcher, "t0", epoch, loss, checkpoint=str(path) if epoch % 2 else None)
    assert [epoch for epoch in range(1, 7) if (folder / str(epoch)).exists()] == [3, 5]
    lose(searcher, "t0")
    assert searcher.suggest("t1")["segment"].checkpoints == [str(folder / "5"), str(folder / "3"), None]


@pytest.fixture
def in_bucket(make_searcher, s3):
    """Makes searchers whose checkpoints lie in a bucket, and their study; the folder of those checkpoints."""
    folder = parse_path(s3) / "checkpoints"

    def make(**given):
        searcher, study, _ = make_searcher(**given)
        searcher.reports.checkpoints = CheckpointManager(folder, [VAL_LOSS], searcher.limits.checkpoints)
        return searcher, study

    return make, folder


def names(folder):
    return [name for name in folder.list_files() if not name.endswith(DIGEST)]


def train(searcher, tune_id, folder, losses, done=False):
    """Report epochs with checkpoints and pictures; the last one ends the stretch if it is `done`."""
    for epoch, loss in enumerate(losses, start=1):
        path = folder / f"epoch-{epoch}-a.pt"
        images.save({"one": np.zeros((2, 2, 3), np.uint8)}, path)
        checkpoint.save({"epoch": epoch}, path)
        report(searcher, tune_id, epoch, loss, done=done and epoch == len(losses), checkpoint=str(path))


def test_bucket_keeps_the_same_once_the_search_has_ended(in_bucket):
    make, folder = in_bucket
    searcher, _ = make(trials=2, rungs=(4,))
    for tune_id, number in (("t0", "0"), ("t1", "1")):
        assert parse_path(searcher.suggest(tune_id)["segment"].folder) == folder / number
    checkpoint.save({}, folder / "1" / "midway-a.pt")
    train(searcher, "t0", folder / "0", [0.3, 0.1, 0.2])
    train(searcher, "t1", folder / "1", [0.3, 0.1, 0.2, 0.4], done=True)
    lose(searcher, "t0")
    segment = searcher.suggest("t2")["segment"]
    assert segment.checkpoints == [str(folder / "0" / "epoch-3-a.pt"), str(folder / "0" / "epoch-2-a.pt"), None]
    searcher.finish(prune=False)
    kept = ("0/epoch-2-a.pt", "0/epoch-3-a.pt", "1/epoch-2-a.pt")
    assert names(folder) == [path + more for path in kept for more in ("", ".pictures/one.png")]
    assert measure_largest(folder) == len((folder / "1" / "epoch-2-a.pt").read_bytes())


def test_next_driver_deletes_what_a_killed_one_left(in_bucket, monkeypatch):
    make, folder = in_bucket
    searcher, study = make(trials=2, rungs=(2,))
    for tune_id, losses in (("t0", [0.1, 0.2]), ("t1", [0.3])):
        searcher.suggest(tune_id)
        with monkeypatch.context() as patch:
            patch.setattr(DeletionQueue, "submit", lambda *_: None)  # it was killed before
            train(searcher, tune_id, folder / tune_id[1], losses, done=len(losses) == 2)
    assert len(names(folder)) == 6
    resumed, _ = make(onto=study, trials=2, rungs=(2,))
    resumed.recover()
    resumed.reports.checkpoints.close()
    assert names(folder) == [f"{number}/epoch-1-a.pt{more}" for number in (0, 1) for more in ("", ".pictures/one.png")]


def test_bucket_that_refuses_deletions_is_told_once(in_bucket, monkeypatch, caplog):
    make, folder = in_bucket
    searcher, _ = make(trials=1, rungs=(9,))
    searcher.suggest("t0")
    monkeypatch.setattr(RemotePath, "unlink", Mock(side_effect=PermissionError(13, "Permission denied")))
    train(searcher, "t0", folder / "0", [0.3, 0.2, 0.1, 0.4, 0.5])
    searcher.finish(prune=False)
    assert searcher.error is None
    assert caplog.text.count("checkpoints that are not needed could not be deleted, --resume does it") == 1


def test_trial_is_copied_from_the_newest_checkpoint_in_a_bucket(in_bucket, monkeypatch, caplog):
    make, folder = in_bucket
    searcher, study = make(trials=1, rungs=(9,))
    searcher.suggest("t0")
    train(searcher, "t0", folder / "0", [0.3, 0.1, 0.2])
    checkpoint.delete(folder / "0" / "epoch-3-a.pt")
    monkeypatch.setattr(retry, "BETWEEN_S", 0.01)
    copy_to, away = RemotePath.copy_to, iter([True, True, False, False, False])

    def copied(self, target):
        if next(away):
            raise OSError(f"{self}: no route to host")
        copy_to(self, target)

    monkeypatch.setattr(RemotePath, "copy_to", copied)
    path, epoch = searcher.reports.checkpoints.copy(study.get_trial(0), 1)
    assert (path, epoch) == (str(folder / "1" / "copied-from-0.pt"), 2)
    assert checkpoint.load(parse_path(path)) == {"epoch": 2}
    assert "the search's bucket is lost" in caplog.text


def test_copy_without_room_on_the_disk_is_one_line(make_searcher, monkeypatch):
    searcher, _, _ = make_searcher(trials=1, rungs=(9,))
    save(searcher, "t0", begin(searcher), 1, 0.3)
    monkeypatch.setattr(checkpoint, "link", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(StoreError, match=r"copied-from-0\.pt cannot be written: \[Errno 28\] No space left on device"):
        searcher.reports.checkpoints.copy(searcher.study.get_trial(0), 1)


def finish_trials(searcher, losses, outcome="pruned"):
    """Run a trial of one epoch for each of `losses`, with a checkpoint that exists. Return the folder of all trials."""
    for loss in losses:
        tune_id = f"t{len(searcher.study.get_trials())}"
        folder = Path(searcher.suggest(tune_id)["segment"].folder)
        folder.mkdir(parents=True)
        save(searcher, tune_id, folder, 1, loss)
        end(searcher, tune_id, outcome, "it ended")
    assert searcher.error is None
    return folder.parent


def kept(folder):
    """The numbers of the trials that have a checkpoint."""
    return sorted(int(path.parent.name) for path in folder.glob("*/*.pt"))


def test_search_keeps_the_checkpoints_of_its_best_trials(make_searcher):
    searcher, _, _ = make_searcher(trials=9, rungs=(9,), checkpoints=2)
    for loss, numbers in [(0.3, [0]), (0.1, [0, 1]), (0.4, [0, 1]), (0.2, [1, 3]), (0.1, [1, 4])]:
        folder = finish_trials(searcher, [loss])
        assert kept(folder) == numbers
    finish_trials(searcher, [0.01, 0.02], "failed")
    assert kept(folder) == [1, 4], "those without a result come last"


def test_failed_trials_keep_checkpoints_while_there_is_room(make_searcher):
    searcher, _, _ = make_searcher(trials=9, rungs=(9,), checkpoints=2)
    folder = finish_trials(searcher, [0.1, 0.3, 0.2], "diverged")
    assert kept(folder) == [0, 2]
    finish_trials(searcher, [0.9])
    assert kept(folder) == [0, 3]


def test_pictures_stay_when_a_checkpoint_is_not_kept(make_searcher):
    searcher, _, _ = make_searcher(trials=2, rungs=(9,), checkpoints=1)
    folder = begin(searcher)
    images.save({"one": np.zeros((2, 2, 3), np.uint8)}, folder / "epoch-1-a.pt")
    save(searcher, "t0", folder, 1, 0.5)
    end(searcher, "t0", "completed", "")
    finish_trials(searcher, [0.4])
    assert [path.name for path in folder.iterdir()] == ["epoch-1-a.pt.pictures"]


def pause_trial(searcher, tune_id, loss):
    """Run a trial to its first rung, with a checkpoint that exists. Return its folder."""
    folder = Path(searcher.suggest(tune_id)["segment"].folder)
    folder.mkdir(parents=True)
    save(searcher, tune_id, folder, 1, loss, done=True)
    return folder


def test_paused_trials_keep_checkpoints_and_are_promoted_later(make_searcher):
    searcher, study, _ = make_searcher(trials=2, rungs=(1, 3), checkpoints=1)
    pause_trial(searcher, "t0", 0.2)
    folder = pause_trial(searcher, "t1", 0.1).parent
    searcher.finish(prune=False)
    assert kept(folder) == [0, 1], "they wait at a rung"
    resumed, _, _ = make_searcher(onto=study, trials=3, rungs=(1, 3), checkpoints=1)
    resumed.recover()
    pause_trial(resumed, "u0", 0.3)
    segment = resumed.suggest("u1")["segment"]
    assert (segment.trial, segment.epoch) == (1, 1)
    assert Path(segment.checkpoints[0]).exists()
    lose(resumed, "u1")
    resumed.finish(prune=True)
    assert kept(folder) == [1]


def test_driver_killed_before_the_deletion_leaves_it_to_the_next(make_searcher, monkeypatch):
    searcher, study, _ = make_searcher(trials=3, rungs=(9,), checkpoints=1)
    folder = finish_trials(searcher, [0.3])
    segment = Path(searcher.suggest("t1")["segment"].folder)
    segment.mkdir()
    save(searcher, "t1", segment, 1, 0.1)

    class Killed(BaseException):
        pass

    def die(_, entries):
        assert study.get_trial(1).user_attrs["outcome"] == "completed", "the study knows it first"
        assert entries == {
            "0": {"epoch-1-a.pt.pictures"},
            "1": {f"epoch-1-a.pt{x}" for x in ("", DIGEST, images.SUFFIX)},
        }
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_manager, "delete_except", die)
        with pytest.raises(Killed):
            end(searcher, "t1", "completed", "")
    assert kept(folder) == [0, 1]
    study.live.clear()
    resumed, _, _ = make_searcher(onto=study, trials=3, rungs=(9,), checkpoints=1)
    resumed.recover()
    assert kept(folder) == [1]


def test_resumed_search_keeps_fewer_checkpoints_if_asked(make_searcher):
    searcher, study, _ = make_searcher(trials=3, rungs=(9,))
    folder = finish_trials(searcher, [0.3, 0.1, 0.2])
    assert kept(folder) == [0, 1, 2]
    make_searcher(onto=study, trials=3, rungs=(9,), checkpoints=2)[0].recover()
    assert kept(folder) == [1, 2]


def test_whole_pareto_front_is_kept_beside_the_best_trials(tmp_path):
    objectives = [VAL_LOSS, Objective("size", "max")]
    study, lock = create_study(tmp_path, RandomSampler, objectives)
    manager = CheckpointManager(tmp_path / "checkpoints", objectives, 1)
    points = [(0.1, 1.0), (0.2, 2.0), (0.15, 1.0), (0.3, 3.0), (0.4, 2.5), (0.2, 3.5)]
    fronts = [[0], [0, 1], [0, 1], [0, 1, 3], [0, 1, 3], [0, 5]]
    for number, ((loss, size), front) in enumerate(zip(points, fronts, strict=True)):
        path = tmp_path / "checkpoints" / str(number) / "epoch-1-a.pt"
        path.parent.mkdir(parents=True)
        path.touch()
        study.ask(resolve_space(Config, {"precision": "fp32"}, {}))
        study.record_config(number, {})
        metrics = {"val/loss": loss, "size": size}
        study.report(number, 1, loss, {"metrics": metrics, "checkpoint": str(path)})
        study.record_end(number, "completed", "")
        manager.delete_for_ended([study.get_trial(number)])
        assert kept(tmp_path / "checkpoints") == front
    assert [trial.trial_id for trial in find_pareto_front(study.get_trials(), objectives)] == front
    lock.close()


def test_disk_that_refuses_deletions_ends_no_search(make_searcher, monkeypatch, caplog):
    searcher, study, _ = make_searcher(trials=1, rungs=(5,))
    folder = begin(searcher)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", Mock(side_effect=PermissionError(1, "Operation not permitted")))
        for epoch in range(1, 6):
            save(searcher, "t0", folder, epoch, 1 / epoch, done=epoch == 5)
    assert (searcher.error, study.get_trial(0).user_attrs["outcome"]) == (None, "completed")
    assert caplog.text.count("checkpoints that are not needed could not be deleted, --resume does it") == 1
