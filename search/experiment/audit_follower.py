"""Waits for the audit by the first worker of a search, prints its findings, and ends the search on errors."""

import json
import threading
from pathlib import Path
from typing import Any, Self

from searchlight.search.errors import UsageError
from searchlight.search.execution.cluster.connection import join_thread
from searchlight.search.experiment.stop import StopRequest
from searchlight.search.formatting import resume_command
from searchlight.search.reporting.console.preflight import format_finding, format_summary
from searchlight.search.reporting.console.progress import Progress
from searchlight.trainables.filesystem.atomic_file import write_atomic
from searchlight.trainables.filesystem.paths import StoragePath

AUDIT_FILE = "preflight.json"


class AuditFollower:
    """Follows the audit in a thread, until it ends or the search does.

    As a context manager it ends the thread: Ray ends a process that calls it during its shutdown.

    Args:
        folder: The local folder of the search.
        place: Where the search lies, for the command that resumes it.
        identity: What `identify_audit` returned. The result has it as "of", unless the audit was cut short.

    Attributes:
        result: The audit as JSON, once it has ended.
    """

    def __init__(
        self, registry: Any, folder: Path, place: StoragePath, identity: str, progress: Progress, stop: StopRequest
    ) -> None:
        self.result: dict[str, Any] | None = None
        self._place, self._identity = place, identity
        self._is_over = False  # the search
        self._registry, self._folder, self._progress, self._stop = registry, folder, progress, stop
        self._thread = threading.Thread(target=self._follow, daemon=True, name="preflight")
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self._is_over = True
        self._registry.record_audit.remote(None)
        join_thread(self._thread)

    def check(self, is_trained: bool) -> None:
        """Raise a UsageError, with a line per error, if the audit found errors.

        Args:
            is_trained: Whether a trial of the search has reported, for example before a resume.
        """
        found = self.result["findings"] if self.result else []
        errors = [format_finding(finding) for finding in found if finding["severity"] == "error"]
        if errors:
            remedy = f"Correct the task and run {resume_command(self._place)}, or add --no-preflight."
            raise UsageError(*errors, remedy if is_trained else f"Nothing was trained. {remedy}")

    def _follow(self) -> None:
        import ray

        try:
            audit: dict[str, Any] | None = ray.get(self._registry.wait_for_audit.remote())
        except ray.exceptions.RayError:  # Ray is lost, which the search finds out by itself
            return
        if audit is not None:
            self._tell(audit)
        elif not self._is_over:
            self._progress.warn("preflight: the task is not audited: the workers that audited it were lost twice")

    def _tell(self, audit: dict[str, Any]) -> None:
        self.result = audit if self._stop.asked.is_set() else {**audit, "of": self._identity}
        for finding in audit["findings"]:
            if finding["severity"] == "warning":
                self._progress.warn(f"preflight: warning {format_finding(finding)}")
        self._progress.say(format_summary(audit))
        try:
            write_atomic(self._folder / AUDIT_FILE, json.dumps(audit))
        except OSError as error:  # a full disk ends no search
            self._progress.warn(f"{AUDIT_FILE} cannot be written: {error}")
        if audit["has_errors"]:
            self._stop.prunes = False  # trials can continue with the corrected task
            self._stop("preflight found errors in the task")
