"""Test how the workers of a gang come to their process group and to their environment."""

import os
import subprocess
import sys
from unittest.mock import MagicMock, Mock, call

import pytest
import ray

from searchlight.search.execution import gang_trainer
from searchlight.search.execution.controller_settings import PLACE, apply_controller_settings
from searchlight.search.execution.gang_trainer import PlacedWorkerGroup, TorchBackend, TorchBackendConfig
from searchlight.trainables.command.settings import CommandSettings
from searchlight.trainables.worker.messages import GangSettings, WorkerSettings
from searchlight.trainables.worker.process_group import leave_group


@pytest.mark.parametrize(
    ("gpus", "options", "expected"),
    [
        (1, {}, "cpu:gloo,cuda:nccl"),
        (1, {"objective": "loss"}, "nccl"),  # as in a TorchTrainer
        (0, {}, "gloo"),
        (0, {"objective": "loss"}, "gloo"),
        (1, {"rehearsal": True}, "gloo"),
        (1, {"objective": "loss", "command": CommandSettings(("train",), "", "", ("loss",))}, None),
    ],
)
def test_process_group_suits_the_devices_and_the_kind_of_task(monkeypatch, gpus, options, expected):
    trainer = Mock()
    monkeypatch.setattr(gang_trainer, "GangTrainer", trainer)
    monkeypatch.setattr(gang_trainer, "get_ray_train_session_dir", lambda: "/session")
    worker = WorkerSettings("task:Task", **options)
    gang_trainer.train(GangSettings(2, {"CPU": 1, "GPU": gpus}, "pack", False, None, 3, worker), "gang", "run")
    monkeypatch.setattr(ray, "get", lambda calls: calls)
    group = Mock()
    group.get_workers.return_value = [Mock(), Mock()]
    config = trainer.call_args.kwargs["backend_config"]
    config.backend_cls().on_start(group, config)
    joined = [call.args[2] for call in group.execute_single_async.call_args_list]
    assert joined == ([expected, expected] if expected else [])


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_leave_their_process_group_within_the_limit(monkeypatch, workers):
    monkeypatch.setattr(os, "environ", {})
    apply_controller_settings(False, False)
    limits = []
    monkeypatch.setattr(ray, "get", lambda calls, timeout: limits.append(timeout))
    group = MagicMock()
    group.__len__.return_value = workers
    TorchBackend().on_shutdown(group, TorchBackendConfig("gloo"))
    assert (limits, group.execute_async.call_args_list) == ({1: ([], []), 2: ([3.0], [call(leave_group)])}[workers])


def test_gang_does_not_import_torch():
    code = "import sys, searchlight.search.execution.gang, searchlight.search.execution.gang_trainer; "
    code += "print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


def test_environment_of_workers_has_what_the_run_adds(monkeypatch):
    monkeypatch.setattr(gang_trainer, "get_env_vars_to_propagate", lambda: {"A": "1", PLACE: "60"})
    environment = PlacedWorkerGroup._get_worker_runtime_env({"env_vars": {"CUDA_LAUNCH_BLOCKING": "1"}})
    assert environment == {"env_vars": {"A": "1", "CUDA_LAUNCH_BLOCKING": "1"}}
