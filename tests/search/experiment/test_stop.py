import os
import signal
import threading
from dataclasses import replace

import pytest
from optuna.samplers import RandomSampler

from searchlight.search.config import load_config
from searchlight.search.execution.stoppers import HOUR, Stoppers
from searchlight.search.experiment import plan
from searchlight.search.experiment import stop as stop_module
from searchlight.search.experiment.stop import (
    StopRequest,
    build_stoppers,
    handle_signals,
    restore_stoppers,
    start_budget_timer,
)
from searchlight.search.space.objectives import Objective
from searchlight.search.space.search_space import resolve_space
from searchlight.search.space.stop_condition import StopCondition
from searchlight.search.study.study import create_study
from searchlight.trainables.task import TaskConfig, searchable
from tests.search.objectives import VAL_LOSS


class Config(TaskConfig):
    lr: float = searchable(1e-3, low=1e-5, high=1e-1, log=True)


SPACE = resolve_space(Config, {}, {})


@pytest.fixture
def stop():
    request = StopRequest(lambda line: request.said.append(line))
    request.said = []
    return request


def test_first_reason_stops_and_the_user_may_still_interrupt(stop):
    stop("time budget")
    stop("2 GPU-hours")
    assert (stop.reasons, stop.asked.is_set(), stop.is_interrupted) == (["time budget"], True, False)
    assert stop.said == ["stopping: time budget"]
    stop.interrupt()
    assert stop.is_interrupted
    assert stop.reasons == ["time budget", "interrupted"]


def test_time_budget_stops_the_search(stop):
    with handle_signals(stop, 0.05):
        assert stop.asked.wait(10)
    assert stop.reasons == ["time budget"]


def test_end_of_the_search_lets_confirming_runs_begin(stop):
    stop.end_search("time budget")
    assert (stop.reasons, stop.asked.is_set(), stop.search_over.is_set()) == (["time budget"], False, True)
    assert stop.said == ["no trial continues: time budget; the best ones are confirmed"]
    stop.end_search("2 GPU-hours")
    stop("time budget")
    assert (stop.reasons, stop.asked.is_set()) == (["time budget"], True)


def test_part_of_the_time_budget_is_kept_for_confirming_runs(stop):
    with handle_signals(stop, 1000.0, reserve=0.9999):
        assert stop.search_over.wait(10)
    assert not stop.asked.is_set()


def test_time_budget_ends_with_the_search(stop):
    before = set(threading.enumerate())
    with handle_signals(stop, 3600.0):
        (timer,) = set(threading.enumerate()) - before
    timer.join(10)
    assert not timer.is_alive()
    assert stop.reasons == []


def interrupt_again():
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(10)


def test_signal_stops_and_the_second_one_ends_at_once(stop):
    before = signal.getsignal(signal.SIGTERM)
    with handle_signals(stop, None):
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.asked.wait(10)
        with pytest.raises(KeyboardInterrupt):
            interrupt_again()
    assert stop.reasons == ["interrupted"]
    assert signal.getsignal(signal.SIGTERM) is before


def test_gpu_hours_are_checked_until_the_search_ends(stop, monkeypatch):
    monkeypatch.setattr(stop_module, "CHECK_S", 0.01)
    budget, before = Stoppers(gpu_hours=1e-9, stop=stop), set(threading.enumerate())
    budget.record_segment_start(0)
    start_budget_timer(budget, stop.asked)
    assert stop.asked.wait(10)
    assert stop.reasons == ["1e-09 GPU-hours"]
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    ("workers", "worker", "gpus"),
    [(4, {"CPU": 1.0, "GPU": 1.0}, 4), (1, {"CPU": 1.0, "GPU": 0.5}, 0.5), (2, {"CPU": 3.0}, 2)],
)
def test_gang_counts_its_gpus_or_else_its_workers(tmp_path, stop, workers, worker, gpus):
    given = {"task": "arc", "storage": str(tmp_path), "concurrency": "1", "gpu_hours": "2", "confirm": "0"}
    planned = replace(plan(load_config(given)), config=load_config({**given, "workers": str(workers)}))
    budget = build_stoppers(planned, worker, stop, print)
    assert budget.meter.gpus == gpus
    budget.meter.restore(0, 2 * HOUR - 1)
    budget.check_gpu_hours()
    assert stop.reasons == []
    budget.meter.restore(1, 1.0)
    budget.check_gpu_hours()
    assert stop.reasons == ["2 GPU-hours"]


def test_equal_failures_of_all_combinations_stop_the_search(tmp_path, stop):
    given = {"task": "arc", "storage": str(tmp_path), "search": {"precision": "fp32,bf16"}}
    defaults = plan(load_config(given)).space.get_defaults()
    fixed = {name: value for name, value in defaults.items() if name != "precision"}
    budget = build_stoppers(plan(load_config({**given, "set": fixed, "patience": "5"})), {"CPU": 1.0}, stop, print)
    assert budget.patience == 5
    for number in range(2):
        budget.record_segment_start(number)
        budget.record_failure(number, "KeyError: 'x'")
    assert stop.reasons == ["the first 2 trials failed with the same error: KeyError: 'x'"]


@pytest.fixture(params=[(), (Objective("speed", "max"),)], ids=["one objective", "two objectives"])
def earlier(tmp_path, request):
    """Four trials as the study has them: the second one reported the best, then the others went on."""
    study, lock = create_study(tmp_path, lambda n: RandomSampler(seed=n), [VAL_LOSS, *request.param])
    numbers = [study.ask(SPACE)[0] for _ in range(4)]
    for at, (number, epoch, loss) in enumerate([(0, 1, 0.5), (1, 1, 0.2), (0, 2, 0.4), (2, 1, 0.3)]):
        report = {"metrics": {"val/loss": loss, "speed": 1.0}, "checkpoint": None}
        study.report(numbers[number], epoch, loss, {**report, "time": float(at), "held_gpu_s": 10.0 * epoch})
    study.record_segment(0, {"began": 0.0, "ended": 1.0, "held_gpu_s": 25.0})
    study.end(0, "completed")
    study.end(3, "diverged", "val/loss is nan after epoch 1")
    yield study.get_trials()
    lock.close()


def at_a_rung(*numbers):
    return lambda trial: trial.number in numbers


def test_resumed_search_knows_the_gpu_time_of_its_trials(earlier, stop):
    budget = Stoppers(VAL_LOSS, gpus=8)
    restore_stoppers(budget, earlier, at_a_rung())
    assert [budget.meter.get_gpu_seconds(number) for number in range(3)] == [25.0, 10.0, 10.0]
    assert budget.meter.total == 45, "whatever its gangs hold now"
    restore_stoppers(Stoppers(VAL_LOSS, gpu_hours=45 / HOUR, stop=stop), earlier, at_a_rung())
    assert stop.reasons == ["0.0125 GPU-hours"], "before a trial begins"


@pytest.mark.parametrize(
    ("waiting", "patience", "reached"), [((2,), 3, True), ((2,), 4, False), ((), 2, True), ((), 3, False)]
)
def test_resumed_search_knows_the_age_of_its_best(earlier, stop, waiting, patience, reached):
    restore_stoppers(Stoppers(VAL_LOSS, patience=patience, stop=stop), earlier, at_a_rung(*waiting))
    assert stop.reasons == ([f"no better val/loss in {patience} trials"] if reached else [])


def test_resumed_search_knows_that_its_target_was_met(earlier, stop):
    budget = Stoppers(VAL_LOSS, target=StopCondition.from_text("val/loss<0.25"), stop=stop)
    restore_stoppers(budget, earlier, at_a_rung())
    assert budget.winners == {1}
    assert stop.reasons == ["val/loss<0.25 in trial 1"]


def test_target_that_was_met_lets_the_asked_confirmation_begin(earlier, stop):
    target = StopCondition.from_text("val/loss<0.25")
    budget = Stoppers(VAL_LOSS, target=target, stop=stop, end_search=stop.end_search, confirms_target=True)
    restore_stoppers(budget, earlier, at_a_rung())
    assert (stop.search_over.is_set(), stop.asked.is_set()) == (True, False)
    stop.interrupt()
    assert stop.asked.is_set(), "Ctrl-C ends everything"


def test_target_ends_everything_unless_confirmation_is_asked(stop):
    target = StopCondition.from_text("val/loss<0.25")
    budget = Stoppers(VAL_LOSS, target=target, stop=stop, end_search=stop.end_search)
    budget.record_report(7, {"val/loss": 0.1})
    assert stop.asked.is_set()
