"""What a search changes of its process while it runs on Ray."""

import threading
from contextlib import nullcontext
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import ray
from ray.tune.execution import class_cache

from searchlight.search.errors import StoreError
from searchlight.search.execution.tune_scheduler import RayLost
from searchlight.search.experiment import audit_follower, ray_run
from searchlight.search.experiment.audit_follower import AuditFollower
from searchlight.search.experiment.ray_run import _restrict_environment, _run_trials
from searchlight.search.experiment.stop import StopRequest
from searchlight.search.study.trial import get_outcome
from tests.search.execution.searcher_harness import end


def passed_on():
    return {*class_cache.ENV_VARS_TO_PROPAGATE, *class_cache.DEFAULT_ENV_VARS}


def test_tune_passes_no_variables_until_the_search_ends(monkeypatch):
    monkeypatch.setattr(class_cache, "ENV_VARS_TO_PROPAGATE", {"AWS_SECRET_ACCESS_KEY", "TUNE_DISABLE"})
    before = passed_on()
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with _restrict_environment():
        assert passed_on() == set()
    assert passed_on() == before > {"AWS_SECRET_ACCESS_KEY", "TUNE_DISABLE"}
    monkeypatch.setenv("RAY_ADDRESS", "ray.example:6379")
    with _restrict_environment():
        assert before - passed_on() == {"AWS_SECRET_ACCESS_KEY"}, "no key, which Ray would log"


@pytest.mark.parametrize("is_over", [False, True])
def test_audit_whose_workers_were_lost_is_told(is_over, monkeypatch):
    ended, told = threading.Event(), []
    registry = SimpleNamespace(
        wait_for_audit=SimpleNamespace(remote=ended.wait),
        record_audit=SimpleNamespace(remote=lambda audit: ended.set()),
    )
    monkeypatch.setattr(ray, "get", lambda is_set: None)
    progress, stop = SimpleNamespace(warn=told.append), SimpleNamespace(asked=threading.Event())
    with AuditFollower(registry, None, "", progress, stop) as follower:
        assert follower.passed is None
        if not is_over:
            ended.set()
            follower._thread.join()
            assert follower.passed, "trials that failed meanwhile have failed"
    line = "preflight: the task is not audited: its audit broke off"
    assert told == ([] if is_over else [line])


@pytest.mark.parametrize("passed", [None, True])
def test_trials_that_wait_for_the_audit_are_interrupted_if_ray_is_lost(passed, make_searcher, monkeypatch, tmp_path):
    def lose(*_):
        raise RayLost("a process of Ray has ended")

    stop = StopRequest(lambda line: None)
    searcher, study, _ = make_searcher(passed_audit=lambda: passed, stopping=stop.asked)
    searcher.suggest("t0")
    end(searcher, "t0", "failed", "KeyError: 'x'")
    monkeypatch.setattr(ray_run, "_run_tuner", lose)
    stoppers = SimpleNamespace(restore=lambda *_: None)
    with pytest.raises(StoreError, match="a process of Ray has ended"):
        _run_trials(searcher, None, stoppers, stop, tmp_path, nullcontext())
    assert get_outcome(study.get_trial(0)) == ("failed" if passed else "interrupted")


def test_audit_is_waited_for_again_after_its_registry_was_killed(monkeypatch, tmp_path):
    monkeypatch.setattr(audit_follower, "RESTART_S", 0.0)
    found = {"findings": [], "has_errors": False, "costs": [], "seconds": 1.0, "left_out": []}
    monkeypatch.setattr(ray, "get", Mock(side_effect=[ray.exceptions.ActorUnavailableError("", None), found]))
    registry = SimpleNamespace(
        wait_for_audit=SimpleNamespace(remote=lambda: None), record_audit=SimpleNamespace(remote=lambda audit: None)
    )
    config, stop = SimpleNamespace(local_path=tmp_path), SimpleNamespace(asked=threading.Event())
    with AuditFollower(registry, config, "", Mock(), stop) as follower:
        follower._thread.join()
        assert follower.passed, "trials that failed meanwhile have failed"


def test_audit_stays_unknown_if_ray_is_lost(monkeypatch):
    registry = SimpleNamespace(
        wait_for_audit=SimpleNamespace(remote=lambda: None), record_audit=SimpleNamespace(remote=lambda audit: None)
    )
    monkeypatch.setattr(ray, "get", Mock(side_effect=ray.exceptions.RayError))
    with AuditFollower(registry, None, "", None, None) as follower:
        follower._thread.join()
        assert follower.passed is None
