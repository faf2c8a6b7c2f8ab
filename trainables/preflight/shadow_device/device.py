"""What a simulated GPU has seen."""

import inspect
from collections import Counter
from functools import cache

from torch import Tensor

from searchlight.trainables.preflight.shadow_device.storages import StorageTags
from searchlight.trainables.registry import is_library_file


class ShadowDevice:
    """A simulated GPU.

    Attributes:
        waits: How often the CPU waits for the GPU, by the line of the user's code and the kind of wait.
        compiled: Whether the code asked torch to compile something, which runs without it.
    """

    def __init__(self) -> None:
        self.tags = StorageTags()
        self.waits: Counter[tuple[str, str]] = Counter()
        self.is_compiling = False

    def is_on_gpu(self, tensor: Tensor) -> bool:
        """Return whether `tensor` counts as being on the GPU."""
        return self.tags.get(tensor) == "cuda"

    def count_wait(self, kind: str) -> None:
        """Count a wait at the line of the user's code that runs. Those of libraries alone are not the user's."""
        frame = inspect.currentframe()
        while frame is not None:
            code = frame.f_code
            if not _is_library_file(code.co_filename):
                where = f"{code.co_filename.rpartition('/')[2]}, line {frame.f_lineno}, in {code.co_name}"
                self.waits[where, kind] += 1
                return
            frame = frame.f_back


_is_library_file = cache(is_library_file)
