"""Calls that need a bucket or a database: repeated while it is unavailable."""

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from searchlight.search.errors import StoreError

logger = logging.getLogger(__name__)
Answer = TypeVar("Answer")
PATIENCE_S = 300.0  # how long a search waits for an unavailable bucket or database
BETWEEN_S = 0.5


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
