"""Deletions of what a search no longer needs."""

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from searchlight.trainables.filesystem.paths import StoragePath, start_deletion

logger = logging.getLogger(__name__)
AT_ONCE = 8  # concurrent deletions; a checkpoint needs nine requests
CLOSE_S = 60.0


class DeletionQueue:
    """Makes deletions: on a disk at once, in a bucket in the background so that they do not block Tune's event loop.

    The driver that resumes the search repeats those that did not finish.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(AT_ONCE, "delete")
        self._pending: set[Future[None]] = set()
        self._warned = False

    def submit(self, action: Callable[..., None], where: StoragePath, *arguments: Any) -> None:
        """Call `action(where, *arguments)`. Log the first OSError: nothing in the search depends on the deletion."""
        try:
            future = start_deletion(self._pool, action, where, *arguments)
        except OSError as error:  # of a disk
            self._warn_once(str(error))
            return
        self._pending.add(future)
        future.add_done_callback(self._end)

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Wait for pending deletions, at most `timeout_s` seconds."""
        if wait(self._pending.copy(), timeout_s).not_done:
            self._warn_once(f"it took more than {timeout_s:g} s")
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _end(self, future: Future[None]) -> None:
        self._pending.discard(future)
        if not future.cancelled() and (error := future.exception()) is not None:
            self._warn_once(str(error))

    def _warn_once(self, reason: str) -> None:
        if not self._warned:
            logger.warning("checkpoints that are not needed could not be deleted, --resume does it: %s", reason)
        self._warned = True
