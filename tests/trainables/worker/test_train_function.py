"""A training function that knows Ray Train alone is a trial: its reports are told, and may end it."""

import inspect
import itertools
import logging
import math
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from ray.train.v2._internal.execution.train_fn_utils import (
    LocalTrainFnUtils,
    TrainFnUtils,
    get_train_fn_utils,
    set_train_fn_utils,
)

from tests.trainables.toy_models import timeless
from tests.trainables.worker import train_functions
from trainables.checkpoint import CheckpointError, delete, directory
from trainables.context import Context
from trainables.worker.messages import (
    Divergence,
    GangResult,
    Migration,
    SegmentAssignment,
    SegmentBudget,
    SegmentEnd,
    WorkerSettings,
    to_json,
)
from trainables.worker.train_function import FunctionRunner, Session, TrialEnded

pytestmark = pytest.mark.usefixtures("as_in_a_worker")
LIMIT_S = 30.0


@pytest.fixture
def stretch(tmp_path):
    """Makes stretches of trials that write into the test's folder."""

    def make(trial=0, epoch=0, until=3, reports=(), **config):
        paths = [report.checkpoint for report in reports][::-1]
        found = [path for path in paths if path is not None]
        config = {"trial": trial, "seed": 7, **config}
        return SegmentAssignment(trial, config, epoch, until, str(tmp_path / f"trial-{trial}"), "a", (*found, None))

    return make


def workers(function, objective="loss", stopping=None, **options):
    task = f"tests.trainables.worker.train_functions:{function}"
    return FunctionRunner(WorkerSettings(task, objective, **options), Context(), stopping or threading.Event())


def run(function, stretch, **options):
    """The reports of a stretch; a function that does not end fails its test."""
    reports = []
    thread = threading.Thread(target=lambda: reports.extend(workers(function, **options).run(stretch)), daemon=True)
    thread.start()
    thread.join(LIMIT_S)
    assert not thread.is_alive(), f"{function} is still running"
    return reports


def last(function, stretch, **options):
    return run(function, stretch, **options)[-1]


# Reports


def test_each_report_is_told_with_its_number_and_its_checkpoint(stretch, tmp_path):
    reports = run("resumes", stretch())
    assert [(report.epoch, report.done) for report in reports] == [(1, False), (2, False), (3, True)]
    assert [timeless(report.metrics) for report in reports] == [{"loss": 1.0}, {"loss": 0.5}, {"loss": 1 / 3}]
    assert not any(isinstance(report, SegmentEnd) for report in reports)
    for number, report in enumerate(reports, 1):
        assert report.checkpoint == str(tmp_path / "trial-0" / f"epoch-{number}-a")
        assert (Path(report.checkpoint) / "epoch").read_text() == str(number)
    to_json(GangResult("gang", reports))


def test_metrics_are_numbers_by_name_and_what_is_none_is_left_out_and_told_once(stretch):
    first, second, _ = run("reports_all_kinds", stretch())
    assert timeless(first.metrics) == {"loss": 0.5, "count": 3.0, "flag": 1.0, "val/acc": 0.25}
    assert first.notes == ["what is reported must be numbers: name (str), none (NoneType) left out"]
    assert not second.notes


def test_a_function_gets_its_config_or_nothing(stretch):
    assert last("without_config", stretch(until=1)).done
    run("resumes", stretch(trial=5, until=1))
    assert train_functions.SEEN == [(5, 0, 0)]


def test_what_a_function_draws_follows_from_its_seed(stretch):
    settings = ({}, {}, {"seed": 8})
    first, again, other = ([timeless(report.metrics) for report in run("draws", stretch(**own))] for own in settings)
    assert first == again
    assert first[0] != other[0]


@pytest.mark.parametrize(
    ("others", "seconds", "outcome", "reason"),
    [
        (["seconds"], 2.0, "completed", ""),
        (["speed"], 2.0, "failed", "ray.train.report must have a number 'speed', an objective, but got loss, seconds"),
        (["seconds"], math.inf, "diverged", "seconds is inf in report 1"),
    ],
)
def test_every_objective_must_be_in_a_report_and_finite(stretch, others, seconds, outcome, reason):
    report = last("weighs", stretch(seconds=seconds), others=others)
    assert (report.outcome, report.reason) == (outcome, reason)


# Going on


def test_a_trial_goes_on_from_its_last_checkpoint_and_its_reports_count_on(stretch):
    first = run("resumes", stretch())
    second = run("resumes", stretch(epoch=3, until=5, reports=first))
    assert [report.epoch for report in second] == [4, 5]
    assert train_functions.SEEN == [(0, 0, 0), (0, 3, 1)]


def test_what_an_earlier_trial_reported_is_not_seen_by_the_next(stretch):
    worker = workers("resumes")
    for trial in range(3):
        list(worker.run(stretch(trial=trial, until=2)))
    assert train_functions.SEEN == [(0, 0, 0), (1, 0, 0), (2, 0, 0)]


def test_reports_without_a_checkpoint_are_repeated_from_the_last_that_had_one(stretch):
    first = run("every_third", stretch(until=5))
    assert [report.checkpoint is not None for report in first] == [False, False, True, False, False]
    second = run("every_third", stretch(epoch=5, until=7, reports=first))
    assert [report.epoch for report in second] == [4, 5, 6, 7]
    assert second[0].notes == ["without a checkpoint of report 5 it goes on after report 3: what it repeats is dropped"]
    assert not any(report.notes for report in second[1:])


def test_a_function_without_checkpoints_starts_over(stretch):
    first = run("forgets", stretch(until=2))
    second = run("forgets", stretch(epoch=2, until=4, reports=first))
    assert [report.epoch for report in second] == [1, 2, 3, 4]


def test_a_checkpoint_that_is_corrupt_is_told_and_the_one_before_it_is_used(stretch):
    first = run("resumes", stretch())
    (Path(first[-1].checkpoint) / "epoch").write_text("99")
    second = run("resumes", stretch(epoch=3, until=4, reports=first))
    assert train_functions.SEEN[-1] == (0, 2, 1)
    assert [report.epoch for report in second] == [3, 4]
    assert "epoch is corrupt. The one before it is used." in second[0].notes[0]
    assert (Path(second[0].checkpoint) / "epoch").read_text() == "3", "the repeated report heals it"


# What reports cost


def allowed(stretch, until, spent=0.0):
    """`stretch`, which ends when its trial has got so many GPU-seconds."""
    return replace(stretch, until=99, budget=SegmentBudget("gpu_seconds", stretch.epoch, spent, until))


def test_a_report_costs_the_time_since_the_one_before(stretch):
    reports = run("naps", stretch(nap=0.05, saves=True), gpus=2.0)
    assert [0.1 <= report.costs["gpu_seconds"] < 5.0 for report in reports] == [True] * 3
    assert not any("samples" in report.costs for report in reports), "nobody knows"


def test_a_stretch_of_a_function_ends_with_the_report_that_reaches_its_gpu_seconds(stretch):
    reports = run("naps", allowed(stretch(nap=0.05, saves=True), until=0.17))
    spent = list(itertools.accumulate(report.costs["gpu_seconds"] for report in reports))
    assert [total >= 0.17 for total in spent] == [False] * (len(spent) - 1) + [True] == [r.done for r in reports]
    second = run("naps", allowed(stretch(epoch=len(spent), reports=reports, nap=0.05, saves=True), 0.22, spent[-1]))
    assert second[0].epoch == len(spent) + 1
    assert spent[-1] + sum(report.costs["gpu_seconds"] for report in second) >= 0.22


def test_reports_that_a_function_repeats_do_not_count_twice(stretch):
    again = run("naps", allowed(stretch(epoch=3, nap=0.05, saves=False), until=1.04, spent=1.0))
    assert [report.epoch for report in again] == [1, 2, 3, 4]


# How a trial ends


def test_a_function_that_catches_every_exception_is_ended_all_the_same(stretch):
    assert [report.done for report in run("forgets", stretch())] == [False, False, True]
    assert train_functions.SEEN == []


def test_a_function_that_catches_even_the_end_has_no_further_reports(stretch):
    (report,) = run("catches_everything", stretch(until=1))
    assert (report.epoch, report.done) == (1, True)
    assert train_functions.SEEN == ["caught"] * 3


@pytest.mark.parametrize("function", ["reports_on_its_way_out", "breaks_on_its_way_out"])
def test_what_happens_after_the_last_report_changes_nothing(stretch, function):
    (report,) = run(function, stretch(until=1))
    assert (timeless(report.metrics), report.done, getattr(report, "outcome", None)) == ({"loss": 1.0}, True, None)
    if function == "breaks_on_its_way_out":
        assert report.notes == ["after its last report the function raised OSError('the log cannot be closed')"]


def test_a_function_that_returns_has_completed_its_trial(stretch):
    reports = run("resumes", stretch(until=10, epochs=2))
    assert [getattr(report, "epoch", None) for report in reports] == [1, 2, None]
    assert reports[-1] == SegmentEnd("completed", "")


def test_a_function_that_is_called_again_after_its_last_report_has_completed_its_trial(stretch):
    first = run("resumes", stretch(until=2, epochs=2))
    assert run("resumes", stretch(epoch=2, until=5, reports=first, epochs=2)) == [SegmentEnd("completed", "")]


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("silent", "the function must call ray.train.report, but returned without"),
        ("misnames", "ray.train.report must have a number 'loss', the objective, but got val_loss, name (str)"),
        ("exits", "RuntimeError: the function raised SystemExit: enough"),
        ("raises", "KeyError: 'no such puzzle'"),
        ("uploads_itself", "ray.train.report must leave its checkpoint to the search, but got an upload of its own"),
        ("takes_a_data_set", "RuntimeError: ray.train.get_dataset_shard must have a data set, but a search passes none."
                             " Make it here."),
        ("not_there", "AttributeError: module 'tests.trainables.worker.train_functions' has no attribute 'not_there'"),
    ],
)  # fmt: skip
def test_a_trial_fails_with_its_reason_and_the_next_is_unharmed(stretch, function, reason):
    report = last(function, stretch())
    assert (report.outcome, report.reason) == ("failed", reason)
    if function == "raises":
        assert f"in {function}" in report.traceback
    assert len(run("resumes", stretch(trial=1))) == 3


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_an_objective_that_is_not_finite_ends_its_trial_at_that_report_without_a_checkpoint_of_it(
    stretch, tmp_path, value
):
    first, report = run("diverges", stretch(until=9, value=value))
    assert (first.done, math.isnan(first.metrics["other"])) == (False, True)
    assert (report.outcome, report.reason) == ("diverged", f"loss is {value} in report 2")
    assert report.divergence == Divergence("objective", 2)
    assert train_functions.SEEN == []
    assert (report.last.epoch, report.last.checkpoint) == (2, None)
    assert str(report.last.metrics["loss"]) == value
    assert report.last.metrics["other"] == 3.0
    assert [path.name for path in (tmp_path / "trial-0").iterdir()] == ["epoch-1-a"]


def test_a_search_that_is_stopped_ends_a_trial_at_its_next_report_which_counts(stretch):
    stopping = threading.Event()
    stopping.set()
    first, end = run("resumes", stretch(), stopping=stopping)
    assert (first.epoch, first.done) == (1, False)
    assert end == SegmentEnd("interrupted", "the search was stopped")


def test_a_trial_that_is_to_go_on_elsewhere_leaves_at_its_next_report_with_a_checkpoint(stretch):
    stopping = threading.Event()
    worker = workers("every_third", stopping=stopping)
    worker.migrate_reason = "node 10.0.0.3 is going away"
    stopping.set()
    reports = list(worker.run(stretch(until=9)))
    assert [getattr(report, "checkpoint", None) is not None for report in reports] == [False, False, True, False]
    assert reports[-1] == Migration("node 10.0.0.3 is going away")


# What a trial leaves behind


@pytest.mark.parametrize("pause_s", [0.0, 0.5], ids=["during the next trial", "between trials"])
def test_a_thread_that_outlives_its_trial_cannot_report(stretch, pause_s):
    run("leaves_a_thread", stretch(until=1))
    time.sleep(pause_s)
    (report,) = run("waits", stretch(trial=1, until=1))
    assert timeless(report.metrics) == {"loss": 3.0}
    assert train_functions.SEEN == ["ray.train.report must be called in the thread of the training function."]


def test_a_mode_of_the_thread_does_not_outlive_its_trial(stretch):
    worker = workers("changes_its_mode")
    list(worker.run(stretch(until=1)))
    worker.task = "tests.trainables.worker.train_functions:notes_the_mode"
    list(worker.run(stretch(trial=1, until=1)))
    assert train_functions.SEEN == [False, True]


def test_what_a_search_does_not_replace_is_rays_own(stretch):
    session = Session(stretch(), workers("waits"), get_train_fn_utils())
    assert session.get_context().get_world_size() == 1
    assert not session.is_distributed()


def test_reports_take_what_those_of_ray_take():
    for name in ("report", "get_checkpoint"):
        ours, theirs = (inspect.signature(getattr(owner, name)) for owner in (Session, TrainFnUtils))
        assert list(ours.parameters) == list(theirs.parameters)
    assert not issubclass(TrialEnded, Exception)


# Checkpoint directories


@pytest.fixture
def published(tmp_path):
    staging = tmp_path / "c.tmp"
    for number in range(2):
        part = tmp_path / f"part-{number}"
        (part / "sub").mkdir(parents=True)
        (part / "sub" / f"{number}.txt").write_text(str(number))
        directory.add(part, staging)
    directory.publish(staging, tmp_path / "c", {"epoch": 4})
    assert not staging.exists()
    return tmp_path / "c"


def test_a_directory_holds_what_all_ranks_added_and_is_read_with_what_is_known_of_it(published):
    assert directory.read(published)["epoch"] == 4
    assert sorted(path.name for path in published.rglob("*.txt")) == ["0.txt", "1.txt"]


@pytest.mark.parametrize("damage", ["changed", "gone", "without its list", "never there"])
def test_a_directory_that_is_not_what_was_published_is_refused(published, damage):
    file = published / "sub" / "1.txt"
    if damage == "changed":
        file.write_text("2")
    elif damage == "gone":
        file.unlink()
    elif damage == "without its list":
        (published / directory.ABOUT).unlink()
    else:
        published = published.with_name("d")
    with pytest.raises(CheckpointError, match=str(published)):
        directory.read(published)


def test_a_directory_can_be_published_again_and_deleted(published, tmp_path):
    directory.add(tmp_path / "part-0", tmp_path / "c.tmp")
    directory.publish(tmp_path / "c.tmp", published, {"epoch": 5})
    assert directory.read(published)["epoch"] == 5
    assert not (published / "sub" / "1.txt").exists()
    delete(published)
    delete(published)
    assert not published.exists()


# Two ranks


def run_on(rank, function, scratch, stretch, stop_on=None):
    """What both ranks of a pair do."""
    logging.getLogger("trainables").setLevel(logging.INFO)
    set_train_fn_utils(LocalTrainFnUtils("test", world_size=2, world_rank=rank))
    train_functions.SCRATCH[0] = scratch
    stopping = threading.Event()
    if rank == stop_on:
        stopping.set()
    task = f"tests.trainables.worker.train_functions:{function}"
    return list(FunctionRunner(WorkerSettings(task, "loss"), Context("cpu", rank, 2), stopping).run(stretch))


def test_all_ranks_put_their_files_into_one_checkpoint_and_the_metrics_are_those_of_rank_0(pair, stretch, tmp_path):
    ours, theirs = pair.run(run_on, "each_saves_a_part", str(tmp_path), stretch(until=2))
    assert [timeless(report.metrics) for report in ours] == [{"loss": 0.0}, {"loss": 3.0}]
    assert ours == theirs
    assert sorted(path.name for path in Path(ours[0].checkpoint).iterdir()) == [
        directory.ABOUT, "rank-0", "rank-1"
    ]  # fmt: skip


def test_ranks_that_train_together_end_at_the_same_report(pair, stretch, tmp_path):
    for _ in range(2):  # in the same process group, trial after trial
        ours, theirs = pair.run(run_on, "trains_together", str(tmp_path), stretch(until=4))
        assert [report.epoch for report in ours] == [1, 2, 3, 4]
        assert ours == theirs
        assert {report.metrics["rank"] for report in ours} == {0.0}
        assert ours[-1].metrics["loss"] < ours[0].metrics["loss"]


def test_a_stop_that_one_rank_hears_ends_all_at_the_same_report(pair, stretch, tmp_path):
    ours, theirs = pair.run(run_on, "trains_together", str(tmp_path), stretch(until=50), 1)
    assert ours == theirs
    assert [getattr(report, "outcome", None) for report in ours] == [None, "interrupted"]


def test_ranks_that_report_unequally_often_fail_their_trial(pair, stretch, tmp_path):
    for reports in pair.run(run_on, "one_returns_early", str(tmp_path), stretch()):
        assert reports[-1].reason == ("all workers must call ray.train.report equally often, but rank 1 returned early")
