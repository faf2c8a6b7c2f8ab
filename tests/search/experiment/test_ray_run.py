"""What a search changes of its process while it runs on Ray."""

import threading
from types import SimpleNamespace

import pytest
import ray
from ray.tune.execution import class_cache

from searchlight.search.experiment.audit_follower import AuditFollower
from searchlight.search.experiment.ray_run import _restrict_environment


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
