"""How far the training is and where its code stands, told while it may hang."""

import sys
import threading
import time
import traceback
from collections.abc import Callable


def beat(send: Callable[[int, str], object], progress: Callable[[], int], every_s: float) -> None:
    """From now on, call `send(progress, stack)` every `every_s` seconds, with the stack of the calling thread."""
    watched = threading.get_ident()

    def loop() -> None:
        while True:
            time.sleep(every_s)
            frame = sys._current_frames().get(watched)
            if frame is None:
                return
            send(progress(), "".join(traceback.format_stack(frame)))

    threading.Thread(target=loop, daemon=True, name="heartbeat").start()
