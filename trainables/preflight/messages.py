"""What is asked of an audit, here or in another process, and what it answers. Who asks imports no torch."""

import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from searchlight.trainables.preflight.findings import Finding, has_errors

if TYPE_CHECKING:
    from searchlight.trainables.preflight.cost import EpochCost
    from searchlight.trainables.preflight.modes import ModeReport


POLL_S = 0.1


@dataclass(frozen=True)
class AuditRequest:
    """The request of an audit.

    Attributes:
        config: The defaults of the task, as JSON.
        corners: Other configs of the space, each with a text that distinguishes it.
        modes: The precisions of the space.
        accumulates: Whether any trial has several micro-batches in an update.
        limit_s: The approximate limit of the audit, in seconds.
        is_quick: Whether only the quick part runs.
        wants_gpu: Whether trials get GPUs, although the audit may run without one.
        is_gpu_only: Whether only the check on a simulated GPU runs.
        sizes: The config of each size, if only their activations are compared.
    """

    config: dict[str, Any]
    corners: Sequence[tuple[str, dict[str, Any]]] = ()
    modes: Sequence[str] = ()
    workers: int = 1
    accumulates: bool = False
    limit_s: float = 15.0
    is_quick: bool = False
    wants_gpu: bool = False
    is_gpu_only: bool = False
    sizes: Sequence[tuple[float, dict[str, Any]]] = ()


@dataclass(frozen=True)
class AuditResult:
    """The result of an audit: its findings, the most severe first, and the costs of the task.

    Attributes:
        seconds: The duration of each part, by name.
        modes: The cost and the accuracy of each precision.
    """

    findings: Sequence[Finding]
    costs: "Sequence[EpochCost]" = ()
    modes: "Sequence[ModeReport]" = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    device: str = "cpu"

    @property
    def has_errors(self) -> bool:
        """Whether a search of this task must not start."""
        return has_errors(self.findings)

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain values, so that a process which reads them imports nothing for them."""
        return {"schema": 1, **json.loads(json.dumps(asdict(self))), "has_errors": self.has_errors}


def audit_apart(
    request: Mapping[str, Any],
    environment: Mapping[str, str],
    longest_s: float,
    is_over: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Run `audit_task` with the keywords `request` in another process, and return its result.

    Raises:
        TimeoutError: The process was ended, since `longest_s` seconds had passed or `is_over` returned true.
        RuntimeError: The task ended the process. The message has its exit code and its last line of output.
    """
    with tempfile.TemporaryDirectory(prefix="searchlight-preflight-") as folder:
        asked, result, log = (Path(folder, name) for name in ("request.json", "result.json", "log"))
        asked.write_text(json.dumps(request), encoding="utf-8")
        command = [sys.executable, "-m", "searchlight.trainables.preflight.process", str(asked), str(result)]
        command.append(str(math.ceil(longest_s) + 1))
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
        until = time.monotonic() + longest_s
        try:
            while process.poll() is None:
                if is_over():
                    raise TimeoutError("ended with the search")
                if time.monotonic() > until:
                    raise TimeoutError(f"not ended within {longest_s:.0f} s")
                with suppress(subprocess.TimeoutExpired):
                    process.wait(POLL_S)
        finally:
            process.kill()
            process.wait()
        if result.is_file():
            audit: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
            return audit
        lines = log.read_text(errors="replace").splitlines()
        raise RuntimeError(": ".join([f"the process ended with code {process.returncode}", *lines[-1:]]))
