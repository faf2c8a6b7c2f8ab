"""Notices that the head of a joined cluster is lost, before Ray aborts this process for that."""

import os
import socket
import threading
import time
from typing import Any

LOOK_S = 2.0  # interval and timeout of the attempts to connect
FEWEST = 5  # attempts in a row that fail, so that a pause of this process is not taken for a loss
RECONNECT = "RAY_gcs_rpc_server_reconnect_timeout_s"  # after so many seconds without a head, Ray aborts this process
RECONNECT_S = 60.0  # Ray's default
SHARE = 1 / 3  # of this time, after which the head is lost: one with fault tolerance may restart meanwhile
ENDING_S = 180.0  # for the end of the search: MLflow may need more than a minute for it


class HeadWatch:
    """Connects to a cluster's GCS every few seconds, in a thread.

    Args:
        address: Of the GCS, as host:port.
        limit_s: The head is lost after this time without a connection.
    """

    def __init__(self, address: str, limit_s: float, look_s: float = LOOK_S) -> None:
        self._address, self._limit_s, self._look_s = address, limit_s, look_s
        self._silent_since: float | None = None
        self._failures = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="head")

    def __enter__(self) -> "HeadWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._ended.set()
        self._thread.join()

    def describe_loss(self) -> str:
        """Return which head is lost, or "" if it is not."""
        since = self._silent_since
        if since is None or self._failures < FEWEST or time.monotonic() - since < self._limit_s:
            return ""
        return f"the head of the Ray cluster at {self._address} has not answered for {self._limit_s:.0f} s"

    def _watch(self) -> None:
        host, _, port = self._address.rpartition(":")
        while not self._ended.wait(self._look_s):
            began = time.monotonic()
            try:
                socket.create_connection((host.strip("[]"), int(port)), timeout=self._look_s).close()
            except OSError:
                self._silent_since = began if self._silent_since is None else self._silent_since
                self._failures += 1
            else:
                self._silent_since, self._failures = None, 0


def extend_reconnect_time() -> float:
    """Let Ray abort this process later, which its environment says. Return after how many seconds the head is lost."""
    limit_s = SHARE * float(os.environ.get(RECONNECT, RECONNECT_S))
    os.environ[RECONNECT] = f"{limit_s + ENDING_S:.0f}"
    return limit_s
