"""Errors of a device, recognized by their texts: most of them have no type of their own in PyTorch."""

import re

import torch

# As the allocators, the libraries of CUDA, NCCL and Triton write it.
OUT_OF_MEMORY = re.compile(
    r"out of memory|can't allocate memory|_ALLOC(ATION)?_FAILED|failed to cuda (host )?(malloc|calloc|alloc)",
    re.IGNORECASE,
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether a device or the machine had too little memory, or an error that caused `error` says so."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if isinstance(error, RuntimeError) and OUT_OF_MEMORY.search(str(error)):
        return True
    return error.__cause__ is not None and is_out_of_memory(error.__cause__)
