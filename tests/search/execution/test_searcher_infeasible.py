"""Trials that have no memory, or that miss a constraint."""

import threading
from dataclasses import replace
from unittest.mock import Mock

import pytest
from optuna.trial import TrialState

from searchlight.search.analysis.best_trials import find_best
from searchlight.search.errors import UsageError
from searchlight.search.execution.stoppers import Stoppers
from searchlight.search.space.constraints import Constraint
from searchlight.search.space.stop_condition import StopCondition
from searchlight.search.study.trial import get_outcome
from searchlight.trainables.worker.messages import (
    EpochReport,
    Infeasibility,
)
from tests.search.execution.searcher_harness import Config, end, hand_on, interrupt, outcomes, report
from tests.search.objectives import VAL_LOSS


def test_refused_combinations_are_infeasible_and_not_alike(make_searcher):
    """They cost no gang, and five trials that fail in a gang end the search all the same."""
    stopping = threading.Event()
    stoppers = Stoppers(VAL_LOSS, trials=99, stop=lambda reason: stopping.set())
    searcher, study, watching = make_searcher(
        trials=99, rungs=(1,), fixed={"limit": "0.5"}, stopping=stopping, stoppers=stoppers
    )
    for turn in range(5):
        assert not stopping.is_set()
        assert searcher.suggest(f"t{turn}")["segment"].config["lr"] <= 0.5
        end(searcher, f"t{turn}", "failed", "KeyError: 'x'")
    assert stopping.is_set()
    refused = {event[2] for event in watching.find("infeasible")}
    assert refused == {"lr must be at most 0.5."}
    assert outcomes(study).count("failed") == 5
    assert {trial.constraints.get("build") for trial in study.get_trials()} == {None, 1.0}


REASONS = ("out of memory: CUDA out of memory", "exit code 1: RuntimeError: CUDA out of memory")  # of a task, a program


@pytest.mark.parametrize("reason", REASONS)
def test_first_trial_without_memory_is_infeasible_alone(reason, make_searcher):
    searcher, study, _ = make_searcher(tries_first=True)
    searcher.suggest("t0")
    end(searcher, "t0", "failed", reason, infeasibility=Infeasibility("memory"))
    assert get_outcome(study.get_trial(0)) == "infeasible"
    assert searcher.suggest("t1")["segment"].trial == 1
    end(searcher, "t1", "failed", "KeyError: 'x'")
    assert isinstance(searcher.error, UsageError), "the next one was tried instead"


def lack_memory(searcher, name, violation=0.5, in_window=False):
    infeasibility = Infeasibility("memory", violation, in_window)
    end(searcher, name, "failed", "out of memory: CUDA out of memory", infeasibility=infeasibility)


def test_trial_without_memory_is_infeasible_and_not_repeated(make_searcher):
    searcher, study, watching = make_searcher(trials=2)
    searcher.suggest("t0")
    lack_memory(searcher, "t0", in_window=True)  # its config names no micro-batches
    trial = study.get_trial(0)
    assert (trial.state, get_outcome(trial), trial.constraints) == (TrialState.PRUNED, "infeasible", {"memory": 0.5})
    assert watching.find("infeasible") == [("infeasible", 0, "out of memory: CUDA out of memory")]
    assert searcher.suggest("t1")["segment"].trial == 1


def test_first_trials_that_all_lack_memory_end_the_search(make_searcher):
    stop = Mock()
    searcher, _, _ = make_searcher(trials=5, stoppers=Stoppers(VAL_LOSS, 5, stop=stop))
    for turn in range(5):
        searcher.suggest(f"t{turn}")
        lack_memory(searcher, f"t{turn}")
    stop.assert_called_once()


class SplitConfig(Config):
    micro_batch_field = "batch_size"
    batch_size: int = 4


def test_trial_without_memory_continues_with_smaller_micro_batches(make_searcher, caplog):
    searcher, study, _ = make_searcher(trials=1, rungs=(3,))
    searcher.space = replace(searcher.space, config_class=SplitConfig)
    first = searcher.suggest("t0")["segment"]
    report(searcher, "t0", 1, 0.3)
    lack_memory(searcher, "t0", in_window=True)
    assert "It continues with batch_size=2, accumulation=2, which gives the same updates" in caplog.text
    again, resumed = searcher.suggest("t1")["segment"], None
    assert (again.trial, again.epoch, again.checkpoints[0]) == (0, 1, "/nowhere/t0-1.pt")
    assert again.config == {**first.config, "batch_size": 2, "accumulation": 2}
    assert study.get_trial(0).user_attrs["config"] == first.config, "it means what was proposed"
    interrupt(searcher, "t1")
    resumed, _, _ = make_searcher(study, trials=1, rungs=(3,))
    resumed.space = searcher.space
    resumed.recover()
    assert resumed.suggest("t2")["segment"].config == again.config
    lack_memory(resumed, "t2", in_window=True)
    assert resumed.suggest("t3")["segment"].config["batch_size"] == 1
    lack_memory(resumed, "t3", in_window=True)
    assert outcomes(study) == ["infeasible"]


def test_evaluation_without_memory_is_not_split(make_searcher):
    searcher, study, _ = make_searcher(trials=1)
    searcher.space = replace(searcher.space, config_class=SplitConfig)
    searcher.suggest("t0")
    lack_memory(searcher, "t0")
    assert outcomes(study) == ["infeasible"]


BOUND = Constraint("latency", "<=", 20.0)


def report_latency(searcher, name, epoch, loss, latency, done=False):
    content = {"val/loss": loss, "latency": latency}
    hand_on(searcher, name, EpochReport(epoch, content, f"/nowhere/{name}-{epoch}.pt", {}, done=done))


def test_best_report_is_one_that_meets_the_constraint(make_searcher):
    searcher, study, _ = make_searcher(trials=1, rungs=(3,), constraints=[BOUND])
    searcher.suggest("t0")
    for epoch, (loss, latency) in enumerate([(0.1, 25.0), (0.3, 20.0), (0.2, 21.0)], start=1):
        report_latency(searcher, "t0", epoch, loss, latency, done=epoch == 3)
    trial = study.get_trial(0)
    assert (get_outcome(trial), trial.value, trial.constraints) == ("completed", 0.3, {"latency<=20": 0.0})
    assert find_best([trial], VAL_LOSS).checkpoint == "/nowhere/t0-2.pt"


def test_trial_that_misses_the_constraint_is_infeasible(make_searcher):
    stoppers = Stoppers(VAL_LOSS, 3, target=StopCondition("val/loss", "<=", 0.15), stop=Mock())
    searcher, study, _ = make_searcher(trials=3, rungs=(1,), constraints=[BOUND], stoppers=stoppers)
    for number, (loss, latency) in enumerate([(0.1, 25.0), (0.3, 10.0), (0.2, 30.0)]):
        searcher.suggest(f"t{number}")
        report_latency(searcher, f"t{number}", 1, loss, latency, done=True)
    assert outcomes(study) == ["infeasible", "completed", "infeasible"]
    assert [trial.constraints["latency<=20"] for trial in study.get_trials()] == [5.0, -10.0, 10.0]
    assert study.get_trial(0).user_attrs["reason"] == "its best report misses latency<=20 by 5"
    assert find_best(study.get_trials(), VAL_LOSS).trial_id == 1
    stoppers.stop.assert_not_called()


def test_feasible_trial_is_promoted_before_a_better_infeasible_one(make_searcher):
    searcher, _, _ = make_searcher(trials=3, rungs=(1, 3), constraints=[BOUND])
    for number, (loss, latency) in enumerate([(0.1, 25.0), (0.3, 10.0), (0.2, 22.0)]):
        searcher.suggest(f"t{number}")
        report_latency(searcher, f"t{number}", 1, loss, latency, done=True)
    assert searcher.suggest("t3")["segment"].trial == 1
