"""Find a driver of NVIDIA that is too old for torch: NVML counts GPUs that CUDA cannot use."""

import warnings

import pynvml
import pytest
import torch

from searchlight.trainables.gpu_driver import find_driver_problem


@pytest.fixture
def machine(monkeypatch):
    """Pretend a machine: its GPUs by NVML, whether CUDA can use them, CUDA's version of torch, and the driver."""

    def pretend(count, usable, cuda, driver):
        def is_available():
            if not usable:
                warnings.warn("The NVIDIA driver on your system is too old", stacklevel=1)
            return usable

        def read_version():
            if not driver:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
            return driver

        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "is_available", is_available)
        monkeypatch.setattr(torch.version, "cuda", cuda)
        monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
        monkeypatch.setattr(pynvml, "nvmlSystemGetDriverVersion", read_version)

    return pretend


@pytest.mark.parametrize(
    ("cuda", "driver", "needed"), [("13.0", "535.104.05", 580), ("13.0", "575.57", 580), ("12.6", "470.82", 525)]
)
def test_driver_older_than_cuda_needs_is_told(machine, cuda, driver, needed):
    machine(2, False, cuda, driver)
    problem = find_driver_problem()
    assert f"built for CUDA {cuda}, which needs NVIDIA's driver {needed} or newer" in problem
    assert f"but the driver is {driver}." in problem


@pytest.mark.parametrize("driver", ["580.65.06", ""])
def test_unusable_gpu_with_a_new_driver_is_told(machine, driver):
    machine(1, False, "13.0", driver)
    assert f"cannot use its GPUs, although driver {driver or 'unknown'} shows them" in find_driver_problem()


@pytest.mark.parametrize(("count", "usable"), [(0, False), (1, True)])
def test_machine_without_gpus_or_with_usable_ones_has_no_problem(machine, count, usable):
    machine(count, usable, "13.0", "535.104.05")
    assert find_driver_problem() == ""
