"""What is costly to prepare is prepared once for all trials of a worker, and no trial can change it for the next."""

import random
import threading
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainables.toy_models import Augmented, identical, timeless
from trainables.context import Context
from trainables.context.cache import Cache
from trainables.worker.messages import SegmentAssignment, WorkerSettings
from trainables.worker.worker import TrialRunner

KIB = 2**10


class Made:
    """Counts how often it is called; gives what it was made with."""

    def __init__(self, value: Any = None) -> None:
        self.value = value
        self.calls = 0

    def __call__(self) -> Any:
        self.calls += 1
        return self.value if self.value is not None else object()


def block(kib: int) -> Made:
    return Made(torch.zeros(kib * KIB, dtype=torch.uint8))


def test_a_value_is_made_once_per_name():
    cache, first, second = Cache(), Made(), Made()
    value = cache.get("first", first)
    assert cache.get("first", first) is value
    assert cache.get("second", second) is not value
    assert (first.calls, second.calls) == (1, 1)


def test_an_error_of_make_goes_on_and_nothing_is_kept():
    cache = Cache()
    with pytest.raises(ZeroDivisionError):
        cache.get("broken", lambda: 1 / 0)
    assert cache.get("broken", lambda: 3) == 3


# Bounds


@settings(max_examples=50, deadline=None)
@given(
    asked=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 40)), max_size=40),
    limit=st.integers(1, 100),
    entries=st.integers(1, 5),
)
def test_it_never_holds_more_than_its_limits(asked, limit, entries):
    cache = Cache(limit * KIB, entries)
    for number, kib in asked:
        value = cache.get(f"value {number}", block(kib))
        assert value.numel() % KIB == 0
        assert cache.get_size("cpu") <= limit * KIB
        assert len(cache._kept) <= entries


def test_what_was_used_least_recently_goes_first():
    cache, makes = Cache(entries=2), {name: Made() for name in "abc"}
    for name in "abacab":
        cache.get(name, makes[name])
    assert {name: make.calls for name, make in makes.items()} == {"a": 1, "b": 2, "c": 1}


def test_a_value_above_the_limit_is_made_each_time_and_told(caplog):
    caplog.set_level("INFO", "trainables")
    cache, large, small = Cache(64 * KIB), block(100), block(10)
    cache.get("small", small)
    for _ in range(2):
        cache.get("large", large)
    cache.get("small", small)
    assert (large.calls, small.calls) == (2, 1)
    assert "large takes" in caplog.text


@pytest.mark.parametrize(
    "value",
    [
        torch.zeros(4 * KIB),
        np.zeros(4 * KIB, dtype=np.float32),
        bytes(16 * KIB),
        {"key": [torch.zeros(2 * KIB), (np.zeros(KIB), np.zeros(0))]},
        [torch.zeros(4 * KIB)[:10], torch.zeros(0)],
        torch.nn.Linear(4 * KIB, 1, bias=False),
        [array := np.zeros(2 * KIB), array[:7], array.reshape(2, -1)],
        [shared := torch.zeros(4 * KIB), shared[:7], shared.view(2, -1), shared.detach()],
    ],
    ids=["tensor", "array", "bytes", "nested", "view", "module", "views of an array", "views of a tensor"],
)
def test_a_value_counts_with_the_memory_that_it_holds(value):
    cache = Cache()
    cache.get("value", lambda: value)
    assert 16 * KIB <= cache.get_size("cpu") < 24 * KIB


# Changes


def append(value: dict[str, Any]) -> None:
    value["list"].append(1)


CHANGES = {
    "a tensor": lambda value: value["tensor"].add_(1),
    "a view of a tensor": lambda value: value["tensor"][0].zero_(),
    "a parameter": lambda value: torch.nn.init.zeros_(value["module"].weight),
    "a list": append,
    "the order of a list": lambda value: value["list"].reverse(),
    "a dict": lambda value: value.update(more=1),
    "an item of a dict": lambda value: value.update(tensor=value["tensor"] + 0),
    "an attribute": lambda value: setattr(value["module"], "seen", 1),
}


def parts() -> dict[str, Any]:
    return {"tensor": torch.zeros(2, 2), "list": ["a", "b"], "module": torch.nn.Linear(2, 2), "array": np.zeros(3)}


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_trial_changed_is_made_anew(caplog, change):
    caplog.set_level("INFO", "trainables")
    cache = Cache()
    CHANGES[change](cache.get("parts", parts))
    cache.drop_changed()
    assert "the trial changed what the cache holds as parts" in caplog.text
    value = cache.get("parts", parts)
    assert (value["list"], value["tensor"].tolist()) == (["a", "b"], [[0, 0], [0, 0]])


def test_what_was_only_read_stays():
    cache = Cache()
    value = cache.get("parts", parts)
    value["module"](value["tensor"] + 1).sum().item()
    copied = value["tensor"].clone()
    copied.add_(1)
    cache.drop_changed()
    assert cache.get("parts", parts) is value


def test_arrays_cannot_be_written_to():
    cache = Cache()
    whole = np.zeros(4)
    value = cache.get("arrays", lambda: {"view": whole[:2], "more": [np.ones(2)]})
    for array in (whole, value["view"], value["more"][0]):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


# Trials


class Cached(Augmented):
    """Keeps its data, and draws some of them."""

    made = 0

    def build(self) -> None:
        noise = self.context.cache(f"noise of {self.config.size}", self.noise)
        super().build()
        self.inputs = self.inputs + noise
        if self.config.fault == "in place":
            noise.mul_(100)

    def noise(self) -> torch.Tensor:
        type(self).made += 1
        return torch.rand(self.config.size, 3) + random.random() + np.random.rand()


@pytest.fixture
def trial(tmp_path):
    """Runs a trial: its metrics, and what it noted."""

    def trial(worker: TrialRunner, number: int, **config: Any) -> tuple[list[dict[str, float]], list[str]]:
        folder = str(tmp_path / f"trial-{number}")
        reports = list(worker.run(SegmentAssignment(number, {"epochs": 2, **config}, 0, 2, folder, "a")))
        notes = [note for report in reports for note in report.notes]
        return [timeless(report.metrics) for report in reports], notes

    return trial


def workers(task: str = "tests.trainables.context.test_cache:Cached") -> TrialRunner:
    return TrialRunner(WorkerSettings(task), Context(), threading.Event())


def test_a_value_survives_its_trial_and_the_next_does_not_feel_whether_it_was_there(trial):
    Cached.made = 0
    worker = workers()
    first, _ = trial(worker, 0, seed=1, dropout=0.2)
    second, _ = trial(worker, 1, seed=2, dropout=0.2)
    assert Cached.made == 1
    fresh, _ = trial(workers(), 2, seed=2, dropout=0.2)
    assert Cached.made == 2
    assert identical(second, fresh)
    assert not identical(first, second)


def test_a_trial_that_writes_into_a_value_is_named_and_the_next_does_not_feel_it(trial):
    worker = workers()
    _, notes = trial(worker, 0, fault="in place")
    assert notes == ["the trial changed what the cache holds as noise of 22: it is made anew. Copy it before"]
    assert identical(trial(worker, 1), trial(workers(), 2))


def test_an_object_of_the_tasks_own_class_is_not_kept_beyond_its_class(trial, tmp_path, monkeypatch):
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
    worker = workers("own_cached:Mine")
    assert trial(worker, 0)[1] == []
    _, notes = trial(worker, 1)
    (note,) = notes
    assert note.startswith("the cache makes data anew: it holds an object of a class in own_cached")


def test_the_puzzles_of_the_built_in_task_are_prepared_once(monkeypatch):
    from trainables.arc import ArcTask, data
    from trainables.arc.config import ArcConfig

    context = Context()
    task = ArcTask(ArcConfig(max_side=5, views=1), context)
    task.build()
    monkeypatch.setattr(data, "load_puzzles", lambda *arguments, **more: pytest.fail("loaded again"))
    again = ArcTask(ArcConfig(max_side=5, views=1, agent_lr=1e-2), context.for_next_trial())
    again.build()
    assert again.pool is task.pool
    assert not context.cache_store._kept[next(iter(context.cache_store._kept))].has_changed()


def test_the_limit_is_a_share_of_the_machines_memory():
    assert 2**20 < Cache().limit < 2**40
