"""Test how the workers of a gang come to their process group and to their environment."""

from unittest.mock import Mock

import pytest
import ray

from searchlight.search.execution import gang_trainer
from searchlight.search.execution.controller_settings import PLACE
from searchlight.search.execution.gang_trainer import GangBackend, GangTorchConfig, PlacedWorkerGroup


@pytest.mark.parametrize(
    ("gpus", "forced", "expected"), [(1, None, "cpu:gloo,cuda:nccl"), (0, None, "gloo"), (1, "gloo", "gloo")]
)
def test_group_of_gpu_workers_has_gloo_beside_nccl(monkeypatch, gpus, forced, expected):
    monkeypatch.setattr(ray, "get", lambda calls: calls)
    group = Mock()
    group.get_resources_per_worker.return_value = {"GPU": gpus}
    group.get_workers.return_value = [Mock(), Mock()]
    GangBackend().on_start(group, GangTorchConfig(backend=forced))
    assert [call.args[2] for call in group.execute_single_async.call_args_list] == [expected, expected]


def test_environment_of_workers_has_what_the_run_adds(monkeypatch):
    monkeypatch.setattr(gang_trainer, "get_env_vars_to_propagate", lambda: {"A": "1", PLACE: "60"})
    environment = PlacedWorkerGroup._get_worker_runtime_env({"env_vars": {"CUDA_LAUNCH_BLOCKING": "1"}})
    assert environment == {"env_vars": {"A": "1", "CUDA_LAUNCH_BLOCKING": "1"}}
