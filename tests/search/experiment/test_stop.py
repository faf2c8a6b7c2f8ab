import os
import signal
import sys
import threading
from dataclasses import replace

import pytest

from searchlight.search.config import load_config
from searchlight.search.execution.stoppers import HOUR, Stoppers
from searchlight.search.experiment import plan
from searchlight.search.experiment.ray_run import build_stoppers
from searchlight.search.experiment.stop import (
    StopRequest,
    handle_signals,
)
from searchlight.search.space.search_space import resolve_space
from searchlight.search.space.stop_condition import StopCondition
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


def test_end_without_confirming_runs_does_not_announce_them(stop):
    stop.end_search("finished by ann", confirms=False)
    assert stop.said == ["no trial continues: finished by ann"]


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


def test_search_in_a_thread_is_interrupted_once_its_script_fails(stop, monkeypatch):
    shown, begun = [], threading.Event()
    monkeypatch.setattr(sys, "excepthook", lambda *error: shown.append(error))
    before = sys.excepthook

    def search():
        with handle_signals(stop, None):
            begun.set()
            stop.asked.wait(10)

    thread = threading.Thread(target=search)
    thread.start()
    assert begun.wait(10)
    sys.excepthook(ValueError, ValueError("a mistake"), None)
    thread.join()
    assert (len(shown), stop.reasons) == (1, ["interrupted"])
    assert stop.said == ["stopping: trials end at their next window; its script has failed"]
    assert sys.excepthook is before


def test_signal_while_the_result_is_shown_says_nothing(stop):
    stop.has_ended = True
    with handle_signals(stop, None):
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.asked.wait(10)
    assert stop.said == []


def test_gpu_hours_are_checked_until_the_search_ends(stop, monkeypatch):
    monkeypatch.setattr("searchlight.search.execution.stoppers.CHECK_S", 0.01)
    budget, before = Stoppers(gpu_hours=1e-9, stop=stop), set(threading.enumerate())
    budget.record_segment_start(0)
    budget.start_timer(stop.asked)
    assert stop.asked.wait(10)
    assert stop.reasons == ["1e-09 GPU-hours"]
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    ("workers", "worker", "gpus", "hours"),
    [
        (4, {"CPU": 1.0, "GPU": 1.0}, 4, "GPU-hours"),
        (1, {"CPU": 1.0, "GPU": 0.5}, 0.5, "GPU-hours"),
        (2, {"CPU": 3.0}, 2, "worker-hours"),
    ],
)
def test_gang_counts_its_gpus_or_else_its_workers(tmp_path, stop, workers, worker, gpus, hours):
    given = {"task": "arc", "storage": str(tmp_path), "concurrency": "1", "gpu_hours": "2", "confirm": "0"}
    planned = replace(plan(load_config(given)), config=load_config({**given, "workers": str(workers)}))
    budget = build_stoppers(planned, worker, stop, print)
    assert budget.meter.gpus == gpus
    budget.meter.restore(0, 2 * HOUR - 1)
    budget.check_gpu_hours()
    assert stop.reasons == []
    budget.meter.restore(1, 1.0)
    budget.check_gpu_hours()
    assert stop.reasons == [f"2 {hours}"]


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


def test_target_that_was_met_lets_the_asked_confirmation_begin(stop):
    target = StopCondition.from_text("val/loss<0.25")
    budget = Stoppers(VAL_LOSS, target=target, stop=stop, end_search=stop.end_search, confirms_target=True)
    budget.record_report(1, {"val/loss": 0.2})
    assert (stop.search_over.is_set(), stop.asked.is_set()) == (True, False)
    stop.interrupt()
    assert stop.asked.is_set(), "Ctrl-C ends everything"


def test_target_ends_everything_unless_confirmation_is_asked(stop):
    target = StopCondition.from_text("val/loss<0.25")
    budget = Stoppers(VAL_LOSS, target=target, stop=stop, end_search=stop.end_search)
    budget.record_report(7, {"val/loss": 0.1})
    assert stop.asked.is_set()
