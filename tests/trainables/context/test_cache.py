"""Prepare once for all trials of a worker what is costly, so that no trial can change it for the next."""

import os
import random
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from searchlight.trainables.context.cache import Cache
from searchlight.trainables.preflight.shadow_device import shadow_cuda
from searchlight.trainables.worker.trial_runner import TrialRunner
from tests.trainables.toy_models import Augmented, identical
from tests.trainables.worker.local_worker import metrics, workers

KIB = 2**10


def block(kib: int) -> Mock:
    return Mock(return_value=torch.zeros(kib * KIB, dtype=torch.uint8))


@settings(max_examples=50)
@given(
    asked=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 40)), max_size=40),
    limit=st.integers(1, 100),
    entries=st.integers(1, 5),
)
def test_cache_never_exceeds_its_limits(asked, limit, entries):
    cache = Cache(limit * KIB, entries)
    for number, kib in asked:
        value = cache.get(f"value {number}", block(kib))
        assert value.numel() % KIB == 0
        assert cache.get_size("cpu") <= limit * KIB
        assert len(cache._kept) <= entries


def test_least_recently_used_value_is_dropped_first():
    cache, makes = Cache(entries=2), {name: Mock(side_effect=object) for name in "abc"}
    values = [cache.get(name, makes[name]) for name in "abacab"]
    assert {name: make.call_count for name, make in makes.items()} == {"a": 1, "b": 2, "c": 1}
    assert values[0] is values[2] is not values[1]
    with pytest.raises(ZeroDivisionError):
        cache.get("d", lambda: 1 / 0)
    assert cache.get("d", lambda: 3) == 3, "nothing is kept after an error"


def test_value_above_the_limit_is_logged_and_not_kept(caplog):
    caplog.set_level("INFO", "searchlight")
    cache, large, small = Cache(64 * KIB), block(100), block(10)
    for name, make in (("small", small), ("large", large), ("large", large), ("small", small)):
        cache.get(name, make)
    assert (large.call_count, small.call_count) == (2, 1)
    assert "large takes" in caplog.text
    assert 2**20 < Cache().get_limit("cpu") < 2**40, "by default a share of the machine's memory"


def test_values_on_a_gpu_are_limited_by_its_memory(monkeypatch):
    monkeypatch.setattr(os, "sysconf", lambda name: KIB)  # a machine with a MiB
    with shadow_cuda():
        monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda: 2**-20)  # 24 KiB of a GPU of 24 GiB
        cache, makes = (
            Cache(),
            [Mock(return_value=torch.zeros(kib * KIB, dtype=torch.uint8, device="cuda")) for kib in (3, 2, 2, 7)],
        )
        for name, make in zip("abcd", makes, strict=True):
            cache.get(name, make)
        assert cache.get_size("cuda") == 4 * KIB, "the oldest value had to go, and the largest is too large"
        assert cache.get_limit("cuda") == 6 * KIB


@pytest.mark.parametrize(
    "value",
    [
        bytes(16 * KIB),
        {"key": [torch.zeros(2 * KIB), (np.zeros(KIB), np.zeros(0))]},
        [torch.zeros(4 * KIB)[:10], torch.zeros(0)],
        torch.nn.Linear(4 * KIB, 1, bias=False),
        [array := np.zeros(2 * KIB), array[:7], array.reshape(2, -1)],
        [shared := torch.zeros(4 * KIB), shared[:7], shared.view(2, -1), shared.detach()],
    ],
    ids=["bytes", "nested", "view", "module", "views of an array", "views of a tensor"],
)
def test_value_counts_with_the_memory_that_it_holds(value):
    cache = Cache()
    cache.get("value", lambda: value)
    assert 16 * KIB <= cache.get_size("cpu") < 24 * KIB


CHANGES = {
    "a tensor": lambda value: value["tensor"].add_(1),
    "a view of a tensor": lambda value: value["tensor"][0].zero_(),
    "a parameter": lambda value: torch.nn.init.zeros_(value["module"].weight),
    "a list": lambda value: value["list"].append(1),
    "the order of a list": lambda value: value["list"].reverse(),
    "a dict": lambda value: value.update(more=1),
    "an item of a dict": lambda value: value.update(tensor=value["tensor"] + 0),
    "an attribute": lambda value: setattr(value["module"], "seen", 1),
}


def make_parts() -> dict[str, Any]:
    return {"tensor": torch.zeros(2, 2), "list": ["a", "b"], "module": torch.nn.Linear(2, 2), "array": np.zeros(3)}


@pytest.mark.parametrize("change", CHANGES)
def test_value_that_a_trial_changed_is_made_anew(caplog, change):
    caplog.set_level("INFO", "searchlight")
    cache = Cache()
    CHANGES[change](cache.get("parts", make_parts))
    cache.drop_changed()
    assert "the trial changed the cached value parts" in caplog.text
    value = cache.get("parts", make_parts)
    assert (value["list"], value["tensor"].tolist()) == (["a", "b"], [[0, 0], [0, 0]])


def test_value_that_was_only_read_is_kept():
    cache = Cache()
    value = cache.get("parts", make_parts)
    value["module"](value["tensor"] + 1).sum().item()
    value["tensor"].clone().add_(1)
    cache.drop_changed()
    assert cache.get("parts", make_parts) is value


def test_arrays_become_read_only():
    whole = np.zeros(4)
    value = Cache().get("arrays", lambda: {"view": whole[:2], "more": [np.ones(2)]})
    for array in (whole, value["view"], value["more"][0]):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


class Cached(Augmented):  # keeps its data, and draws some of them
    made = 0

    def build(self) -> None:
        noise = self.context.cache(f"noise of {self.config.size}", self.make_noise)
        super().build()
        self.inputs = self.inputs + noise
        if self.config.fault == "in place":
            noise.mul_(100)

    def make_noise(self) -> torch.Tensor:
        type(self).made += 1
        return torch.rand(self.config.size, 3) + random.random() + np.random.rand()


CACHED = f"{__name__}:Cached"


@pytest.fixture
def run(stretch):
    """Runs a trial: its metrics, and what it noted."""

    def run(worker: TrialRunner, number: int, **config: Any) -> tuple[list[dict[str, float]], list[str]]:
        reports = list(worker.run(stretch(number, precision="fp32", **config)))
        return metrics(reports), [note for report in reports for note in report.notes]

    return run


def test_value_outlives_its_trial_without_effect_on_the_next(run):
    Cached.made = 0
    worker = workers(task=CACHED)
    first, _ = run(worker, 0, seed=1)
    second, _ = run(worker, 1, seed=2)
    assert Cached.made == 1
    fresh, _ = run(workers(task=CACHED), 2, seed=2)
    assert Cached.made == 2
    assert identical(second, fresh)
    assert not identical(first, second)


def test_trial_that_writes_into_a_value_is_noted(run):
    worker = workers(task=CACHED)
    _, notes = run(worker, 0, fault="in place", epochs=2)
    assert notes == ["the trial changed the cached value noise of 22, which is rebuilt. Copy it before"]
    assert identical(run(worker, 1), run(workers(task=CACHED), 2))


def test_object_of_the_tasks_own_class_is_not_kept(run, tmp_path, monkeypatch):
    """Its module is imported anew: `isinstance` would be wrong, and the module's state would live on."""
    (tmp_path / "own_cached.py").write_text(
        "from tests.trainables.toy_models import Regression\n"
        "class Data:\n    pass\n"
        "class Mine(Regression):\n"
        "    def build(self):\n"
        "        super().build()\n"
        "        assert isinstance(self.context.cache('data', Data), Data)\n"
        "        self.context.cache('numbers', lambda: [1, 2])\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    worker = workers(task="own_cached:Mine")
    assert run(worker, 0)[1] == []
    (note,) = run(worker, 1)[1]
    assert note.startswith("the cache rebuilds data: it holds an object of a class in own_cached")
