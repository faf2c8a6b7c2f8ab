"""Waits for the audit by the first worker of a search, prints its findings, and ends the search on errors."""

import json
import threading
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any, Self

import ray

from searchlight.search.config import SearchConfig
from searchlight.search.errors import UsageError
from searchlight.search.execution.cluster.connection import find_lost_process, join_thread
from searchlight.search.experiment.plan import SearchPlan
from searchlight.search.experiment.preflight import build_request, identify_audit
from searchlight.search.experiment.stop import StopRequest
from searchlight.search.experiment.task_files import AUDIT_FILE
from searchlight.search.formatting import resume_command
from searchlight.search.reporting.console.preflight import format_finding, format_summary
from searchlight.search.reporting.console.progress import Progress
from searchlight.search.study.study import SearchStudy
from searchlight.search.study.trial import get_reports
from searchlight.trainables.filesystem.atomic_file import write_atomic

RESTART_S = 1.0  # before a registry that was killed is asked again


class AuditFollower:
    """Follows the audit in a thread, until it ends or the search does.

    As a context manager it ends the thread: Ray ends a process that calls it during its shutdown.

    Args:
        identity: What `identify_audit` returned. The result has it as "of", unless the audit was cut short.

    Attributes:
        request: What is audited, as JSON.
        result: The audit as JSON, once it has ended.
        passed: Whether trials may end as failed, or None until that is known.
    """

    def __init__(
        self, registry: Any, config: SearchConfig, identity: str, progress: Progress, stop: StopRequest
    ) -> None:
        self.request: dict[str, Any] = {}
        self.result: dict[str, Any] | None = None
        self.passed: bool | None = None
        self._config, self._identity = config, identity
        self._over = threading.Event()  # of the search
        self._registry, self._progress, self._stop = registry, progress, stop
        self._thread = threading.Thread(target=self._follow, daemon=True, name="preflight")
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self._over.set()
        self._registry.record_audit.remote(None)
        join_thread(self._thread)

    def record(self, study: SearchStudy) -> None:
        """Store the result, if there is one. Raise a UsageError, with a line per error, if the audit found errors."""
        if self.result is None:
            return
        study.save_metadata({**study.metadata, "preflight": self.result})
        study.commit()
        errors = [format_finding(finding) for finding in self.result["findings"] if finding["severity"] == "error"]
        if errors:
            remedy = f"Correct the task and run {resume_command(self._config.path)}, or add --no-preflight."
            if self._config.set or self._config.search:
                remedy += " If a --set or --search is wrong, begin a new search: a resumed one keeps them."
            is_trained = any(get_reports(trial) for trial in study.get_trials())  # for example before a resume
            raise UsageError(*errors, remedy if is_trained else f"Nothing was trained. {remedy}")

    def _follow(self) -> None:
        try:
            audit = self._wait_for_audit()
        except ray.exceptions.RayError:  # Ray is lost, which the search finds out by itself
            return  # and `passed` stays None: the trials that wait for the audit continue after a resume
        if audit is not None:
            self._tell(audit)
        elif not self._over.is_set():
            self._progress.warn("preflight: the task is not audited: its audit broke off")
        self.passed = audit is None or not audit["has_errors"]

    def _wait_for_audit(self) -> dict[str, Any] | None:
        """Return the audit, or None at the end of the search. If the registry was killed, other workers audit again.

        Raises:
            RayError: Ray is lost.
        """
        while True:
            try:
                audit: dict[str, Any] | None = ray.get(self._registry.wait_for_audit.remote())
                return audit
            except ray.exceptions.RayActorError:
                if self._over.wait(RESTART_S):
                    return None
                if find_lost_process():
                    raise

    def _tell(self, audit: dict[str, Any]) -> None:
        self.result = audit if self._stop.asked.is_set() else {**audit, "of": self._identity}
        for finding in audit["findings"]:
            if finding["severity"] == "warning":
                self._progress.warn(f"preflight: warning {format_finding(finding)}")
        self._progress.say(format_summary(audit))
        try:
            write_atomic(self._config.local_path / AUDIT_FILE, json.dumps(audit))
        except OSError as error:  # a full disk ends no search
            self._progress.warn(f"{AUDIT_FILE} cannot be written: {error}")
        if audit["has_errors"]:
            self._stop.prunes = False  # trials can continue with the corrected task
            self._stop("preflight found errors in the task")


def follow_audit(
    services: ExitStack,
    plan: SearchPlan,
    study: SearchStudy,
    registry: Any,
    progress: Progress,
    stop: StopRequest,
) -> AuditFollower | None:
    """Begin to follow the audit of the task, unless the user or an earlier run of the search makes it needless."""
    config = plan.config
    if plan.command or config.no_preflight or is_audited(plan, study):
        return None
    request = build_request(plan.space, config.workers, is_quick=True)
    audit = AuditFollower(registry, config, identify_audit(request, study.metadata["files"]), progress, stop)
    audit.request = asdict(request)
    if plan.source.task_class is None or config.workers > 1:
        audit.passed = True  # the audit of a function, or of one rank of several, has no errors
    return services.enter_context(audit)


def is_audited(plan: SearchPlan, study: SearchStudy) -> bool:
    """Return whether an earlier run of the search has audited the same task on this machine, and found no errors."""
    request, known = build_request(plan.space, plan.config.workers, is_quick=True), study.metadata.get("preflight", {})
    identity = identify_audit(request, study.metadata["files"])
    return bool(identity) and known.get("of") == identity and not known["has_errors"]
