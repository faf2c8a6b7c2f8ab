"""How a search is told to end, and what its budgets know of an earlier run."""

import os
import signal
import threading
import time
from dataclasses import replace

import pytest
from optuna.samplers import RandomSampler

from search.config import load_config
from search.config.objectives import Objective
from search.config.search_space import resolve_space
from search.config.stop_condition import StopCondition
from search.execution.stoppers import HOUR, Stoppers
from search.experiment import plan
from search.experiment.stop import (
    CHECK_S,
    StopRequest,
    build_stoppers,
    handle_signals,
    restore_stoppers,
    start_budget_timer,
)
from search.study.study import create_study
from tests.search.objectives import VAL_LOSS
from trainables.task import TaskConfig, searchable


class Config(TaskConfig):
    lr: float = searchable(1e-3, low=1e-5, high=1e-1, log=True)


SPACE = resolve_space(Config, {}, {})


def stopping():
    said = []
    return StopRequest(said.append), said


def test_the_first_budget_that_is_spent_is_the_reason():
    stop, said = stopping()
    stop("time budget")
    stop("2 GPU-hours")
    assert (stop.reasons, stop.asked.is_set(), stop.is_interrupted) == (["time budget"], True, False)
    assert said == ["stopping: time budget"]


def test_the_user_may_interrupt_a_search_that_ends_already():
    stop, _ = stopping()
    stop("time budget")
    stop.interrupt()
    assert stop.is_interrupted
    assert stop.reasons == ["time budget", "interrupted"]


def test_the_time_budget_stops_in_time_and_not_after_the_end():
    stop, _ = stopping()
    with handle_signals(stop, 0.05):
        assert stop.asked.wait(10)
    assert stop.reasons == ["time budget"]
    late, _ = stopping()
    with handle_signals(late, 0.2):
        pass
    assert not late.asked.wait(0.4)


def interrupt_again():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(10)


def test_a_signal_stops_and_a_second_one_ends_at_once():
    stop, _ = stopping()
    before = signal.getsignal(signal.SIGTERM)
    with handle_signals(stop, None):
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.asked.wait(10)
        with pytest.raises(KeyboardInterrupt):
            interrupt_again()
    assert stop.reasons == ["interrupted"]
    assert signal.getsignal(signal.SIGTERM) is before


def test_gpu_hours_are_noticed_while_no_trial_reports():
    stop, _ = stopping()
    budget = Stoppers(gpu_hours=1e-9, stop=stop)
    budget.record_segment_start(0)
    start_budget_timer(budget, stop.asked)
    assert stop.asked.wait(10 * CHECK_S)
    assert stop.reasons == ["1e-09 GPU-hours"]


@pytest.mark.parametrize(
    ("workers", "worker", "gpus"),
    [(4, {"CPU": 1.0, "GPU": 1.0}, 4), (1, {"CPU": 1.0, "GPU": 0.5}, 0.5), (2, {"CPU": 3.0}, 2)],
)
def test_a_gang_holds_the_gpus_of_its_workers_or_else_counts_its_workers(tmp_path, workers, worker, gpus):
    given = {"task": "arc", "storage": str(tmp_path), "concurrency": "1", "gpu_hours": "2"}
    planned = replace(plan(load_config(given)), config=load_config({**given, "workers": str(workers)}))
    stop, _ = stopping()
    budget = build_stoppers(planned, worker, stop, print)
    start = time.monotonic()
    budget.record_segment_start(0)
    time.sleep(0.02)
    assert gpus * 0.02 <= budget.meter.end(0) <= gpus * (time.monotonic() - start)
    budget.meter.restore(0, 2 * HOUR - 1)
    budget.check_gpu_hours()
    assert stop.reasons == []
    budget.meter.restore(1, 1.0)
    budget.check_gpu_hours()
    assert stop.reasons == ["2 GPU-hours"]


def test_all_trials_of_a_space_with_few_combinations_may_fail_alike(tmp_path):
    given = {"task": "arc", "storage": str(tmp_path), "search": {"precision": "fp32,bf16"}}
    planned = plan(load_config(given))
    fixed = {name: value for name, value in planned.space.get_defaults().items() if name != "precision"}
    planned = plan(load_config({**given, "set": fixed}))
    stop, _ = stopping()
    budget = build_stoppers(planned, {"CPU": 1.0}, stop, print)
    for number in range(2):
        budget.record_segment_start(number)
        budget.record_failure(number, "KeyError: 'x'")
    assert stop.reasons == ["the first 2 trials failed alike: KeyError: 'x'"]


@pytest.fixture(params=[(), (Objective("speed", "max"),)], ids=["one objective", "two objectives"])
def earlier(tmp_path, request):
    """Four trials as the study has them: the second one reported the best, then the others went on."""
    study, lock = create_study(tmp_path, lambda n: RandomSampler(seed=n), [VAL_LOSS, *request.param])
    numbers = [study.ask(SPACE)[0] for _ in range(4)]
    told = [(0, 1, 0.5), (1, 1, 0.2), (0, 2, 0.4), (2, 1, 0.3)]
    for at, (number, epoch, loss) in enumerate(told):
        report = {
            "metrics": {"val/loss": loss, "speed": 1.0},
            "checkpoint": None,
            "time": float(at),
            "held_gpu_s": 10.0 * epoch,
        }
        study.report(numbers[number], epoch, loss, report)
    study.record_segment(0, {"began": 0.0, "ended": 1.0, "held_gpu_s": 25.0})
    study.end(0, "completed")
    study.end(3, "diverged", "val/loss is nan after epoch 1")
    yield study.get_trials()
    lock.close()


def at_a_rung(*numbers):
    return lambda trial: trial.number in numbers


def test_a_search_that_is_taken_up_again_knows_what_its_trials_held(earlier):
    budget = Stoppers(VAL_LOSS, gpus=8)
    restore_stoppers(budget, earlier, at_a_rung())
    assert [budget.meter.get_gpu_seconds(number) for number in range(3)] == [25.0, 10.0, 10.0]
    assert budget.meter.total == 45, "whatever its gangs hold now"


def test_a_search_that_is_taken_up_again_with_nothing_left_to_spend_ends_before_a_trial_begins(earlier):
    stop, _ = stopping()
    restore_stoppers(Stoppers(VAL_LOSS, gpu_hours=45 / HOUR, stop=stop), earlier, at_a_rung())
    assert stop.reasons == ["0.0125 GPU-hours"]


@pytest.mark.parametrize(
    ("waiting", "patience", "reached"), [((2,), 3, True), ((2,), 4, False), ((), 2, True), ((), 3, False)]
)
def test_a_search_that_is_taken_up_again_knows_how_long_its_best_has_been_the_best(earlier, waiting, patience, reached):
    stop, _ = stopping()
    restore_stoppers(Stoppers(VAL_LOSS, patience=patience, stop=stop), earlier, at_a_rung(*waiting))
    assert stop.reasons == ([f"no better val/loss in {patience} trials"] if reached else [])


def test_a_search_that_is_taken_up_again_knows_that_its_target_was_met(earlier):
    stop, _ = stopping()
    budget = Stoppers(VAL_LOSS, target=StopCondition.from_text("val/loss<0.25"), stop=stop)
    restore_stoppers(budget, earlier, at_a_rung())
    assert budget.winners == {1}
    assert stop.reasons == ["val/loss<0.25 in trial 1"]


def test_nothing_looks_at_the_clock_once_the_search_ends():
    asked = threading.Event()
    start_budget_timer(Stoppers(), asked)
    asked.set()
    deadline = time.monotonic() + 10
    while any(thread.name == "budget" for thread in threading.enumerate()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(thread.name == "budget" for thread in threading.enumerate())
