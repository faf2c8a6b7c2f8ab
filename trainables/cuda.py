"""Names of CUDA and of its process groups, for processes that do not import torch."""

SYNCHRONOUS = "CUDA_LAUNCH_BLOCKING"  # CUDA's variable: "1" makes each launch of a kernel wait for its end
# Objects, flags and tensors of the host go over gloo, so that no rank waits for its GPU to exchange them.
GPU_BACKEND = "cpu:gloo,cuda:nccl"
