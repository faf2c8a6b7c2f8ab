"""Predict what an epoch takes, with a clock that only the tasks move."""

import pytest

from searchlight.trainables.context import Context, cache
from searchlight.trainables.preflight import cost, observation
from searchlight.trainables.training import trainer
from tests.trainables.preflight.faulty_tasks import Small, SmallConfig
from tests.trainables.training.trials import FakeClock

EPOCHS_S = [5.0, 3.0, 2.0, 4.0, 1.0]
EVALUATION_S, BASELINE_S = 0.5, 7.0


@pytest.fixture
def clock(monkeypatch):
    clock = FakeClock()
    for module in (cache, cost, observation, trainer):
        monkeypatch.setattr(module, "time", clock)
    return clock


def make_task(clock):
    """A task whose epochs take EPOCHS_S, and whose first evaluation of a worker prepares something."""

    class Timed(Small):
        def train_batches(self, epoch):
            clock.sleep(EPOCHS_S[epoch])
            return super().train_batches(epoch)

        def evaluate(self):
            self.context.cache("baseline", lambda: clock.sleep(BASELINE_S))
            clock.sleep(EVALUATION_S)
            return super().evaluate()

    return Timed


@pytest.mark.parametrize(("limit_s", "seconds"), [(100.0, 2.5), (26.0, 3.5), (20.0, 12.5)])
def test_short_epoch_costs_the_fastest_of_those_in_the_limit(clock, limit_s, seconds):
    found, _, _ = cost.measure_cost(make_task(clock), SmallConfig(epochs=5), Context(), "", limit_s)
    assert (found.epoch_s, found.measured) == (seconds, True)


def test_evaluation_costs_what_it_takes_once_values_are_cached(clock):
    context = Context()
    trial = observation.ObservedTrial(make_task(clock), SmallConfig(), context)
    for _ in range(2):
        trial.evaluate()
        assert trial.evaluate_s == EVALUATION_S
    assert context.cache_store.seconds == BASELINE_S


def test_cache_counts_nested_values_once_and_no_large_ones(clock):
    store = cache.Cache(limit=10_000)

    def make(seconds, size=10, inner=None):
        def made():
            clock.sleep(seconds)
            return (inner and store.get(*inner), "x" * size)

        return made

    store.get("outer", make(2.0, inner=("inner", make(1.0))))
    assert store.seconds == 3.0
    store.get("large", make(5.0, size=20_000, inner=("second", make(1.0))))
    assert store.seconds == 4.0
