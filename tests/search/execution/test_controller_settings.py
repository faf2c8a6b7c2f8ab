"""Test which settings of Ray Train's controller a gang makes."""

import os

import pytest
from ray.train.constants import TORCH_PROCESS_GROUP_SHUTDOWN_TIMEOUT_S
from ray.train.v2._internal.callbacks.nccl_ras import NCCLRASCallback

from searchlight.search.execution.controller_settings import GROW_S, NCCL_SETTINGS, PLACE, apply_controller_settings


@pytest.mark.parametrize("has_nccl", [False, True])
def test_hanging_collectives_are_detected_where_there_is_nccl(monkeypatch, has_nccl):
    monkeypatch.setattr(os, "environ", {PLACE: "7"})
    assert apply_controller_settings(True, has_nccl) == 7, "what the user has set stays"
    assert (os.environ.items() >= NCCL_SETTINGS.items()) == has_nccl
    del os.environ[PLACE]
    assert apply_controller_settings(True, has_nccl) == GROW_S
    assert int(os.environ[TORCH_PROCESS_GROUP_SHUTDOWN_TIMEOUT_S]) < 10, "the ranks wait for one that has failed"
    NCCLRASCallback()  # raises if it does not know a setting
