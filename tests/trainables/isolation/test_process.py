"""Whatever a trial does to its process, the next one in it gives what it would have given in a fresh one."""

import gc
import multiprocessing
import os
import random
import re
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.trainables.isolation.leaky_tasks import CHANGES, KEPT, LEAKS
from tests.trainables.toy_models import FULL, Augmented, Regression, identical, timeless
from trainables.context import Context
from trainables.isolation.process import SETTINGS, UNREADABLE, ProcessSnapshot
from trainables.worker.messages import EpochReport, SegmentAssignment, SegmentEnd, WorkerSettings
from trainables.worker.worker import TrialRunner

HERE = "tests.trainables.isolation.test_process"
REFERENCE = {**FULL, "precision": "bf16", "epochs": 2}
OBSERVED: list[Any] = []


class Leaky(Regression):
    """Leaks all that its `fault` names, and notes what another trial would notice then."""

    def build(self) -> None:
        for name in self.config.fault.split("|"):
            if name in CHANGES:
                CHANGES[name][0]()
                continue
            do, felt = LEAKS[name]
            do()
            OBSERVED.append(felt())
        super().build()


class Reference(Augmented):
    """Feels every generator, and the precision of its sums."""

    def evaluate(self) -> dict[str, Any]:
        matrix = torch.randn(64, 64)
        attention = nn.functional.scaled_dot_product_attention(*torch.randn(3, 1, 2, 16, 8))
        return {**super().evaluate(), "val/matmul": (matrix @ matrix).sum().item(), "val/sdpa": attention.sum().item()}


@pytest.fixture(autouse=True)
def _process_as_it_was():
    """So that what is not reset here fails its own test alone."""
    process = ProcessSnapshot(f"{HERE}:Leaky")
    yield
    KEPT.clear()
    OBSERVED.clear()
    process.restore()
    gc.unfreeze()


@pytest.fixture
def stretch(tmp_path):
    """Makes stretches of trials of one epoch that write into the test's folder."""

    def make(trial: int = 0, until: int = 1, **config: Any) -> SegmentAssignment:
        return SegmentAssignment(trial, {"epochs": until, **config}, 0, until, str(tmp_path / f"trial-{trial}"), "a")

    return make


def workers(task: str, **limits: Any) -> TrialRunner:
    task = task if "." in task or ":" in task else f"{HERE}:{task}"
    return TrialRunner(WorkerSettings(task, **limits), Context(), threading.Event())


def run(worker: TrialRunner, stretch: SegmentAssignment) -> list[EpochReport | SegmentEnd]:
    reports = list(worker.run(stretch))
    assert reports[-1].done
    return reports


def metrics(reports: list[EpochReport]) -> list[dict[str, float]]:
    return [timeless(report.metrics) for report in reports]


def in_a_fresh_process(stretch: SegmentAssignment) -> list[dict[str, float]]:
    torch.set_num_threads(1)
    return metrics(run(workers("Reference"), stretch))


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """What the reference trial gives in a process of its own."""
    folder = str(tmp_path_factory.mktemp("fresh"))
    segment = SegmentAssignment(9, REFERENCE, 0, 2, folder, "a")
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(in_a_fresh_process, segment).result(timeout=120)


# What is set back


@pytest.mark.parametrize("leak", LEAKS)
def test_what_a_trial_changed_is_as_it_was_for_the_next(stretch, expected, leak):
    worker = workers("Leaky")
    worker._process.restore()  # a generator is seeded, all else stays
    _, felt = LEAKS[leak]
    before = felt()
    run(worker, stretch(fault=leak))
    (observed,) = OBSERVED
    assert observed != before, "this leak leaks nothing"
    assert felt() == before
    assert worker.recycle_reason == ""
    worker.task = f"{HERE}:Reference"
    assert identical(metrics(run(worker, stretch(1, 2, **REFERENCE))), expected)


@pytest.mark.parametrize("seed", range(6))
def test_what_several_trials_changed_together_is_as_it_was(stretch, expected, seed):
    chosen = random.Random(seed)
    worker = workers("Leaky")
    worker._process.restore()
    before = {name: LEAKS[name][1]() for name in LEAKS}
    for trial in range(2):
        run(worker, stretch(trial, fault="|".join(chosen.sample(sorted(LEAKS), 6))))
    assert {name: LEAKS[name][1]() for name in LEAKS} == before
    worker.task = f"{HERE}:Reference"
    assert identical(metrics(run(worker, stretch(2, 2, **REFERENCE))), expected)


@pytest.mark.parametrize("name", CHANGES)
def test_changed_setting_that_is_not_restored_recycles_the_process(stretch, name):
    worker = workers("Leaky")
    try:
        run(worker, stretch(fault=name))
    finally:
        CHANGES[name][1]()
    assert re.fullmatch(rf"the trial changed (.*, )?{re.escape(name)}(, .*)? for good", worker.recycle_reason)
    assert worker._process.restore() == ""  # the test took the change back


def test_every_setting_can_be_read_and_written_as_it_was_read():
    for name, setting in SETTINGS.items():
        before = setting.read()
        if setting.write and ("CUDA" not in name or torch.cuda.is_available()):
            setting.write(before)
        assert setting.read() == before, name


def test_setting_that_cannot_be_read_at_first_is_not_compared(monkeypatch):
    def refuse() -> Any:
        raise RuntimeError("mix of the legacy and new APIs")

    monkeypatch.setitem(SETTINGS, "the umask", SETTINGS["the umask"]._replace(read=refuse))
    process = ProcessSnapshot(f"{HERE}:Leaky")
    monkeypatch.undo()
    assert process._before["the umask"] is UNREADABLE
    assert process.restore() == ""


def test_setting_that_cannot_be_restored_recycles_the_process(stretch, monkeypatch):
    def refuse(value: Any) -> None:
        raise RuntimeError("not after parallel work has started")

    name = "sys.getrecursionlimit()"
    monkeypatch.setitem(SETTINGS, name, SETTINGS[name]._replace(write=refuse))
    worker = workers("Leaky")
    limit = sys.getrecursionlimit()
    try:
        run(worker, stretch(fault="recursion limit"))
    finally:
        sys.setrecursionlimit(limit)
    assert worker.recycle_reason == f"the trial changed {name} for good"


def test_the_context_of_a_trial_is_its_own(stretch):
    worker = workers("Meddling")
    run(worker, stretch())
    assert (worker.context.rank, worker.context.world_size) == (0, 1)


class Meddling(Regression):
    def build(self) -> None:
        super().build()
        self.context.rank = 7


# The user's own modules

TASK_FILE = """
import itertools, random
import numpy, torch
from tests.trainables.toy_models import Regression
from {name}_helper import counter, numbers

drawn = torch.rand(1).item() + random.random() + numpy.random.rand()

class Mine(Regression):
    def build(self):
        super().build()
        numbers.append(1)

    def evaluate(self):
        import {name}_late
        {name}_late.calls += 1
        counts = {{"val/count": next(counter), "val/numbers": len(numbers), "val/late": {name}_late.calls}}
        return {{**super().evaluate(), **counts, "val/drawn": drawn}}
"""


@pytest.fixture
def own_task(tmp_path, monkeypatch):
    """Makes a task of two files and one that is imported late, each in a name of its own."""

    def make(name: str, prologue: str = "") -> str:
        folder = tmp_path / name
        folder.mkdir()
        (folder / f"{name}.py").write_text(TASK_FILE.format(name=name) + prologue)
        (folder / f"{name}_helper.py").write_text("import itertools\ncounter = itertools.count()\nnumbers = []\n")
        (folder / f"{name}_late.py").write_text("calls = 0\n")
        monkeypatch.syspath_prepend(str(folder))
        return f"{name}:Mine"

    return make


def test_what_the_modules_of_a_task_hold_is_not_felt_by_the_next_trial(stretch, own_task):
    worker = workers(own_task("own_state"))
    first, second = (metrics(run(worker, stretch(trial, 2))) for trial in (0, 1))
    assert [report["val/count"] for report in first] == [0, 1]
    assert [report["val/late"] for report in first] == [1, 2]
    assert identical(second, first)
    assert worker.recycle_reason == ""


def test_a_trial_that_goes_on_keeps_the_modules_that_it_has(stretch, own_task):
    worker = workers(own_task("own_held"))
    (first,) = run(worker, replace(stretch(epochs=2), until=1))
    (second,) = run(worker, replace(stretch(epochs=2), epoch=1, until=2, checkpoints=(first.checkpoint,)))
    assert (first.metrics["val/count"], second.metrics["val/count"]) == (0, 1)


def test_installed_modules_and_our_own_are_imported_once(stretch, own_task):
    before = {name: sys.modules[name] for name in ("tests.trainables.toy_models", "trainables.task", "numpy")}
    worker = workers(own_task("own_only"))
    mine = sys.modules["own_only"]
    run(worker, stretch())
    assert {name: sys.modules[name] for name in before} == before
    assert sys.modules["own_only"] is not mine


def test_what_travelled_with_ray_is_found_in_the_folders_that_ray_gives_it(stretch, own_task, tmp_path, monkeypatch):
    task = own_task("own_far")
    there = tmp_path / "py_modules_files"
    for file in (tmp_path / "own_far").glob("*.py"):
        folder = there / f"_ray_pkg_{file.stem}"
        folder.mkdir(parents=True)
        file.rename(folder / file.name)
        monkeypatch.syspath_prepend(str(folder))
    worker = workers(task)
    first, second = (metrics(run(worker, stretch(trial))) for trial in (0, 1))
    assert first[0]["val/count"] == 0
    assert identical(second, first)


def test_what_torch_load_may_make_is_a_class_of_the_modules_as_they_are_now(stretch, own_task):
    task = own_task("own_safe", "\nclass State: pass\ntorch.serialization.add_safe_globals([State])\n")
    worker = workers(task)
    of_torch = [item for item in torch.serialization.get_safe_globals() if "own_safe" not in str(item)]
    classes = []
    for trial in range(3):
        run(worker, stretch(trial))
        (state,) = (item for item in torch.serialization.get_safe_globals() if item not in of_torch)
        classes.append(state[0] if isinstance(state, tuple) else state)
        assert classes[-1] is sys.modules["own_safe"].State
    assert len(set(classes)) == 3
    assert worker.recycle_reason == ""


def test_a_task_file_that_exits_fails_its_trial_alone(stretch, own_task):
    worker = workers(own_task("own_exit", "\nraise SystemExit(3)\n"))
    (report,) = run(worker, stretch())
    assert (report.outcome, report.reason) == ("failed", "SystemExit: 3")


def test_a_task_that_cannot_be_imported_twice_wears_the_process_and_fails_no_trial(stretch, own_task):
    again = "\nimport threading\nif hasattr(threading, 'seen'): raise ValueError('registered already')\n"
    task = own_task("own_once", again + "threading.seen = True\n")
    worker = workers(task)
    try:
        (report,) = run(worker, stretch())
    finally:
        del threading.seen
    assert not isinstance(report, SegmentEnd)
    reason = "own_once cannot be imported again: ValueError: registered already"
    assert worker.recycle_reason == reason


def test_importing_the_modules_of_a_task_anew_costs_milliseconds(own_task):
    process = ProcessSnapshot(own_task("own_quick"))
    process.restore()
    seconds = []
    for _ in range(20):
        start = time.perf_counter()
        process.restore()
        seconds.append(time.perf_counter() - start)
    assert sorted(seconds)[10] < 0.06  # 10 ms if nothing else runs


def test_a_reset_leaves_nothing_behind_that_grows(own_task):
    process = ProcessSnapshot(own_task("own_grows"))
    for _ in range(3):
        process.restore()
    counts = []
    for _ in range(2):
        process.restore()
        counts.append((gc.get_freeze_count(), len(sys.modules), len(sys.path)))
    assert counts[1][1:] == counts[0][1:]
    assert counts[1][0] - counts[0][0] < 200


# torch.compile


class Recompiled(Regression):
    """Compiles for each of so many sizes of a batch."""

    def build(self) -> None:
        super().build()
        torch._dynamo.config.automatic_dynamic_shapes = False
        self.predict = torch.compile(super().predict, backend="eager", dynamic=False)

    def train_batches(self, epoch):
        for size in range(2, 2 + self.config.batch_size):
            yield self.inputs[:size], self.targets[:size]


def test_a_trial_that_is_compiled_too_often_fails_and_does_not_run_uncompiled(stretch):
    worker = workers("Recompiled")
    (few,) = run(worker, stretch(batch_size=4))
    (many,) = run(worker, stretch(1, batch_size=12))
    (again,) = run(worker, stretch(2, batch_size=4))
    assert not isinstance(few, SegmentEnd)
    assert many.outcome == "failed"
    assert "recompile_limit" in many.reason + many.traceback
    assert identical(metrics([again]), metrics([few]))


def test_the_first_report_of_a_trial_says_nothing_of_the_process(stretch):
    (report,) = run(workers("Reference"), stretch(**{**REFERENCE, "epochs": 1}))
    assert not report.notes


def test_files_are_written_where_the_process_stood(stretch, tmp_path):
    worker = workers("Leaky")
    here = Path.cwd()
    gone = tmp_path / "gone"
    gone.mkdir()
    LEAKS["a folder that is gone"] = (lambda: (os.chdir(gone), gone.rmdir()), lambda: None)
    try:
        run(worker, stretch(fault="a folder that is gone"))
    finally:
        del LEAKS["a folder that is gone"]
    assert Path.cwd() == here
