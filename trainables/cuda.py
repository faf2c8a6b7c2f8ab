"""Names and the state of CUDA, for processes that may not have imported torch."""

import sys

SYNCHRONOUS = "CUDA_LAUNCH_BLOCKING"  # CUDA's variable: "1" makes each launch of a kernel wait for its end
# Objects, flags and tensors of the host go over gloo, so that no rank waits for its GPU to exchange them.
GPU_BACKEND = "cpu:gloo,cuda:nccl"


def is_cuda_in_use() -> bool:
    """Return whether this process has begun to use a GPU."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())
