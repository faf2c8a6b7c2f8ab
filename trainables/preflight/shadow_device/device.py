"""What a simulated GPU has seen."""

import inspect
import os
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

from torch import Tensor

from searchlight.trainables.preflight.shadow_device.storages import StorageTags
from searchlight.trainables.registry import PACKAGE, is_library_file

SHADOW = str(Path(__file__).parent)


class ShadowDevice:
    """A simulated GPU.

    Attributes:
        waits: How often the CPU waits for the GPU, by the line of the user's code and the kind of wait.
        is_counting: Returns whether waits are counted.
        unseen: What the code does and the simulation cannot look into.
    """

    def __init__(self) -> None:
        self.tags = StorageTags()
        self.waits: Counter[tuple[str, str]] = Counter()
        self.is_counting: Callable[[], bool] = lambda: True
        self.unseen: set[str] = set()

    def is_on_gpu(self, tensor: Tensor) -> bool:
        """Return whether `tensor` counts as being on the GPU."""
        return self.tags.get(tensor) == "cuda"

    def count_wait(self, kind: str) -> None:
        """Count a wait at the line of the user's code that runs, unless Searchlight runs inside of it."""
        frame = inspect.currentframe() if self.is_counting() else None
        while frame is not None:
            code = frame.f_code
            owner = _find_owner(code.co_filename)
            if owner == "searchlight":
                return
            if owner == "user":
                where = f"{code.co_filename.rpartition('/')[2]}, line {frame.f_lineno}, in {code.co_name}"
                self.waits[where, kind] += 1
                return
            frame = frame.f_back


@cache
def _find_owner(path: str) -> str:
    if path.startswith((SHADOW, "<")):
        return "library"
    if not is_library_file(path):
        return "user"
    return "searchlight" if path.startswith(f"{PACKAGE}{os.sep}") else "library"
