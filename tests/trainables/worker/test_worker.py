"""A worker runs one stretch of a trial after another, and no trial feels the one before."""

import gc
import math
import random
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.trainables.toy_models import (
    FAULTS,
    Compiled,
    Regression,
    RegressionConfig,
    global_flags,
    identical,
    timeless,
)
from tests.trainables.worker.local_worker import CONFIG, TASK, metrics, workers
from trainables import checkpoint
from trainables.context import Context
from trainables.precision import Diverged
from trainables.training.trainer import train
from trainables.worker.messages import Divergence, Migration, SegmentEnd, WorkerSettings
from trainables.worker.worker import TrialRunner, build_interruption, check_secondary_objectives, load_class


@pytest.fixture(autouse=True, scope="module")
def _collect_what_these_tests_made():
    """As a worker does at its start: garbage is looked for after each trial, among all of torch it takes a while."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _process_as_it_was():
    """Some of these trials change the process for everybody."""
    threads = torch.get_num_threads()
    yield
    torch.set_default_device(None)
    torch.set_default_dtype(torch.float32)
    torch.set_grad_enabled(True)
    torch.use_deterministic_algorithms(False)
    torch.set_float32_matmul_precision("highest")
    torch.autograd.set_detect_anomaly(False)
    torch.set_num_threads(threads)
    torch.set_autocast_enabled("cpu", False)
    torch.set_autocast_dtype("cpu", torch.bfloat16)
    torch.set_flush_denormal(False)
    torch.backends.cudnn.benchmark = False


def straight(epochs: int, **settings: Any) -> list[dict[str, float]]:
    """The reports of the same trial in a plain loop."""
    return [timeless(report) for report in train(Regression(RegressionConfig(**{**CONFIG, **settings})), epochs)]


# Reports


def test_a_stretch_reports_each_epoch_and_where_its_checkpoint_is(stretch, tmp_path):
    reports = list(workers().run(stretch(until=3)))
    assert [report.epoch for report in reports] == [1, 2, 3]
    assert [report.done for report in reports] == [False, False, True]
    assert not any(isinstance(report, SegmentEnd) for report in reports)
    assert identical(metrics(reports), straight(3))
    for report in reports:
        path = Path(report.checkpoint)
        assert path.parent == tmp_path / "trial-0"
        assert path.name == f"epoch-{report.epoch}-a.pt"
        assert checkpoint.load(path)["epoch"] == report.epoch


def test_the_first_report_since_a_task_was_built_has_the_data_that_it_named(stretch, monkeypatch):
    build = Regression.build

    def naming(task):
        build(task)
        task.dataset("sines", task.inputs, source="made here")

    monkeypatch.setattr(Regression, "build", naming)
    worker = workers()
    first = list(worker.run(stretch(until=2)))
    on = list(worker.run(stretch(epoch=2, until=3)))
    again = list(workers().run(stretch(epoch=2, until=3, start=first[-1].checkpoint)))
    sines = [{"name": "sines", "digest": first[0].datasets[0]["digest"], "source": "made here", "use": "training"}]
    assert [report.datasets for report in (*first, *on, *again)] == [sines, [], [], sines]


def test_a_report_without_one_of_the_objectives_fails_its_trial_and_says_what_there_is(stretch):
    worker = TrialRunner(WorkerSettings(TASK, others=["time/samples_per_s", "val/size"]), Context(), threading.Event())
    (report,) = worker.run(stretch())
    assert (report.done, report.outcome) == (True, "failed")
    assert report.reason.startswith("ValueError: a report must have the objective 'val/size', but got amp/")
    assert " val/loss," in report.reason


def test_an_objective_beside_the_first_that_is_not_finite_ends_its_trial_as_diverged():
    with pytest.raises(Diverged, match="train/grad_norm is inf after epoch 2") as caught:
        check_secondary_objectives(["train/grad_norm"], {"train/grad_norm": math.inf}, "after epoch 2")
    assert caught.value.metrics == {"train/grad_norm": math.inf}


@pytest.mark.parametrize("way", ["in memory", "from the checkpoint", "in a fresh worker"])
def test_a_later_stretch_goes_on_where_the_trial_stood(stretch, way):
    worker = workers()
    first = list(worker.run(stretch(until=2)))
    if way == "from the checkpoint":  # another trial in between takes its place
        list(worker.run(stretch(trial=1, until=1, seed=5)))
    if way == "in a fresh worker":
        worker = workers()
    second = list(worker.run(stretch(epoch=2, until=4, start=first[-1].checkpoint)))
    assert [report.epoch for report in second] == [3, 4]
    assert identical(metrics(first + second), straight(4))


def test_a_trial_in_memory_goes_on_without_its_checkpoint(stretch):
    worker = workers()
    first = list(worker.run(stretch(until=1)))
    checkpoint.delete(Path(first[-1].checkpoint))
    second = list(worker.run(stretch(epoch=1, until=2, start=first[-1].checkpoint)))
    assert identical(metrics(second), straight(2)[1:])


def test_the_same_trial_from_an_earlier_epoch_starts_from_that_checkpoint(stretch):
    worker = workers()
    first = list(worker.run(stretch(until=3)))
    again = list(worker.run(stretch(epoch=1, until=3, start=first[0].checkpoint)))
    assert identical(metrics(again), metrics(first)[1:])


# Outcomes


@pytest.mark.parametrize(
    ("fault", "reason", "source"),
    [
        ("raises in build", "RuntimeError: the data is gone", "in misbehave"),
        ("raises in evaluate", "KeyError: 'no such puzzle\\nsecond line'", "in evaluate"),
    ],
)
def test_a_trial_that_raises_has_failed_and_the_next_is_unharmed(stretch, fault, reason, source):
    worker = workers()
    (report,) = worker.run(stretch(fault=fault))
    assert (report.done, report.outcome, report.reason) == (True, "failed", reason)
    assert report.traceback.startswith("Traceback")
    assert source in report.traceback
    assert worker.training is None
    assert identical(metrics(list(worker.run(stretch(trial=1)))), straight(2))


class Exits(Regression):
    """Calls sys.exit() where its `fault` says."""

    def build(self) -> None:
        super().build()
        self.exit_in("build")

    def train_batches(self, epoch: int) -> Any:
        self.exit_in("train_batches")
        yield from super().train_batches(epoch)

    def evaluate(self) -> dict[str, Any]:
        self.exit_in("evaluate")
        return super().evaluate()

    def exit_in(self, place: str) -> None:
        if self.config.fault == place:
            sys.exit("no data")


@pytest.mark.parametrize("place", ["build", "train_batches", "evaluate"])
def test_a_trial_that_exits_has_failed_and_its_worker_lives_on(stretch, place):
    worker = workers(task="tests.trainables.worker.test_worker:Exits")
    (report,) = worker.run(stretch(fault=place))
    assert (report.done, report.outcome, report.reason) == (True, "failed", "SystemExit: no data")
    assert "in exit_in" in report.traceback
    assert identical(metrics(list(worker.run(stretch(trial=1)))), straight(2))


@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_out_of_memory_is_called_by_its_name(stretch, library):
    worker = workers()
    (report,) = worker.run(stretch(fault=f"too large for {library}"))
    assert report.outcome == "failed"
    assert report.reason.startswith("out of memory: ")
    assert identical(metrics(list(worker.run(stretch(trial=1)))), straight(2))


def test_a_config_that_the_task_refuses_fails_its_trial_alone(stretch):
    worker = workers()
    (report,) = worker.run(stretch(size="many"))
    assert report.outcome == "failed"
    assert "RegressionConfig" in report.reason
    assert [r.epoch for r in worker.run(stretch(trial=1))] == [1, 2]


def test_a_task_that_cannot_be_imported_fails_with_its_name(stretch):
    (report,) = workers(task="tests.trainables.toy_models:Missing").run(stretch())
    assert report.outcome == "failed"
    assert "Missing" in report.reason


def test_a_corrupt_checkpoint_fails_its_trial(stretch):
    worker = workers()
    first = list(worker.run(stretch(until=1)))
    Path(first[0].checkpoint).write_bytes(b"not a checkpoint")
    (report,) = workers().run(stretch(epoch=1, start=first[0].checkpoint))
    assert report.outcome == "failed"
    assert "it is corrupt" in report.reason


def test_a_trial_that_diverges_says_so_and_the_next_is_unharmed(stretch):
    worker = workers()
    (report,) = worker.run(stretch(fault="nan loss", precision="bf16", max_consecutive_skips=1))
    assert (report.done, report.outcome) == (True, "diverged")
    assert report.reason.startswith("2 windows in a row were not finite")
    assert report.divergence == Divergence("skips", 1)
    assert worker.training is None
    assert identical(metrics(list(worker.run(stretch(trial=1)))), straight(2))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_an_objective_that_is_not_finite_ends_its_trial_with_the_report_of_that_epoch(stretch, value):
    _, report = workers().run(stretch(until=4, fault=f"lost: {value}"))
    assert (report.outcome, report.reason) == ("diverged", f"val/loss is {value} after epoch 2")
    assert report.divergence == Divergence("objective", 2)
    assert (report.last.epoch, str(report.last.metrics["val/loss"])) == (2, str(value))


class Resigning(Regression):
    """Sees in its second epoch that it has diverged, and tells what it knows."""

    def evaluate(self) -> dict[str, Any]:
        if next(self.evaluations) == 2:
            raise Diverged("it got lost", {"entropy": 0.0})
        return super().evaluate()

    def build(self) -> None:
        super().build()
        self.evaluations = iter(range(1, 9))


def test_a_task_that_sees_by_itself_that_it_diverged_ends_its_trial_and_leaves_its_reports_alone(stretch):
    first, report = workers(task=f"{__name__}:Resigning").run(stretch(until=4))
    assert first.epoch == 1
    assert (report.outcome, report.reason) == ("diverged", "it got lost")
    assert report.divergence == Divergence("other", 2)
    assert report.last is None


def test_a_stop_interrupts_the_trial_before_its_next_window(stretch, tmp_path):
    stopping = threading.Event()
    stopping.set()
    (report,) = workers(stopping).run(stretch())
    assert report == SegmentEnd("interrupted", "the search was stopped")
    assert not (tmp_path / "trial-0").exists()


def test_a_trial_goes_on_elsewhere_unless_any_rank_knows_that_the_search_is_to_stop():
    going, stop, nothing = (True, "node 10.0.0.3 is going away"), (True, ""), (False, "")
    for ranks in ([going], [going, going], [going, nothing], [nothing, (False, going[1])]):
        assert build_interruption(ranks) == Migration(going[1])
    for ranks in ([stop], [stop, going], [nothing, stop]):
        assert build_interruption(ranks).outcome == "interrupted"


def test_an_interrupted_trial_goes_on_from_its_last_report(stretch):
    stopping = threading.Event()
    worker = workers(stopping)
    reports = []
    for report in worker.run(stretch(until=4)):
        reports.append(report)
        if getattr(report, "epoch", None) == 2:
            stopping.set()
    assert [getattr(report, "outcome", None) for report in reports] == [None, None, "interrupted"]
    stopping.clear()
    rest = list(worker.run(stretch(epoch=2, until=4, start=reports[1].checkpoint)))
    assert identical(metrics(reports[:2] + rest), straight(4))


class AfterWindows(threading.Event):
    """Is set once it has been asked `left` times."""

    left = math.inf

    def is_set(self) -> bool:
        self.left -= 1
        return self.left < 0


def test_a_trial_that_was_interrupted_in_an_epoch_does_not_go_on_in_memory(stretch):
    stopping = AfterWindows()
    worker = workers(stopping)
    reports = list(worker.run(stretch(until=1)))
    later = stretch(epoch=1, until=2, start=reports[0].checkpoint)
    stopping.left = 2
    assert [report.outcome for report in worker.run(later)] == ["interrupted"]
    stopping.left = math.inf
    assert identical(metrics(reports + list(worker.run(later))), straight(2))


# Progress

SEEN: list[tuple[str, int]] = []  # what ran, and how far the worker said to be
WATCHED: list[TrialRunner] = []


class Watched(Regression):
    """Notes how far its worker is, as the heartbeat tells it while the trial hangs there."""

    def note(self, place: str) -> None:
        SEEN.append((place, WATCHED[0].progress))

    def build(self) -> None:
        self.note("build")
        super().build()

    def loss(self, batch: Any) -> Any:
        self.note("window")
        return super().loss(batch)

    def evaluate(self) -> dict[str, Any]:
        self.note("evaluate")
        return super().evaluate()

    def state_dict(self) -> dict[str, Any]:
        self.note("state")  # between build and the first window, and when the epoch is saved
        return super().state_dict()


def test_a_build_each_window_and_an_evaluation_are_progress(stretch):
    worker = workers(task="tests.trainables.worker.test_worker:Watched")
    WATCHED[:], SEEN[:] = [worker], []
    list(worker.run(stretch(until=1, accumulation=1, size=12)))
    places, progress = zip(*SEEN, strict=True)
    assert places == ("build", "state", "window", "window", "window", "evaluate", "state")
    assert sorted(set(progress)) == list(progress), "it stood still between two of them"


# Nothing of a trial is left for the next


@pytest.mark.parametrize("fault", FAULTS)
def test_a_trial_does_not_feel_what_the_one_before_did_to_the_process(stretch, fault):
    fresh = list(workers().run(stretch(trial=1, precision="bf16")))
    flags = global_flags()
    worker = workers()
    list(worker.run(stretch(fault=fault, precision="fp32", until=1)))
    worker.drop_trial_unless_continued(stretch(trial=1))
    if fault == "denormals":  # cannot be set back: the next trial gets a new process
        assert "the flushing of denormals" in worker.recycle_reason
        return
    assert worker.recycle_reason == ""
    used = list(worker.run(stretch(trial=1, precision="bf16")))
    assert [getattr(report, "outcome", None) for report in used] == [None, None]
    assert identical(metrics(used), metrics(fresh))
    assert global_flags() == flags


@pytest.mark.parametrize("fault", FAULTS)
def test_each_change_to_the_process_is_one_that_a_trial_would_feel(fault):
    """Without this the test above could pass on changes that change nothing."""

    def felt() -> list[Any]:
        return [
            global_flags(),
            torch.is_grad_enabled(),
            random.random(),
            np.random.rand(),
            torch.rand(1, device="cpu").tolist(),
        ]

    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    before = felt()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    FAULTS[fault]()
    assert not identical(before, felt())


def test_a_compiled_trial_is_compiled_however_many_came_before(stretch):
    worker = workers(task="tests.trainables.toy_models:Compiled")
    counts = []
    for trial, width in enumerate((4, 5, 6, 7, 9)):
        Compiled.compilations = 0
        reports = list(worker.run(stretch(trial=trial, until=1, precision="fp32", width=width)))
        assert [getattr(report, "outcome", None) for report in reports] == [None]
        counts.append(Compiled.compilations)
    assert counts[0] > 0
    assert counts == [counts[0]] * 5


def test_a_worker_keeps_the_number_of_threads_that_it_started_with(stretch):
    torch.set_num_threads(2)
    worker = workers()
    list(worker.run(stretch(until=1)))
    assert torch.get_num_threads() == 2


def test_the_generators_of_the_process_do_not_matter_to_a_trial(stretch):
    random.seed(99)
    np.random.seed(99)
    torch.manual_seed(99)
    assert identical(metrics(list(workers().run(stretch()))), straight(2))


# load_class


def test_a_task_is_found_by_its_reference():
    assert load_class(TASK) is Regression
