"""Requests that may fail for a while: retried until they succeed, or made in the background."""

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

from searchlight.search.errors import StoreError

logger = logging.getLogger(__name__)
Answer = TypeVar("Answer")
PATIENCE_S = 300.0  # how long a search waits for an unavailable bucket or database
BETWEEN_S = 0.5
AT_ONCE = 8  # concurrent deletions; a checkpoint needs nine requests
CLOSE_S = 60.0


def retry_while_unavailable(
    action: Callable[[], Answer],
    resource: str = "the search's bucket",
    errors: type[Exception] | tuple[type[Exception], ...] = OSError,
) -> Answer:
    """Return the result of `action`. Call it again while it raises one of `errors`.

    Raises:
        StoreError: The resource stays unavailable.
    """
    end = time.monotonic() + PATIENCE_S
    warned = False
    while True:
        try:
            return action()
        except errors as error:
            reason = str(error).partition("\n")[0]
            if time.monotonic() > end:
                raise StoreError(f"{resource} was lost, and not found again in {PATIENCE_S:g} s ({reason})") from None
            if not warned:
                logger.warning("%s is lost: trying for %g s (%s)", resource, PATIENCE_S, reason)
            warned = True
        time.sleep(BETWEEN_S)


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
