"""Retries an action while a bucket does not answer."""

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from search.errors import StoreError

logger = logging.getLogger(__name__)
Found = TypeVar("Found")
PATIENCE_S = 300.0  # how long a search waits for a bucket that went away
BETWEEN_S = 1.0


def retry_while_unavailable(action: Callable[[], Found]) -> Found:
    """What `action` returns, called again as long as the bucket is away.

    Raises:
        StoreError: It stays away.
    """
    end = time.monotonic() + PATIENCE_S
    told = False
    while True:
        try:
            return action()
        except OSError as error:
            if time.monotonic() > end:
                raise StoreError(
                    f"the search's bucket was lost, and not found again in {PATIENCE_S:g} s ({error})"
                ) from error
            if not told:
                told = True
                logger.warning("the search's bucket is lost: trying for %g s (%s)", PATIENCE_S, error)
        time.sleep(BETWEEN_S)
