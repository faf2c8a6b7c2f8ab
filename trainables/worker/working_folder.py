"""The current folder of a trial: what it writes there, no other trial of the same workers finds."""

import os
import shutil
from pathlib import Path


class WorkingFolder:
    """Gives each trial a current folder of its own, which all ranks of the trial on a node share.

    A trial keeps its folder from one segment to the next if no other trial ran in between.

    Args:
        base: The folder that those of the trials are made in. None: trials run in the current folder.
    """

    def __init__(self, base: Path | None) -> None:
        self._base = base
        self._current: Path | None = None

    def enter(self, trial: int) -> None:
        """Make the folder of `trial` the current one. Remove that of the trial before, which has left this process."""
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
