"""Compare a trial after others in one process with the same trial in a process of its own."""

import gc
import multiprocessing
import re
import sys
import threading
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from searchlight.trainables.isolation import settings
from searchlight.trainables.isolation.process import SETTINGS, ProcessSnapshot
from searchlight.trainables.registry import enter_task_folder, link_modules
from searchlight.trainables.worker.messages import SegmentEnd
from tests.trainables.isolation.leaky_tasks import CHANGES, KEPT, LEAKS
from tests.trainables.isolation.trials import run_in, worker_of
from tests.trainables.toy_models import FULL, Augmented, Regression, identical
from tests.trainables.worker.local_worker import metrics

HERE = "tests.trainables.isolation.test_process"
REFERENCE = {**FULL, "precision": "bf16", "epochs": 2}
OBSERVED: list[Any] = []


class Leaky(Regression):
    """Leaks all that its `fault` names, and notes what another trial would notice then."""

    def build(self) -> None:
        self.context.rank = 7
        for name in filter(None, self.config.fault.split("|")):
            do, felt = {**CHANGES, **LEAKS}[name]
            do()
            if name in LEAKS:
                OBSERVED.append(felt())
        super().build()


class Reference(Augmented):
    """Feels every generator, and the precision of its sums."""

    def evaluate(self) -> dict[str, Any]:
        matrix = torch.randn(64, 64)
        attention = nn.functional.scaled_dot_product_attention(*torch.randn(3, 1, 2, 16, 8))
        return {**super().evaluate(), "val/matmul": (matrix @ matrix).sum().item(), "val/sdpa": attention.sum().item()}


class Recompiled(Regression):
    """Compiles for each of so many sizes of a batch."""

    def build(self) -> None:
        super().build()
        torch._dynamo.config.automatic_dynamic_shapes = False
        torch._dynamo.config.recompile_limit = 4
        self.predict = torch.compile(super().predict, backend="eager", dynamic=False)

    def train_batches(self, epoch):
        for size in range(2, 2 + self.config.batch_size):
            yield self.inputs[:size], self.targets[:size]


@pytest.fixture(autouse=True)
def _process_as_it_was():
    """Restore the process, so that what is not reset here fails its own test alone."""
    process = ProcessSnapshot(f"{HERE}:Leaky")
    yield
    KEPT.pop_all()
    OBSERVED.clear()
    process.restore()
    gc.unfreeze()


@pytest.fixture
def run(tmp_path):
    return partial(run_in, tmp_path)


@pytest.fixture
def leaky():
    worker = worker_of(f"{HERE}:Leaky")
    worker._process.restore()  # a generator is seeded, all else stays
    return worker


def reference_in_a_fresh_process(folder):
    torch.set_num_threads(1)
    return metrics(run_in(folder, worker_of(f"{HERE}:Reference"), until=2, **REFERENCE))


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """What the reference trial gives in a process of its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(reference_in_a_fresh_process, tmp_path_factory.mktemp("fresh")).result(timeout=120)


def assert_next_trial_is_the_reference(run, worker, expected):
    worker.task = f"{HERE}:Reference"
    assert identical(metrics(run(worker, 9, 2, **REFERENCE)), expected)
    assert worker.recycle_reason == ""


@pytest.mark.parametrize("leak", LEAKS)
def test_leaked_setting_is_restored_for_the_next_trial(run, leaky, expected, leak):
    _, felt = LEAKS[leak]
    before = felt()
    assert run(leaky, fault=leak)[-1].done
    (observed,) = OBSERVED
    assert observed != before, "this leak leaks nothing"
    assert felt() == before
    assert_next_trial_is_the_reference(run, leaky, expected)


@pytest.mark.parametrize("name", CHANGES)
def test_changed_setting_without_restore_recycles_process(run, leaky, name):
    try:
        run(leaky, fault=name)
    finally:
        CHANGES[name][1]()
    assert re.fullmatch(rf"the trial changed (.*, )?{re.escape(name)}(, .*)? permanently", leaky.recycle_reason)
    assert leaky._process.restore() == ""  # the test took the change back


def test_every_setting_reads_what_was_written():
    for name, setting in SETTINGS.items():
        before = setting.read()
        if setting.write and ("CUDA" not in name or torch.cuda.is_available()):
            setting.write(before)
        assert setting.read() == before, name


GPU_SETTINGS = {"per_process_memory_fraction": 0.45, "sync_debug_mode": 0}


class OnGpu(Regression):
    """Changes settings of its GPU."""

    def build(self) -> None:
        super().build()
        torch.cuda.set_per_process_memory_fraction(0.1)
        torch.cuda.set_sync_debug_mode(1)


def test_settings_of_a_gpu_are_restored_for_the_next_trial(monkeypatch, tmp_path):
    now = dict(GPU_SETTINGS)
    monkeypatch.setattr(settings, "is_cuda_in_use", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    for name in now:
        monkeypatch.setattr(torch.cuda, f"get_{name}", partial(now.get, name))
        monkeypatch.setattr(torch.cuda, f"set_{name}", partial(now.__setitem__, name))
    worker = worker_of(f"{HERE}:OnGpu")
    assert run_in(tmp_path, worker)[-1].epoch == 1
    assert (now, worker.recycle_reason) == (GPU_SETTINGS, "")


def refuse(*value: Any) -> None:
    raise RuntimeError("not after parallel work has started")


def test_trials_may_use_accelerate_with_other_precisions(leaky):
    accelerate = pytest.importorskip("accelerate")
    for precision in ("no", "bf16"):
        accelerator = accelerate.Accelerator(mixed_precision=precision, cpu=True)
        assert accelerator.mixed_precision == precision
        del accelerator
        leaky._process.restore()


def test_setting_unreadable_at_first_is_not_compared(monkeypatch):
    monkeypatch.setitem(SETTINGS, "the umask", SETTINGS["the umask"]._replace(read=refuse))
    process = ProcessSnapshot(f"{HERE}:Leaky")
    monkeypatch.undo()
    assert process.restore() == ""


def test_setting_that_refuses_its_old_value_recycles_process(run, leaky, monkeypatch):
    name = "sys.getrecursionlimit()"
    monkeypatch.setitem(SETTINGS, name, SETTINGS[name]._replace(write=refuse))
    limit = sys.getrecursionlimit()
    run(leaky, fault="recursion limit")
    sys.setrecursionlimit(limit)
    assert leaky.recycle_reason == f"the trial changed {name} permanently"


def test_context_changed_by_a_trial_is_new_for_the_next(run, leaky):
    run(leaky)
    assert (leaky.context.rank, leaky.context.world_size) == (0, 1)


TASK_FILE = """
import itertools, random
import numpy, torch
from tests.trainables.toy_models import Regression
from {name}_helper import counter

drawn = torch.rand(1).item() + random.random() + numpy.random.rand()

class Mine(Regression):
    def evaluate(self):
        import {name}_late
        {name}_late.calls += 1
        counts = {{"val/count": next(counter), "val/late": {name}_late.calls, "val/drawn": drawn}}
        return {{**super().evaluate(), **counts}}
"""


@pytest.fixture
def own_task(tmp_path, monkeypatch):
    """Makes a task of two files and one that is imported late, as a worker finds them."""

    def make(name: str, epilogue: str = "") -> str:
        files = {name: TASK_FILE.format(name=name) + epilogue, f"{name}_late": "calls = 0\n"}
        files[f"{name}_helper"] = "import itertools\ncounter = itertools.count()\n"
        for file, content in files.items():
            (tmp_path / "code").mkdir(exist_ok=True)
            (tmp_path / "code" / f"{file}.py").write_text(content)
        monkeypatch.syspath_prepend(link_modules(tmp_path / "modules", tmp_path / "code"))
        enter_task_folder()
        return f"{name}:Mine"

    return make


def test_own_modules_are_imported_anew_and_others_once(run, own_task):
    name = "own_state"
    worker = worker_of(own_task(name))
    before = {
        name: sys.modules[name]
        for name in (name, "tests.trainables.toy_models", "searchlight.trainables.task", "numpy")
    }
    first, second = (metrics(run(worker, trial, 2)) for trial in (0, 1))
    assert [(report["val/count"], report["val/late"]) for report in first] == [(0, 1), (1, 2)]
    assert identical(second, first)
    assert worker.recycle_reason == ""
    assert [name for name, module in before.items() if sys.modules[name] is not module] == [name]


def test_torch_load_makes_classes_of_the_current_modules(run, own_task):
    worker = worker_of(own_task("own_safe", "\nclass State: pass\ntorch.serialization.add_safe_globals([State])\n"))
    classes = [sys.modules["own_safe"].State]
    for trial in range(2):
        run(worker, trial)
        (state,) = (item for item in torch.serialization.get_safe_globals() if "own_safe" in str(item))
        assert state is sys.modules["own_safe"].State
        assert state not in classes
        classes.append(state)
    assert worker.recycle_reason == ""


def test_task_that_imports_only_once_recycles_process(run, own_task, monkeypatch):
    again = "\nimport threading\nif hasattr(threading, 'seen'): raise ValueError('registered already')\n"
    monkeypatch.setattr(threading, "seen", True, raising=False)
    monkeypatch.delattr(threading, "seen")  # so that it is deleted after the test
    worker = worker_of(own_task("own_once", again + "threading.seen = True\n"))
    assert not isinstance(run(worker)[0], SegmentEnd)
    assert worker.recycle_reason == "own_once cannot be imported again: ValueError: registered already"


def test_repeated_restores_leave_nothing_that_grows(own_task):
    process = ProcessSnapshot(own_task("own_grows"))
    for _ in range(3):
        process.restore()
    before, frozen = (len(sys.modules), len(sys.path)), gc.get_freeze_count()
    process.restore()
    assert (len(sys.modules), len(sys.path)) == before
    assert gc.get_freeze_count() - frozen < 200
    assert len(gc.get_objects()) < 0.1 * frozen  # the collector searches no more than these


@pytest.mark.slow
def test_trial_that_is_compiled_too_often_fails(run):
    worker = worker_of(f"{HERE}:Recompiled")
    (few,), (many,), (again,) = (run(worker, trial, batch_size=size) for trial, size in enumerate((2, 6, 2)))
    assert not isinstance(few, SegmentEnd)
    assert many.outcome == "failed"
    assert "recompile_limit" in many.reason + many.traceback
    assert identical(metrics([again]), metrics([few]))
