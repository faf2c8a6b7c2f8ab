"""The peak of an epoch's memory."""

import threading

import pytest
import torch

from trainables.context import Context
from trainables.memory import CLEAR, PEAK, forget_peak, peak_gib
from trainables.worker import Workers

CPU = torch.device("cpu")
pytestmark = pytest.mark.skipif(not CLEAR.exists(), reason="the system does not tell the peak of a process")


def test_a_peak_is_that_of_what_came_since_the_last_was_forgotten():
    forget_peak(CPU)
    before = peak_gib(CPU)
    block = torch.ones(2**26)  # 256 MiB
    del block
    assert peak_gib(CPU) > before + 0.2
    forget_peak(CPU)
    assert peak_gib(CPU) < before + 0.1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_it_is_what_tensors_took_there():
    device = torch.device("cuda", 0)
    forget_peak(device)
    before = peak_gib(device)
    block = torch.ones(2**26, device=device)
    del block
    assert peak_gib(device) == pytest.approx(before + 0.25, abs=0.01)


@pytest.mark.parametrize(("others", "told"), [((), False), ((PEAK,), True)])
def test_on_the_cpu_it_is_reported_where_it_is_asked_for(tmp_path, others, told):
    worker = Workers("tests.trainables.toys:Regression", Context(), threading.Event(), others=others)
    about = {"config": {"epochs": 2}, "folder": str(tmp_path), "attempt": "a", "checkpoint": None, "earlier": []}
    reports = list(worker.run({"trial": 0, "epoch": 0, "until": 2, **about}))
    assert [PEAK in report["metrics"] for report in reports] == [told, told]
    if told:
        assert all(0.01 < report["metrics"][PEAK] < 64 for report in reports)
