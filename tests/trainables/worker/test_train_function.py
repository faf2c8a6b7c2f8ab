"""Run functions that know Ray Train alone as trials: their reports are told, and may end them."""

import errno
import inspect
import logging
import math
import os
import re
import sys
import threading
import traceback
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import ray
import torch
from ray.train.v2._internal.execution import train_fn_utils

from searchlight.trainables.checkpoint import directory
from searchlight.trainables.context import Context
from searchlight.trainables.worker import messages, session
from searchlight.trainables.worker.messages import SegmentEnd, WorkerSettings
from searchlight.trainables.worker.session import Session, TrialEnded
from searchlight.trainables.worker.train_function import FunctionRunner
from searchlight.trainables.worker.worker import GangMember
from tests.trainables.worker import train_functions
from tests.trainables.worker.local_worker import metrics

pytestmark = pytest.mark.usefixtures("as_in_a_worker")
LIMIT_S = 60.0


@pytest.fixture
def stretch(tmp_path):
    """Makes stretches of trials that write into the test's folder."""

    def make(trial=0, epoch=0, until=3, reports=(), is_last=False, **config):
        found = [report.checkpoint for report in reports[::-1] if report.checkpoint is not None]
        config = {"trial": trial, "seed": 7, **config}
        return messages.SegmentAssignment(
            trial, config, epoch, until, str(tmp_path / f"trial-{trial}"), "a", (*found, None), is_last=is_last
        )

    return make


def workers(function, objective="loss", stopping=None, context=None, **options):
    settings = WorkerSettings(f"{train_functions.__name__}:{function}", objective, **options)
    return FunctionRunner(settings, context or Context(), stopping or threading.Event())


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


def test_each_report_is_numbered_and_has_its_checkpoint(stretch, tmp_path):
    reports = run("resumes", stretch())
    assert [(report.epoch, report.done) for report in reports] == [(1, False), (2, False), (3, True)]
    assert metrics(reports) == [{"loss": 1.0}, {"loss": 0.5}, {"loss": 1 / 3}]
    assert not any(isinstance(report, SegmentEnd) for report in reports)
    for number, report in enumerate(reports, 1):
        assert report.checkpoint == str(tmp_path / "trial-0" / f"epoch-{number}-a")
        assert (Path(report.checkpoint) / "epoch").read_text() == str(number)
    messages.to_json(messages.GangResult("gang", reports))


def test_metrics_that_are_no_numbers_are_left_out_and_noted_once(stretch):
    first, second, _ = run("reports_all_kinds", stretch())
    assert metrics([first]) == [{"loss": 0.5, "count": 3.0, "flag": 1.0, "val/acc": 0.25}]
    assert first.notes == ["reported metrics must be numbers: name (str), none (NoneType) left out"]
    assert not second.notes
    reason = last("reports_all_kinds", stretch(), objective="name").reason
    names = "count, flag, loss, val/acc, name (str), none (NoneType)"
    assert reason == f"ray.train.report must have a number 'name', the objective, but got {names}"


def test_seed_determines_what_a_function_draws(stretch):
    first, again, other = (metrics(run("draws", stretch(**own))) for own in ({}, {}, {"seed": 8}))
    assert first == again
    assert first[0] != other[0]


RULE = "the function must call ray.train.report, or return a number for each objective or a dict"
LACKING = (
    "ray.train.report must have a number 'speed', an objective or the metric of a constraint, but got loss, seconds"
)


@pytest.mark.parametrize(
    ("others", "seconds", "outcome", "reason"),
    [
        (["seconds"], 2.0, "completed", ""),
        (["speed"], 2.0, "failed", LACKING),
        (["seconds"], math.inf, "diverged", "seconds is inf in report 1"),
    ],
)
def test_every_objective_must_be_reported_and_finite(stretch, others, seconds, outcome, reason):
    report = last("weighs", stretch(seconds=seconds), others=others)
    assert (report.outcome, report.reason) == (outcome, reason)


def test_function_resumes_from_its_last_checkpoint(stretch):
    worker = workers("resumes")
    first = list(worker.run(stretch()))
    list(worker.run(stretch(trial=1, until=2)))  # does not see what an earlier trial reported
    second = list(worker.run(stretch(epoch=3, until=5, reports=first)))
    assert [report.epoch for report in second] == [4, 5]
    assert train_functions.SEEN == [(0, 0, 0), (1, 0, 0), (0, 3, 1)]


def test_function_that_resumes_draws_the_same_split(stretch):
    first = run("splits_at_random", stretch())
    second = run("splits_at_random", stretch(epoch=3, until=5, reports=first))
    assert [report.epoch for report in second] == [4, 5]
    assert len({report.metrics["loss"] for report in first + second}) == 1


def test_reports_after_the_last_checkpoint_are_repeated(stretch):
    first = run("resumes", stretch(until=5, every=3))
    assert [report.checkpoint is not None for report in first] == [False, False, True, False, False]
    second = run("resumes", stretch(epoch=5, until=7, reports=first, every=3))
    assert [report.epoch for report in second] == [4, 5, 6, 7]
    assert second[0].notes == [
        "without a checkpoint of report 5 it continues after report 3: repeated reports are dropped"
    ]
    assert not any(report.notes for report in second[1:])


def test_function_without_checkpoints_starts_over(stretch):
    first = run("forgets", stretch(until=2))
    assert [report.epoch for report in run("forgets", stretch(epoch=2, until=4, reports=first))] == [1, 2, 3, 4]


def limit(stretch, until, spent=0.0):
    """`stretch`, which ends when its trial has got so many GPU-seconds."""
    return replace(stretch, until=99, budget=messages.SegmentBudget("gpu_seconds", stretch.epoch, spent, until))


def test_segment_ends_with_the_report_that_reaches_its_costs(stretch, monkeypatch):
    monkeypatch.setattr(session, "time", train_functions.CLOCK)
    reports = run("resumes", limit(stretch(nap=0.25), until=1.25), gpus=2.0)
    assert [report.costs for report in reports] == [{"gpu_seconds": 0.5}] * 3
    assert [report.done for report in reports] == [False, False, True]
    second = run("resumes", limit(stretch(epoch=3, reports=reports, nap=0.25), 2.0, 1.5), gpus=2.0)
    assert [report.epoch for report in second] == [4]
    # Reports that a function repeats do not count twice.
    again = run("resumes", limit(stretch(epoch=3, nap=0.25, every=99), until=2.0, spent=1.5), gpus=2.0)
    assert [report.epoch for report in again] == [1, 2, 3, 4]


def test_function_that_catches_even_the_end_reports_no_more(stretch):
    report, end = run("catches_everything", stretch(until=1, is_last=True))
    assert (report.epoch, report.done) == (1, False)
    assert end == SegmentEnd("completed", "")
    assert train_functions.SEEN == ["caught"] * 2


def test_error_after_the_last_report_changes_nothing(stretch):
    report, end = run("breaks_on_its_way_out", stretch(until=1, is_last=True))
    assert metrics([report]) == [{"loss": 1.0}]
    notes = ["after its last report the function raised OSError('the log cannot be closed')"]
    assert end == SegmentEnd("completed", "", notes=notes)


@pytest.mark.parametrize("code", [None, 0])
def test_code_after_the_last_report_runs(stretch, code):
    reports = run("tests_at_the_end", stretch(until=2, is_last=True, code=code))
    assert [report.done for report in reports] == [False, False, True]
    assert train_functions.SEEN == ["tested"]


def test_trial_that_continues_is_not_called_again(stretch):
    worker = workers("forgets")
    first = list(worker.run(stretch(until=2)))
    worker.drop_trial_unless_continued(stretch(epoch=2, until=4))
    second = list(worker.run(stretch(epoch=2, until=4)))
    assert [(report.epoch, report.done) for report in first + second] == [(1, False), (2, True), (3, False), (4, True)]


def test_trial_that_does_not_continue_ends_where_it_waits(stretch):
    worker = workers("closes")
    list(worker.run(stretch(until=2)))
    assert train_functions.SEEN == []
    worker.drop_trial_unless_continued(stretch(trial=1))
    assert train_functions.SEEN == ["closed 0"]
    list(worker.run(stretch(trial=1, until=1)))
    list(worker.run(stretch(trial=0, epoch=2, until=4)))  # also without the call before
    assert train_functions.SEEN == ["closed 0", "closed 1"]
    worker.drop_trial_unless_continued(None)
    assert train_functions.SEEN == ["closed 0", "closed 1", "closed 0"]


@pytest.mark.parametrize("ranks", [1, 2])
def test_variables_of_torchrun_show_only_several_workers(monkeypatch, ranks):
    monkeypatch.setenv("RANK", "0")
    workers("draws", context=Context(world_size=ranks))._process.restore()
    assert ("RANK" in os.environ) == (ranks == 2)


def test_trial_that_fails_in_a_used_worker_begins_again_in_a_new_one(stretch, monkeypatch):
    monkeypatch.setattr(train_functions.ray.train, "set_up_by_a_test", None, raising=False)
    monkeypatch.delattr(train_functions.ray.train, "set_up_by_a_test")
    worker = workers("needs_a_new_process")
    assert len(list(worker.run(stretch(until=1, is_last=True)))) == 2
    (report,) = worker.run(stretch(trial=1))
    assert report == messages.Migration("it failed in a used worker (RuntimeError: restart your runtime in trial 1)")
    new = workers("needs_a_new_process")
    for trial in (1, 2):  # it fails there, too, so a later trial that fails alike is not tried again
        (end,) = new.run(stretch(trial=trial, always=True))
        assert (end.outcome, end.reason) == ("failed", f"RuntimeError: restart your runtime in trial {trial}")


def test_trial_that_has_reported_in_an_earlier_segment_is_not_tried_again(stretch):
    worker = workers("fails_later")
    list(worker.run(stretch(until=1)))
    list(worker.run(stretch(trial=1, until=1)))
    (end,) = worker.run(stretch(trial=1, epoch=1, until=2))
    assert (end.outcome, end.reason) == ("failed", "RuntimeError: late")


def test_workers_move_between_segments_only_if_the_trial_is_saved(stretch):
    worker = workers("resumes")
    list(worker.run(stretch(until=2, every=2)))
    assert not worker.must_continue
    list(worker.run(stretch(epoch=2, until=3, every=2)))
    assert worker.must_continue


def test_function_that_waits_ends_before_its_workers_move(stretch, monkeypatch):
    reason, runner, leaves = "node 10.0.0.3 is going away", workers("closes"), threading.Event()

    def wait_for_segments():
        yield 1, stretch(until=2, saves=True)
        leaves.set()
        assert runner.stopping.wait(LIMIT_S)
        yield 2, stretch(epoch=2, until=4, saves=True)

    monkeypatch.setattr(ray, "get", lambda answer: answer)
    monkeypatch.setattr(ray, "wait", lambda calls: None)
    registry, segments = Mock(), wait_for_segments()
    registry.wait_for_segment.remote = lambda gang, turn: next(segments)
    registry.wait_for_stop.remote = lambda gang, halted: (not leaves.wait(), reason, halted)
    thread = threading.Thread(target=GangMember(registry, "gang", runner).work)  # its heartbeats end with it
    thread.start()
    thread.join()
    registry.end_gang.remote.assert_called_once_with("gang", reason, False)
    assert train_functions.SEEN == ["closed 0"]


@pytest.mark.parametrize("ranks", [1, 2])
def test_failed_function_leaves_the_part_of_another_rank(stretch, tmp_path, monkeypatch, ranks):
    monkeypatch.setattr(Context, "broadcast_object", lambda self, value: value)
    part = tmp_path / "trial-0" / f"epoch-1-a{directory.STAGING}"
    failing = stretch(part=str(part))
    assert last("fails_while_another_rank_writes", failing, context=Context("cpu", 0, ranks)).outcome == "failed"
    assert part.exists() == (ranks == 2)
    run("resumes", stretch())
    assert not part.exists(), "the next start deletes it"


def test_function_that_returns_has_completed_its_trial(stretch):
    reports = run("resumes", stretch(until=10, epochs=2))
    assert [getattr(report, "epoch", None) for report in reports] == [1, 2, None]
    assert reports[-1] == SegmentEnd("completed", "")
    again = run("resumes", stretch(epoch=2, until=5, reports=reports[:2], epochs=2))
    assert again == [SegmentEnd("completed", "")]


def test_function_for_ray_tune_is_heard_and_resumes(stretch, tmp_path):
    first = run("is_made_for_tune", stretch(until=2))
    second = run("is_made_for_tune", stretch(epoch=2, until=3, reports=first))
    assert [(report.epoch, report.done) for report in first + second] == [(1, False), (2, True), (3, True)]
    assert metrics(first + second) == [{"loss": 1.0}, {"loss": 0.5}, {"loss": 1 / 3}]
    assert (Path(second[0].checkpoint) / "epoch").read_text() == "3"
    starts, folders = zip(*train_functions.SEEN, strict=True)
    assert (starts, {*folders}) == ((0, 2), {os.getcwd()})


@pytest.mark.parametrize("code", [None, 0])
def test_function_that_exits_with_success_has_completed_its_trial(stretch, code):
    *reports, end = run("tests_at_the_end", stretch(until=9, code=code))
    assert ([report.epoch for report in reports], end) == ([1, 2], SegmentEnd("completed", ""))


@pytest.mark.parametrize(
    ("result", "told"),
    [
        (2, {"loss": 2.0}),
        (torch.tensor(0.5), {"loss": 0.5}),
        ((0.5, 3), {"loss": 0.5, "seconds": 3.0}),
        ({"loss": 0.5, "val": {"acc": 1}, "status": "ok"}, {"loss": 0.5, "val/acc": 1.0}),
    ],
)
def test_function_that_reports_nothing_is_judged_by_what_it_returns(stretch, result, told):
    others = ["seconds"] if "seconds" in told else []
    for until in (1, 9):
        report, end = run("returns", stretch(until=until, result=result), others=others)
        assert (report.epoch, metrics([report]), report.done) == (1, [told], False)
        assert end == SegmentEnd("completed", "")


@pytest.mark.parametrize(
    ("result", "outcome", "reason"),
    [
        (math.nan, "diverged", "loss is nan in report 1"),
        ({"acc": 1}, "failed", "what the function returns must have a number 'loss', the objective, but got acc"),
        (["w"], "failed", f"{RULE}, but returned ['w']"),
        ((0.5, 0.9), "failed", f"{RULE}, but returned (0.5, 0.9)"),
    ],
)
def test_what_a_function_returns_must_be_its_metrics(stretch, result, outcome, reason):
    report = last("returns", stretch(result=result))
    assert (report.outcome, report.reason) == (outcome, reason)


def test_what_a_function_yields_are_its_reports(stretch):
    *reports, end = run("yields", stretch(until=9, epochs=2))
    assert metrics(reports) == [{"loss": 1.0}, {"loss": 0.5}]
    assert (end, train_functions.SEEN) == (SegmentEnd("completed", ""), ["ended"])
    report, end = run("yields", stretch(until=1, is_last=True, epochs=2))
    assert (metrics([report]), end) == ([{"loss": 1.0}], SegmentEnd("completed", ""))
    assert train_functions.SEEN == ["ended", "ended"]


def test_stop_does_not_interrupt_a_function_that_has_returned(stretch):
    stopping = threading.Event()
    stopping.set()
    assert last("returns", stretch(result=2), stopping=stopping) == SegmentEnd("completed", "")


def test_what_a_function_returns_after_a_report_is_no_report(stretch):
    first, end = run("returns_after_a_report", stretch())
    assert metrics([first]) == [{"loss": 0.5}]
    assert end == SegmentEnd("completed", "")


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("silent", f"{RULE}, but returned None"),
        ("exits", "RuntimeError: the function raised SystemExit: enough"),
        ("raises", "KeyError: 'no such puzzle'"),
        ("yields_another_metric", "what the function yields must have a number 'loss', the objective, but got acc"),
        ("lacks_a_value", "KeyError: 'rate': the config has no value of that name; add --set rate=VALUE"),
        ("uploads_itself", "ray.train.report must leave its checkpoint to the search, but got an upload of its own"),
        ("takes_a_data_set", "RuntimeError: ray.train.get_dataset_shard must have a data set, but a search passes none."
                             " Make it here."),
        ("not_there", "AttributeError: module 'tests.trainables.worker.train_functions' has no attribute 'not_there'"),
    ],
)  # fmt: skip
def test_trial_fails_with_its_reason_and_the_next_is_unharmed(stretch, function, reason):
    report = last(function, stretch())
    assert (report.outcome, report.reason) == ("failed", reason)
    if function == "raises":
        assert f"in {function}" in report.traceback
    assert len(run("resumes", stretch(trial=1))) == 3


def test_value_that_another_dict_lacks_is_none_of_the_config(stretch):
    assert last("lacks_a_value_of_its_own", stretch(optimizer="adamw")).reason == "KeyError: 'adamw'"


def test_folder_that_cannot_be_written_interrupts_a_trial(stretch):
    folder = Path(stretch().folder)
    folder.write_text("in the way")
    (end,) = run("resumes", stretch())
    assert (end.outcome, end.unwritable) == ("interrupted", True)
    assert re.fullmatch(rf"a checkpoint cannot be written: \[Errno \d+\] .*: '{folder}/epoch-1-a'", end.reason)
    folder.unlink()
    assert len(run("resumes", stretch())) == 3


def test_checkpoint_that_the_disk_does_not_give_interrupts_a_trial(stretch, monkeypatch):
    first = run("resumes", stretch())
    later, open_file = stretch(epoch=3, until=4, reports=first), Path.open

    def refuse(path, *arguments, **options):
        if path.name == directory.ABOUT:
            raise OSError(errno.EIO, "as the disk says", str(path))
        return open_file(path, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", refuse)
        (end,) = run("resumes", later)
    assert (end.outcome, end.unwritable) == ("interrupted", True)
    newest = f"{first[-1].checkpoint}/{directory.ABOUT}"
    assert end.reason == f"a checkpoint cannot be read: [Errno {errno.EIO}] as the disk says: '{newest}'"
    (again,) = run("resumes", later)
    assert (again.epoch, again.notes) == (4, ())


def test_checkpoint_that_cannot_be_read_fails_its_trial(stretch):
    (end,) = run("saves_what_is_not_there", stretch())
    assert (end.outcome, end.unwritable) == ("failed", False)
    assert "No such file or directory: '/nowhere'" in end.reason


@pytest.mark.parametrize("value", ["nan", "-inf"])
def test_non_finite_objective_ends_a_trial_without_checkpoint(stretch, tmp_path, value):
    first, report = run("diverges", stretch(until=9, value=value))
    assert (first.done, math.isnan(first.metrics["other"])) == (False, True)
    assert (report.outcome, report.reason) == ("diverged", f"loss is {value} in report 2")
    assert report.divergence == messages.Divergence("objective", 2)
    assert train_functions.SEEN == []
    assert (report.last.epoch, report.last.checkpoint) == (2, None)
    assert str(report.last.metrics["loss"]) == value
    assert report.last.metrics["other"] == 3.0
    assert [path.name for path in (tmp_path / "trial-0").iterdir()] == ["epoch-1-a"]


def test_stop_ends_a_trial_at_its_next_report_which_counts(stretch):
    stopping = threading.Event()
    stopping.set()
    first, end = run("resumes", stretch(), stopping=stopping)
    assert (first.epoch, first.done) == (1, False)
    assert end == SegmentEnd("interrupted", "the search was stopped")


def test_migrating_trial_ends_at_a_report_with_a_checkpoint(stretch):
    worker = workers("resumes")
    worker.migrate_reason = "node 10.0.0.3 is going away"
    worker.stopping.set()
    reports = list(worker.run(stretch(until=9, every=3)))
    assert [getattr(report, "checkpoint", None) is not None for report in reports] == [False, False, True, False]
    assert reports[-1] == messages.Migration("node 10.0.0.3 is going away")


@pytest.mark.parametrize("moment", ["during the next trial", "between trials"])
def test_thread_that_outlives_its_trial_cannot_report(stretch, moment):
    train_functions.GO.clear(), train_functions.DONE.clear()
    run("leaves_a_thread", stretch(until=1))
    if moment == "between trials":
        train_functions.GO.set()
        assert train_functions.DONE.wait(LIMIT_S)
    assert metrics(run("lets_a_thread_report", stretch(trial=1, until=1))) == [{"loss": 3.0}]
    assert train_functions.SEEN == ["ray.train.report must be called in the thread of the training function."]


def test_stack_that_a_heartbeat_shows_is_that_of_the_function(stretch):
    train_functions.GO.clear()
    worker = workers("waits")
    reports = worker.run(stretch())
    next(reports)
    stack = traceback.format_stack(sys._current_frames()[worker.thread])
    train_functions.GO.set()
    assert "in waits" in "".join(stack)
    assert len([*reports]) == 2


def test_mode_of_the_thread_does_not_outlive_its_trial(stretch):
    worker = workers("changes_its_mode")
    for trial in range(2):
        list(worker.run(stretch(trial=trial, until=1)))
    assert train_functions.SEEN == [True, False] * 2


def test_session_has_the_interface_of_ray(stretch):
    session = Session(stretch(), workers("silent"), train_fn_utils.get_train_fn_utils())
    assert session.get_context().get_world_size() == 1, "what is not replaced is Ray's own"
    assert not session.is_distributed()
    for name in ("report", "get_checkpoint"):
        ours, theirs = (inspect.signature(getattr(owner, name)) for owner in (Session, train_fn_utils.TrainFnUtils))
        assert list(ours.parameters) == list(theirs.parameters)
    assert not issubclass(TrialEnded, Exception)


def run_on(rank, function, scratch, stretch, stop_on=None):
    """Run a stretch on each rank of a pair."""
    logging.getLogger("searchlight.trainables").setLevel(logging.INFO)
    train_fn_utils.set_train_fn_utils(train_fn_utils.LocalTrainFnUtils("test", world_size=2, world_rank=rank))
    train_functions.SCRATCH[0] = scratch
    worker = workers(function, context=Context("cpu", rank, 2))
    if rank == stop_on:
        worker.stopping.set()
    return list(worker.run(stretch))


def test_ranks_share_one_checkpoint_and_the_metrics_of_rank_0(pair, stretch, tmp_path):
    ours, theirs = pair.run(run_on, "each_saves_a_part", str(tmp_path), stretch(until=2))
    assert metrics(ours) == [{"loss": 0.0}, {"loss": 3.0}]
    assert ours == theirs
    names = sorted(path.name for path in Path(ours[0].checkpoint).iterdir())
    assert names == [directory.ABOUT, "rank-0", "rank-1"]


def test_ranks_that_train_together_end_at_the_same_report(pair, stretch, tmp_path):
    for _ in range(2):  # in the same process group, trial after trial
        ours, theirs = pair.run(run_on, "trains_together", str(tmp_path), stretch(until=4))
        assert [report.epoch for report in ours] == [1, 2, 3, 4]
        assert ours == theirs
        assert {report.metrics["rank"] for report in ours} == {0.0}
        assert ours[-1].metrics["loss"] < ours[0].metrics["loss"]


def test_stop_on_one_rank_ends_all_at_the_same_report(pair, stretch, tmp_path):
    ours, theirs = pair.run(run_on, "trains_together", str(tmp_path), stretch(until=50), 1)
    assert ours == theirs
    assert [getattr(report, "outcome", None) for report in ours] == [None, "interrupted"]


def test_ranks_tell_what_rank_0_returns(pair, stretch, tmp_path):
    ours, theirs = pair.run(run_on, "returns", str(tmp_path), stretch(result=0.5))
    assert metrics(ours[:-1]) == [{"loss": 0.5}]
    assert ours == theirs


def test_ranks_that_report_unequally_often_fail_their_trial(pair, stretch, tmp_path):
    for reports in pair.run(run_on, "one_returns_early", str(tmp_path), stretch()):
        assert reports[-1].reason == "all workers must call ray.train.report equally often, but rank 1 returned early"
