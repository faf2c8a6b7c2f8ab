"""What would wait for a GPU, or copy to it, found without one."""

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

READS = {"item", "tolist", "cpu", "numpy", "nonzero", "__bool__", "__float__", "__int__", "__index__"}
COPIES = {"tensor", "as_tensor", "new_tensor"}  # of Python numbers


class HostTraffic(TorchFunctionMode):
    """Notes the names of calls that read a tensor on the host or make one there. Give it tensors on `meta`."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[str] = []
        self.copies: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in READS:
            self.reads.append(name)
        result = func(*args, **(kwargs or {}))
        if name in COPIES or (isinstance(result, torch.Tensor) and result.device.type == "cpu"):
            self.copies.append(name)
        return result
