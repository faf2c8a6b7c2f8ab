"""Errors of a device, recognized by their texts: most of them have no type of their own in PyTorch."""

import re

import torch

SYNCHRONOUS = "CUDA_LAUNCH_BLOCKING"  # CUDA's variable: "1" makes each launch of a kernel wait for its end
# As the allocators, the libraries of CUDA, NCCL and Triton write it.
OUT_OF_MEMORY = re.compile(
    r"out of memory|can't allocate memory|_ALLOC(ATION)?_FAILED|failed to cuda (host )?(malloc|calloc|alloc)",
    re.IGNORECASE,
)

# An error of a kernel or of a library of CUDA. Most of them spoil the CUDA context of the process for good.
BROKEN = re.compile(
    r"CUDA (driver )?error|Cuda failure|Triton Error \[CUDA\]|(CUBLAS|CUDNN|CUSOLVER|CUSPARSE)_STATUS_|CUFFT_"
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether a device or the machine had too little memory, or an error that caused `error` says so."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if isinstance(error, RuntimeError) and OUT_OF_MEMORY.search(str(error)):
        return True
    return error.__cause__ is not None and is_out_of_memory(error.__cause__)


def breaks_device(error: BaseException) -> bool:
    """Return whether the process can probably use its GPU no more after `error`, e.g. an assert in a kernel."""
    if is_out_of_memory(error):
        return False
    if isinstance(error, torch.AcceleratorError | torch.distributed.DistBackendError):
        return True
    return isinstance(error, RuntimeError) and bool(BROKEN.search(str(error)))


def is_of_this_rank(error: BaseException) -> bool:
    """Return whether NCCL says that the GPU of this rank failed, and not another rank."""
    return is_out_of_memory(error) or "Cuda failure" in str(error)


def probe_device(device: torch.device) -> str:
    """Return the error of a GPU that this process can use no more, or "".

    Kernels run asynchronously, so that an error may be raised only here.
    """
    if device.type != "cuda" or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return ""
    try:
        torch.zeros(1, device=device)
        torch.cuda.synchronize(device)
    except RuntimeError as error:
        return "" if is_out_of_memory(error) else str(error).partition("\n")[0]
    return ""
