"""Warns of a program that writes to the files of the user, which all trials share."""

import logging
import time
from typing import Self

from searchlight.trainables.command.trial_folder import TrialFolder

logger = logging.getLogger(__name__)

SHARE = 0.05  # of the time of a trial that may be spent on looking
NAMED = 5  # files in the warning


class SharedFiles:
    """Looks at the user's files while the program of the first trial runs, as a context, and warns once.

    Other trials run the same program, and their files are those of the first one.
    """

    def __init__(self, folder: TrialFolder) -> None:
        self._folder = folder
        self._is_over = folder.path.name != "0"
        self._next = 0.0

    def __enter__(self) -> Self:
        if not self._is_over:
            self._before = self._folder.read_shared_files()
        return self

    def __exit__(self, *_: object) -> None:
        self._next = 0.0
        self.look()

    def look(self) -> None:
        """Warn if a file is new or has changed. Large folders take long, so that not every call looks."""
        began = time.monotonic()
        if self._is_over or began < self._next:
            return
        present = self._folder.read_shared_files()
        changed = sorted(name for name, state in present.items() if self._before.get(name) != state)
        now = time.monotonic()
        self._next = now + (now - began) / SHARE
        if changed:
            self._is_over = True
            named = ", ".join(changed[:NAMED]) + (f" and {len(changed) - NAMED} others" if changed[NAMED:] else "")
            logger.warning(
                "%s changed in %s while the program ran. If it writes there, all trials share that: "
                "give it a path in {trial_dir}",
                named,
                self._folder.source,
            )
