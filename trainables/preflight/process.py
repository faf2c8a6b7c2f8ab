"""The audit in a process of its own: python -m trainables.preflight.process REQUEST RESULT, two JSON files."""

import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import torch

from trainables.context import Context
from trainables.isolation.process import ProcessSnapshot
from trainables.isolation.resource_leaks import end_data_loaders
from trainables.preflight.audit import Audit, AuditRequest, AuditResult
from trainables.preflight.findings import sort_findings
from trainables.registry import load_class


def audit_task(reference: str, request: dict[str, Any], on_gpu: bool, is_function: bool) -> dict[str, Any]:
    """Audit the task "module:Class", or "module:function", in this process, which ends afterwards.

    Args:
        request: The fields of an AuditRequest.
        on_gpu: Whether the audit uses the first GPU that the process sees.

    Returns:
        An AuditResult as JSON.
    """
    device = torch.device("cuda", 0) if on_gpu and torch.cuda.is_available() else torch.device("cpu")
    asked = AuditRequest(**request)
    logging.getLogger("trainables").setLevel(logging.ERROR)  # what a trial logs, the findings say
    if is_function:
        # Imports Ray Train, whose import takes a second that the audit of a class need not pay.
        from trainables.preflight.function_audit import audit_function

        found = audit_function(load_class(reference), asked.config, asked.limit_s)
        return AuditResult(sort_findings(found), device=str(device)).as_json()
    snapshot = ProcessSnapshot(reference)

    def reset() -> None:
        end_data_loaders()
        snapshot.restore()

    return Audit(lambda: load_class(reference), asked, Context(device), reset, reference).run().as_json()


def main(request_file: str, result_file: str) -> None:
    """Read a request, audit, and write the result: all of it or nothing."""
    result = audit_task(**json.loads(Path(request_file).read_text(encoding="utf-8")))
    unfinished = Path(f"{result_file}.tmp")
    unfinished.write_text(json.dumps(result), encoding="utf-8")
    unfinished.rename(result_file)


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)  # threads that a task left must not keep the process
