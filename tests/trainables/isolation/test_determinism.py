"""Show that a trial may ask for the same bits each time, and that probes of a GPU compute without TF32."""

import os
from typing import Any

import pytest
import torch

from searchlight.trainables.isolation.determinism import EXACT, exact_arithmetic, reserve_workspace
from searchlight.trainables.isolation.settings import read_name
from tests.trainables.isolation.trials import run_in, worker_of
from tests.trainables.toy_models import Regression

HERE = "tests.trainables.isolation.test_determinism"


class Scattered(Regression):
    """Uses an operation without a deterministic algorithm, on a CPU too."""

    def loss(self, batch: Any) -> Any:
        loss, weight = super().loss(batch)
        batch[1].clone().put_(torch.tensor([0]), batch[1][:1])
        return loss, weight


def test_deterministic_trial_fails_at_an_operation_that_is_not(tmp_path):
    worker = worker_of(f"{HERE}:Scattered")
    outcomes = [run_in(tmp_path, worker, trial, deterministic=trial == 1)[-1] for trial in range(3)]
    assert [getattr(report, "outcome", "trained") for report in outcomes] == ["trained", "failed", "trained"]
    assert "put_ does not have a deterministic implementation" in outcomes[1].reason
    assert worker.recycle_reason == ""
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize(("given", "expected"), [(None, ":4096:8"), (":16:8", ":16:8")])
def test_workspace_of_cublas_is_reserved_unless_it_is_set(monkeypatch, given, expected):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    if given:
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", given)
    worker_of(f"{HERE}:Scattered")
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == expected


def test_probe_of_a_gpu_computes_exactly_and_restores_settings(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    reserve_workspace()
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    before = {name: read_name(name) for name in EXACT}
    with exact_arithmetic(torch.device("cuda")):
        inside = {name: read_name(name) for name in EXACT}
    assert inside == {**EXACT, "torch.get_deterministic_debug_mode()": 1}
    assert {name: read_name(name) for name in EXACT} == before
    with exact_arithmetic(torch.device("cpu")):
        assert {name: read_name(name) for name in EXACT} == before
