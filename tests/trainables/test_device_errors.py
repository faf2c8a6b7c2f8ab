import subprocess
import sys

import pytest
import torch

from searchlight.trainables.device_errors import (
    breaks_device,
    is_out_of_memory,
    measure_missing_gib,
    probe_device,
)

NCCL = (
    "NCCL error in: ProcessGroupNCCL.cpp:94, unhandled cuda error (run with NCCL_DEBUG=INFO for details)\n"
    "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\n"
)
ASSERT = "CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported"


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        torch.AcceleratorError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
        RuntimeError("cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`"),
        RuntimeError("cuFFT error: CUFFT_ALLOC_FAILED"),
        RuntimeError("Triton Error [CUDA]: out of memory"),
        torch.distributed.DistBackendError(f"{NCCL}Cuda failure 2 'out of memory'"),
        torch.distributed.DistBackendError(f"{NCCL}Failed to CUDA calloc 2097152 bytes"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory"),
        MemoryError(),
    ],
)
def test_out_of_memory_is_recognized_in_every_spelling(error):
    assert is_out_of_memory(error)


@pytest.mark.parametrize(
    "error",
    [
        torch.AcceleratorError(ASSERT),
        RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`"),
        torch.distributed.DistBackendError(f"{NCCL}Cuda failure 710 'device-side assert triggered'"),
        ValueError("the puzzle must fit, but it is out of memory cells"),
    ],
)
def test_other_error_is_not_out_of_memory(error):
    assert not is_out_of_memory(error)


def test_out_of_memory_is_found_as_the_cause():
    error = ValueError("the batch cannot be built")
    error.__cause__ = MemoryError()
    assert is_out_of_memory(error)


@pytest.mark.parametrize(
    "error",
    [
        torch.AcceleratorError(ASSERT),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
        RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
        torch.distributed.DistBackendError(f"{NCCL}Cuda failure 710 'device-side assert triggered'"),
    ],
)
def test_error_of_cuda_breaks_the_device(error):
    assert breaks_device(error)
    raised = ValueError("the batch cannot be trained")
    raised.__cause__ = error
    assert breaks_device(raised), "the task has wrapped it"


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        torch.AcceleratorError("CUDA error: out of memory"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)"),
        RuntimeError("Expected all tensors to be on the same device, but found cuda:0 and cpu!"),
    ],
)
def test_usual_error_leaves_the_device_usable(error):
    assert not breaks_device(error)


@pytest.mark.parametrize(
    ("raised", "found"),
    [
        (None, ""),
        (torch.AcceleratorError(ASSERT), "CUDA error: device-side assert triggered"),
        (torch.OutOfMemoryError("CUDA out of memory."), ""),  # another process has the memory
    ],
)
def test_probe_finds_an_error_of_an_earlier_kernel(monkeypatch, raised, found):
    def synchronize(device):
        if raised:
            raise raised

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch, "zeros", lambda *_, device: None)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    assert probe_device(torch.device("cuda:0")) == found
    assert probe_device(torch.device("cpu")) == ""


TOO_LARGE = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which {free} is free. "
    "{allowed}Of the allocated memory 70.00 GiB is allocated by PyTorch, and 512.00 MiB is reserved by PyTorch but "
    "unallocated. If reserved but unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True"
)


@pytest.mark.parametrize(
    ("text", "gib"),
    [
        (TOO_LARGE.format(free="512.00 MiB", allowed=""), 1.5),
        (TOO_LARGE.format(free="0 bytes", allowed=""), 2.0),
        (TOO_LARGE.format(free="9.00 GiB", allowed="71.50 GiB allowed; "), 1.0),
        (TOO_LARGE.format(free="9.00 GiB", allowed=""), None),  # enough is free, but in pieces
        ("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4398046511104 bytes.", None),
        ("CUDA error: out of memory", None),
    ],
)
def test_missing_memory_is_read_from_the_text_of_pytorch(text, gib):
    assert measure_missing_gib(torch.OutOfMemoryError(text)) == gib


def test_cpu_allocator_that_has_too_little_is_out_of_memory():
    with pytest.raises(RuntimeError, match="allocate") as caught:
        torch.empty(2**50)
    assert is_out_of_memory(caught.value)


WITHOUT_TORCH = """
import sys
from searchlight.trainables.device_errors import breaks_device, is_out_of_memory, probe_device
errors = RuntimeError("CUDA error: an illegal access"), MemoryError(), ValueError("no")
print([(breaks_device(error), is_out_of_memory(error)) for error in errors], probe_device(None), "torch" in sys.modules)
"""


def test_errors_are_recognized_without_torch():
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True)
    assert done.stdout.strip() == "[(True, False), (False, True), (False, False)]  False", done.stderr
