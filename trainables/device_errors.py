"""Errors of a device, recognized by their texts: most of them have no type of their own in PyTorch.

A process that has not imported torch has no errors of it. This module does not import it either.
"""

import math
import pkgutil
import re
import sys
from typing import TYPE_CHECKING

from searchlight.trainables.cuda import is_cuda_in_use

if TYPE_CHECKING:
    import torch

# As the allocators, the libraries of CUDA, NCCL and Triton write it.
OUT_OF_MEMORY = re.compile(
    r"out of memory|can't allocate memory|_ALLOC(ATION)?_FAILED|failed to cuda (host )?(malloc|calloc|alloc)",
    re.IGNORECASE,
)

# An error of a kernel or of a library of CUDA. Most of them spoil the CUDA context of the process for good.
BROKEN = re.compile(
    r"CUDA (driver )?error|Cuda failure|Triton Error \[CUDA\]|(CUBLAS|CUDNN|CUSOLVER|CUSPARSE)_STATUS_|CUFFT_"
)

# The amounts in the text of torch.OutOfMemoryError.
ASKED, FREE, ALLOWED, ALLOCATED, RESERVED = (
    re.compile(text.replace("#", r"([\d.]+) (bytes|[KMG]iB)"))
    for text in (
        "Tried to allocate #",
        "of which # is free",
        "# allowed",
        "# is allocated by PyTorch",
        "# is reserved by",
    )
)
GIB = {"bytes": 2**-30, "KiB": 2**-20, "MiB": 2**-10, "GiB": 1.0}


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether a device or the machine had too little memory, or an error that caused `error` says so."""
    if isinstance(error, MemoryError) or is_of_torch(error, "OutOfMemoryError"):
        return True
    if isinstance(error, RuntimeError) and OUT_OF_MEMORY.search(str(error)):
        return True
    return error.__cause__ is not None and is_out_of_memory(error.__cause__)


def breaks_device(error: BaseException) -> bool:
    """Return whether the process can probably use its GPU no more after `error` or its cause, e.g. an assert."""
    if is_out_of_memory(error):
        return False
    if is_of_torch(error, "AcceleratorError") or is_of_torch(error, "distributed.DistBackendError"):
        return True
    if isinstance(error, RuntimeError) and BROKEN.search(str(error)):
        return True
    return error.__cause__ is not None and breaks_device(error.__cause__)


def is_of_torch(error: BaseException, name: str) -> bool:
    """Return whether `error` is of the class `name` of torch, such as "distributed.DistError"."""
    return "torch" in sys.modules and isinstance(error, pkgutil.resolve_name(f"torch.{name}"))


def is_of_this_rank(error: BaseException) -> bool:
    """Return whether NCCL says that the GPU of this rank failed, and not another rank."""
    return is_out_of_memory(error) or "Cuda failure" in str(error)


def probe_device(device: "torch.device | None") -> str:
    """Return the error of a GPU that this process can use no more, or "".

    Kernels run asynchronously, so that an error may be raised only here.
    """
    if device is None or device.type != "cuda" or not is_cuda_in_use():
        return ""
    import torch

    try:
        torch.zeros(1, device=device)
        torch.cuda.synchronize(device)
    except RuntimeError as error:
        return "" if is_out_of_memory(error) else str(error).partition("\n")[0]
    return ""


def measure_missing_gib(error: BaseException) -> float | None:
    """Return the GiB that an allocation of PyTorch lacked on a GPU, or None if the text of `error` does not tell.

    A process may be allowed less than what is free. Reserved memory that is not allocated lies in pieces.
    """
    text = str(error)

    def read(pattern: re.Pattern[str], otherwise: float) -> float:
        return float(match[1]) * GIB[match[2]] if (match := pattern.search(text)) else otherwise

    free = min(read(FREE, math.inf), read(ALLOWED, math.inf) - read(ALLOCATED, 0.0) - read(RESERVED, 0.0))
    missing = read(ASKED, 0.0) - free
    return missing if 0 < missing < math.inf else None
