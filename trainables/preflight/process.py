"""The audit in a process of its own: python -m searchlight.trainables.preflight.process REQUEST RESULT SECONDS.

REQUEST and RESULT are JSON files. The process ends after SECONDS, also if the one that started it was killed.
"""

import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from searchlight.trainables.context import Context
from searchlight.trainables.context.context import create_single_rank_group
from searchlight.trainables.filesystem.atomic_file import write_atomic
from searchlight.trainables.isolation.process import ProcessSnapshot
from searchlight.trainables.isolation.resource_leaks import end_data_loaders
from searchlight.trainables.preflight.audit import Audit
from searchlight.trainables.preflight.findings import Severity, has_errors, make_finding, sort_findings
from searchlight.trainables.preflight.messages import AuditRequest, AuditResult, audit_apart
from searchlight.trainables.preflight.shadow_device.check import PART
from searchlight.trainables.registry import OwnModules, enter_task_folder, get_python_path, load_class
from searchlight.trainables.training.resource_usage import limit_gpu_memory

ONE_RANK_S = 30.0  # for one rank of a gang, with the start of Python and of the task; the gang waits


def audit_task(
    reference: str, request: Mapping[str, Any], gpus: float, is_function: bool, files: str = ""
) -> dict[str, Any]:
    """Audit the task "module:Class", or "module:function", in this process, which ends afterwards.

    Args:
        request: The fields of an AuditRequest.
        gpus: The GPUs of a worker, e.g. 0.5 of the first one that the process sees, or 0.
        files: The folder that the task's `prepare` filled, or "".

    Returns:
        An AuditResult as JSON.
    """
    enter_task_folder()
    device = torch.device("cuda", 0) if gpus and torch.cuda.is_available() else torch.device("cpu")
    limit_gpu_memory(device, gpus)
    asked = AuditRequest(**request)
    asked = replace(asked, wants_gpu=asked.wants_gpu or (gpus > 0 and device.type == "cpu"))
    logging.getLogger("searchlight.trainables").setLevel(logging.ERROR)  # what a trial logs, the findings say
    if is_function:
        return _audit_function(reference, asked, device)
    if asked.workers > 1:
        create_single_rank_group(device)  # for tasks that call torch.distributed themselves
    snapshot = ProcessSnapshot(reference)

    def reset() -> None:
        end_data_loaders()
        snapshot.restore()

    context = Context(device, files=Path(files) if files else None)
    return Audit(lambda: load_class(reference), asked, context, reset, reference).run().as_json()


def _audit_function(reference: str, request: AuditRequest, device: torch.device) -> dict[str, Any]:
    # Imports Ray Train, whose import takes a second that the audit of a class need not pay.
    from searchlight.trainables.preflight.function_audit import audit_function, find_gpu_problems

    found = [] if request.is_gpu_only else audit_function(load_class(reference), request.config, request.limit_s)
    if request.is_gpu_only or (device.type == "cpu" and not has_errors(found)):
        OwnModules(reference).forget()  # which may remember that there was no GPU
        severity: Severity | None = "error" if request.wants_gpu else None
        found += find_gpu_problems(lambda: load_class(reference), request.config, severity)
    return AuditResult(sort_findings(found), device=PART if request.is_gpu_only else str(device)).as_json()


def audit_one_rank(
    reference: str, request: Mapping[str, Any], context: Context, is_over: Callable[[], bool]
) -> dict[str, Any]:
    """Audit a task of several ranks by one that trains alone, in another process. Return an AuditResult as JSON.

    The gang of `context` takes no part, so that none of its collectives can wait for another rank.
    """
    ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    environment = {**os.environ, **ranks, "PYTHONPATH": get_python_path()}
    if on_gpu := context.device.type == "cuda":
        visible, index = os.environ.get("CUDA_VISIBLE_DEVICES"), context.device.index or 0
        environment["CUDA_VISIBLE_DEVICES"] = visible.split(",")[index] if visible else str(index)
    keywords = {"reference": reference, "request": dict(request), "gpus": float(on_gpu), "is_function": False}
    try:
        return audit_apart({**keywords, "files": str(context.files or "")}, environment, ONE_RANK_S, is_over)
    except (OSError, RuntimeError) as error:  # e.g. a full disk or no time: no proof that a gang would fail
        finding = make_finding("not-audited", f"one of {context.world_size} ranks", str(error))
        return AuditResult([finding], device=str(context.device)).as_json()


def main(request_file: str, result_file: str, seconds: str) -> None:
    """Read a request, audit the task, and write the result atomically. End the process after `seconds`."""
    signal.alarm(int(seconds))
    result = audit_task(**json.loads(Path(request_file).read_text(encoding="utf-8")))
    write_atomic(Path(result_file), json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)  # threads that a task left must not keep the process
