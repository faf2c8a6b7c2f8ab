"""The current folder of a trial, which isolates its files from other trials of the same workers."""

import os
import shutil
from pathlib import Path


class WorkingFolder:
    """Sets a separate current folder for each trial, shared by all ranks of the trial on a node.

    A trial keeps its folder from one segment to the next if no other trial ran in between.

    Args:
        base: The parent of the trials' folders. None: trials run in the current folder.
    """

    def __init__(self, base: Path | None) -> None:
        self._base = base
        self._current: Path | None = None

    def enter(self, trial: int) -> None:
        """Make the folder of `trial` the current one. Remove the folder of the trial before."""
        if self._base is None:
            return
        folder = self._base / f"trial-{trial}"
        if folder != self._current:
            self.remove()
            folder.mkdir(parents=True, exist_ok=True)  # another rank on this node may have made it
            self._current = folder
        os.chdir(folder)

    def remove(self) -> None:
        """Leave and remove the folder of the last trial."""
        if self._base is not None and self._current is not None:
            os.chdir(self._base)
            shutil.rmtree(self._current, ignore_errors=True)  # another rank on this node removes it too
            self._current = None
