"""Deletions in a bucket, made while the search goes on: Tune's event loop must not wait for them."""

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

logger = logging.getLogger(__name__)
AT_ONCE = 8  # nine requests each, one after the other: of a checkpoint for each report of the search
CLOSE_S = 60.0


class DeletionQueue:
    """What is not done when the search ends, or its driver is killed, is left to the driver that takes it up."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(AT_ONCE, "delete")
        self._pending: set[Future[None]] = set()
        self._told = False

    def submit(self, action: Callable[..., None], *arguments: Any) -> None:
        """Call `action`, which may raise OSError: nothing of the search depends on it, and it is told once."""
        future = self._pool.submit(self._run_action, action, *arguments)
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Wait for what was submitted, for so long."""
        if wait(self._pending.copy(), timeout_s).not_done:
            self._warn_once(f"it took more than {timeout_s:g} s")
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run_action(self, action: Callable[..., None], *arguments: Any) -> None:
        try:
            action(*arguments)
        except OSError as error:
            self._warn_once(str(error))

    def _warn_once(self, reason: str) -> None:
        if not self._told:
            logger.warning("checkpoints that are not needed could not be deleted, --resume does it: %s", reason)
        self._told = True
