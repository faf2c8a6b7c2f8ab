"""What can be audited of a plain Ray Train function: the steps of its optimizers, seen from outside."""

import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from trainables.preflight.findings import Finding, make_finding
from trainables.preflight.gradient_flow import make_group, name_error
from trainables.preflight.observation import GradientRecord
from trainables.private_api import LocalTrainFnUtils, get_train_fn_utils, set_train_fn_utils
from trainables.registry import find_user_frame
from trainables.update.parameters import get_parameters

STEPS = 16
UNSEEN = "exactness, precision, data and cost: a function does not say what its micro-batches and its loss are"


class AuditEnded(BaseException):
    """Unwinds a function once enough steps were seen. It is no Exception, so that the function does not handle it."""


@dataclass
class StepRecord:
    """What the steps of one optimizer show."""

    steps: int = 0
    unchanged: int = 0
    gradients: dict[int, GradientRecord] = field(default_factory=dict)
    before: list[Tensor] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    half: set[str] = field(default_factory=set)
    rates: set[float] = field(default_factory=set)


def audit_function(function: Callable[..., Any], config: Mapping[str, Any], limit_s: float) -> list[Finding]:
    """Call `function` until it has made a few optimizer steps, and return what they show."""
    watcher = _Watcher(time.monotonic() + limit_s)
    before, error, stack = get_utils(), None, ""
    set_train_fn_utils(LocalTrainFnUtils("preflight"))
    handles = [
        register_optimizer_step_pre_hook(watcher.before_step),
        register_optimizer_step_post_hook(watcher.after_step),
    ]
    try:
        function(dict(config))
    except AuditEnded:
        pass
    except (Exception, SystemExit) as raised:  # whatever the function raises is what the audit is to tell
        error, stack = raised, traceback.format_exc()
    finally:
        for handle in handles:
            handle.remove()
        set_train_fn_utils(before)
    findings = [make_finding("not-audited", "the function", UNSEEN)]
    if error is not None:
        lines = str(error).splitlines()
        figure = f"{type(error).__name__}: {lines[0] if lines else ''}"
        findings.append(make_finding(name_error(error, "train"), find_user_frame(stack) or "the function", figure))
    for index, record in enumerate(watcher.records.values()):
        findings += _judge(record, f"optimizer {index}")
    if not watcher.records and error is None:
        findings.append(make_finding("not-audited", "gradient flow", "no optimizer of torch made a step"))
    return findings


def get_utils() -> Any:
    """Return what `ray.train` calls in this process, or None outside of a worker."""
    try:
        return get_train_fn_utils()
    except RuntimeError:  # how Ray says that there is nothing yet
        return None


class _Watcher:
    """Sees every step of every optimizer of the thread that audits."""

    def __init__(self, until: float) -> None:
        self.records: dict[int, StepRecord] = {}
        self._until = until
        self._thread = threading.get_ident()

    def before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        record = self.records.setdefault(id(optimizer), StepRecord())
        record.steps += 1
        record.rates |= {float(group.get("lr", 0.0)) for group in optimizer.param_groups}
        for index, parameter in enumerate(get_parameters(optimizer)):
            name = record.names.setdefault(id(parameter), f"[{index}] of shape {tuple(parameter.shape)}")
            if parameter.dtype in (torch.float16, torch.bfloat16):
                record.half.add(name)
            own = record.gradients.setdefault(id(parameter), GradientRecord())
            if parameter.grad is not None:
                norm = float(parameter.grad.norm())
                finite = norm == norm and norm != float("inf")
                own.seen, own.non_finite = own.seen + 1, own.non_finite + (not finite)
                own.largest = max(own.largest, norm if finite else 0.0)
        record.before = [parameter.detach().clone() for parameter in get_parameters(optimizer)]

    def after_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        record = self.records[id(optimizer)]
        now = get_parameters(optimizer)
        record.unchanged += all(torch.equal(a, b.detach()) for a, b in zip(record.before, now, strict=True))
        record.before = []
        steps = max(own.steps for own in self.records.values())
        if threading.get_ident() == self._thread and (steps >= STEPS or time.monotonic() > self._until):
            raise AuditEnded


def _judge(record: StepRecord, subject: str) -> list[Finding]:
    named = {record.names[key]: own for key, own in record.gradients.items()}
    missing = [f"{subject} {name}" for name, own in named.items() if not own.seen]
    zero = [f"{subject} {name}" for name, own in named.items() if own.seen and not own.largest and not own.non_finite]
    spoiled = [f"{subject} {name}" for name, own in named.items() if own.non_finite]
    findings = make_group("unused-parameter", missing, f"no gradient in {record.steps} steps")
    findings += make_group("zero-gradient", zero, f"gradient of 0 in {record.steps} steps")
    findings += make_group("non-finite-gradient", spoiled, f"in up to {record.steps} steps", "warning")
    half = [f"{subject} {name}" for name in record.half]
    findings += make_group("half-precision-parameter", half, f"{len(half)} parameters in half precision", "warning")
    if record.unchanged == record.steps and len(missing) < len(named):
        rates = ", ".join(f"{rate:g}" for rate in sorted(record.rates))
        figure = f"{record.steps} steps changed no parameter, learning rate {rates}"
        findings.append(make_finding("update-changes-nothing", subject, figure))
    return findings
