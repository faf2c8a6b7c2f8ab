"""Deletions in a bucket, made in the background."""

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

logger = logging.getLogger(__name__)
AT_ONCE = 8  # concurrent deletions; a checkpoint needs nine requests
CLOSE_S = 60.0


class DeletionQueue:
    """Deletions in a bucket, made in the background so that they do not block Tune's event loop.

    The driver that resumes the search repeats those that did not finish.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(AT_ONCE, "delete")
        self._pending: set[Future[None]] = set()
        self._warned = False

    def submit(self, action: Callable[..., None], *arguments: Any) -> None:
        """Call `action` in the background. Log its first OSError: nothing in the search depends on it."""
        future = self._pool.submit(self._run_action, action, *arguments)
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Wait for pending deletions, at most `timeout_s` seconds."""
        if wait(self._pending.copy(), timeout_s).not_done:
            self._warn_once(f"it took more than {timeout_s:g} s")
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run_action(self, action: Callable[..., None], *arguments: Any) -> None:
        try:
            action(*arguments)
        except OSError as error:
            self._warn_once(str(error))

    def _warn_once(self, reason: str) -> None:
        if not self._warned:
            logger.warning("checkpoints that are not needed could not be deleted, --resume does it: %s", reason)
        self._warned = True
