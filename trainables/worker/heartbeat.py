"""How far the training is and where its code stands, told while it may hang."""

import sys
import threading
import time
import traceback
from collections.abc import Callable


def beat(
    send: Callable[[int, str], object], progress: Callable[[], int], thread: Callable[[], int], every_s: float
) -> None:
    """From now on, call `send(progress, stack)` every `every_s` seconds, with the stack of `thread`, an identifier.

    It ends with the thread that called this.
    """
    caller = threading.get_ident()

    def send_repeatedly() -> None:
        while True:
            time.sleep(every_s)
            frames = sys._current_frames()
            if caller not in frames:
                return
            stack = "".join(traceback.format_stack(frames.get(thread(), frames[caller])))
            frames.clear()  # they hold on to what a trial has, which is to go when the trial ends
            send(progress(), stack)

    threading.Thread(target=send_repeatedly, daemon=True, name="heartbeat").start()
