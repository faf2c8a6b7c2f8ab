"""What a search changes of its process while it runs on Ray."""

from ray.tune.execution import class_cache

from search.experiment.ray_run import _restrict_environment


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
