"""The lease of a study in a bucket: an object that its driver renews, since a bucket has no locks."""

import json
import logging
import os
import socket
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass

from searchlight.search.errors import StoreError, UsageError
from searchlight.search.storage.backend import running_error
from searchlight.trainables.filesystem.paths import RemotePath

logger = logging.getLogger(__name__)
RENEW_S = 5.0
LEASE_S = 20.0  # a lease that was not renewed for so long has expired
CLAIM_S = 2.0  # by then, a concurrent claim has been written; S3 reports whole seconds
LOOK_S = 0.5
TRIES = 10


@dataclass(frozen=True)
class _Claim:
    """The content of the object. `since` is the server's time of the claim in ms, or 0 while it is claimed."""

    id: str
    host: str
    pid: int
    since: int
    renewed: int

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


class Lease:
    """The exclusive right to write the study of a search, renewed by a thread until it is released.

    A suspended driver may wake up and overwrite its successor's claim. Claims are therefore ordered by the server's
    time of their creation: the later one is valid, and is written again.

    Args:
        path: Of the object.
        name: Of the search.

    Attributes:
        since: When it was claimed, in ms of the server's clock, later than any earlier claim.

    Raises:
        UsageError: Another process holds it.
        OSError: The bucket cannot be used.
    """

    def __init__(self, path: RemotePath, name: str) -> None:
        self._path = path
        self._name = name
        self._own = _Claim(uuid.uuid4().hex, socket.gethostname(), os.getpid(), 0, 0)
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._lost = ""
        self._await_previous_holder()
        self._acquire()
        self._thread = threading.Thread(target=self._run_renewal_loop, daemon=True, name="lease")
        self._thread.start()

    @property
    def since(self) -> int:
        return self._own.since

    def check(self) -> None:
        """Check before a write that the lease is still held.

        Raises:
            StoreError: Another driver holds it.
            OSError: The bucket cannot be reached.
        """
        if not self._lost and time.monotonic() - self._renewed > LEASE_S:
            self._renew()
        if self._lost:
            raise StoreError(self._lost)

    def release(self) -> None:
        """Release the lease at once. Further calls have no effect."""
        if self._over.is_set():
            return
        self._over.set()
        self._thread.join()
        with suppress(OSError):  # it then expires
            found = self._read_claim()
            if found is not None and found.id == self._own.id:
                self._path.unlink(missing_ok=True)

    def _await_previous_holder(self) -> None:
        found = self._read_claim()
        if found is None:
            return
        probe = self._path.with_name(f"{self._path.name}.{self._own.id}")
        probe.write_bytes(b"")
        try:
            ago_s = (probe.get_modified_ns() - self._path.get_modified_ns()) / 1e9  # both by the server's clock
        except FileNotFoundError:  # it was released meanwhile
            return
        finally:
            probe.unlink(missing_ok=True)
        if ago_s <= LEASE_S:
            logger.warning("%s was driven by %s %.0f s ago: seeing whether it still is", self._name, found, ago_s)
        end = time.monotonic() + LEASE_S - ago_s
        while time.monotonic() < end:
            time.sleep(LOOK_S)
            now = self._read_claim()
            if now is None:
                return
            if now != found:
                raise self._build_held_error(now)

    def _acquire(self) -> None:
        start = time.monotonic()
        self._write_claim(0)
        mine = self._path.get_modified_ns() // 10**6
        time.sleep(CLAIM_S)
        found = self._read_claim()
        if found is not None and found.id != self._own.id:
            raise self._build_held_error(found)
        self._write_claim(mine)
        self._renewed = start

    def _build_held_error(self, claim: _Claim) -> UsageError:
        return UsageError(f"{running_error(self._name)} It is {claim}.")

    def _run_renewal_loop(self) -> None:
        """Renew the lease. Errors are retried, and `check` detects whether they persist."""
        while not self._over.wait(RENEW_S) and not self._lost:
            with suppress(OSError):
                self._renew()

    def _renew(self) -> None:
        with self._lock:
            start = time.monotonic()
            late = start - self._renewed > LEASE_S
            if self._is_lost():
                return
            self._write_claim(self._own.since)
            if late:  # this may have overwritten a successor's claim: wait until the successor has renewed it
                time.sleep(2 * RENEW_S)
                if self._is_lost():
                    return
                start = time.monotonic()
            self._renewed = start

    def _is_lost(self) -> bool:
        found = self._read_claim()
        # A claim without a time is being made, and is later than this one.
        if found is not None and found.id != self._own.id and (not found.since or found.since > self._own.since):
            self._lost = f"{self._name} was resumed by another driver, {found}, since this one did not renew its lease"
        return bool(self._lost)

    def _read_claim(self) -> _Claim | None:
        for _ in range(TRIES):
            try:
                return _Claim(**json.loads(self._path.read_bytes()))
            except FileNotFoundError:
                return None
            except ValueError:  # it was written between the requests of its size and its content
                time.sleep(0.01)
        raise OSError(f"{self._path} is no claim of a driver")

    def _write_claim(self, since: int) -> None:
        self._own = _Claim(**{**asdict(self._own), "since": since, "renewed": self._own.renewed + 1})
        self._path.write_bytes(json.dumps(asdict(self._own)).encode())
