"""Predict what an epoch takes, with a clock that only the tasks move."""

from types import SimpleNamespace

import pytest
import torch

from searchlight.trainables.context import Context, cache
from searchlight.trainables.precision import Precision
from searchlight.trainables.preflight import cost, observation
from searchlight.trainables.training import trainer
from searchlight.trainables.update import Updater
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


@pytest.mark.parametrize(
    ("optimizer", "stepped", "each"),
    [(torch.optim.Adam, False, 8), (torch.optim.Adam, True, 0), (torch.optim.SGD, True, 0)],
)
@pytest.mark.parametrize("workers", [1, 4])
def test_missing_bytes_are_of_optimizer_and_reduction(optimizer, stepped, each, workers):
    layer = torch.nn.Linear(10, 10, bias=False)
    made = optimizer(layer.parameters(), lr=0.1)
    task = SimpleNamespace(updaters={"train": Updater({"sole": made})})
    if stepped:
        task.updaters["train"].update([torch.ones(1, 10)], lambda batch: (layer(batch).sum(), 1))
    assert cost.count_missing_bytes(task, workers) == 100 * (each + 4 * (workers > 1))


def test_state_of_a_new_parameter_is_as_large_as_of_others():
    old, new = torch.nn.Linear(10, 10), torch.nn.Linear(10, 20, bias=False)
    made = torch.optim.SGD([*old.parameters(), *new.parameters()], lr=0.1, momentum=0.9)
    updater = Updater({"sole": made})
    updater.update([torch.ones(1, 10)], lambda batch: (old(batch).sum(), 1))
    assert cost.count_missing_bytes(SimpleNamespace(updaters={"train": updater}), 1) == 4 * 200


def test_largest_micro_batch_leaves_room_for_the_reduction(monkeypatch):
    monkeypatch.setattr(cost, "measure_usable_memory", lambda device: 10**6)
    trial = observation.ObservedTrial(Small, SmallConfig(), Context())
    trial.train(3, lambda: False)
    found = [cost.find_largest_batch(trial, Precision.FP32, workers, lambda: False) for workers in (1, 4)]
    parameters = sum(p.numel() for p in trial.task.modules["model"].parameters())
    monkeypatch.setattr(cost, "measure_usable_memory", lambda device: 10**6 - 4 * parameters)
    assert found[1] == cost.find_largest_batch(trial, Precision.FP32, 1, lambda: False) < found[0]
    trial.close()
