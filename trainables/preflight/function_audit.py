"""The audit of a plain Ray Train function, which observes the steps of its optimizers from outside."""

import importlib
import math
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from searchlight.trainables.preflight.checks import updates  # noqa: F401  # declares findings that are made here
from searchlight.trainables.preflight.checks.errors import name_error
from searchlight.trainables.preflight.checks.gradients import GradientRecord
from searchlight.trainables.preflight.findings import (
    Finding,
    Severity,
    describe_error,
    make_finding,
    make_group,
    sort_findings,
)
from searchlight.trainables.preflight.messages import AuditResult
from searchlight.trainables.preflight.shadow_device.check import PART, find_unseen, find_waits, find_wrong_device
from searchlight.trainables.preflight.shadow_device.shadow import shadow_cuda
from searchlight.trainables.private_api import LocalTrainFnUtils, get_train_fn_utils
from searchlight.trainables.ray_functions import call_function, set_ray_functions
from searchlight.trainables.registry import describe_missing_value, find_user_frame
from searchlight.trainables.update.parameters import get_local, get_parameters, is_sharded

STEPS = 16
GPU_S = 5.0  # CPU seconds on a simulated GPU, after which a function is ended at its next step
UNSEEN = "exactness, precision, data and cost: a function does not say what its micro-batches and its loss are"


class AuditEnded(BaseException):
    """Unwinds a function once enough steps were seen. It is no Exception, so that the function does not handle it."""


@dataclass
class StepRecord:
    """The observed steps of one optimizer."""

    steps: int = 0
    unchanged: int = 0
    gradients: dict[int, GradientRecord] = field(default_factory=dict)
    before: list[int] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    half: set[str] = field(default_factory=set)
    rates: set[float] = field(default_factory=set)


def audit_function(function: Callable[..., Any], config: Mapping[str, Any], limit_s: float) -> list[Finding]:
    """Call `function` until it has made a few optimizer steps. Return the findings about these steps."""
    end = _bind_end(time.monotonic() + limit_s, time.monotonic)
    watcher = StepWatcher(end)
    with watcher.hooked():
        error, stack = _call(function, config, LocalTrainFnUtils("preflight"))
    findings = watcher.find()
    if error is not None:
        where = find_user_frame(stack) or "the function"
        findings.append(make_finding(name_error(error, "train"), where, describe_error(error)))
    return findings


def find_gpu_problems(
    load: Callable[[], Callable[..., Any]], config: Mapping[str, Any], severity: Severity | None = None
) -> list[Finding]:
    """Call a function on a simulated GPU until its first report. Return what CUDA would refuse or be waited for.

    Args:
        load: Returns the function. It is called while the GPU is simulated, since modules ask for it, too.
        severity: Of `wrong-device`, if it is another one than usual.
    """
    end, steps = _bind_end(time.process_time() + GPU_S, time.process_time), 0

    def count_step(*_: Any) -> None:
        nonlocal steps
        steps += 1
        end(False)

    with shadow_cuda() as device:
        hook = register_optimizer_step_post_hook(count_step)
        try:
            error, stack = _call(load(), config, _FirstReport("preflight"))
        finally:
            hook.remove()
    found = find_waits(device.waits, steps, "step") + find_unseen(device)
    if error is not None:
        wrong = find_wrong_device(error, stack, "", severity)
        found += wrong or [make_finding("not-audited", PART, _explain(error, stack, config))]
    return found


def _explain(error: BaseException, stack: str, config: Mapping[str, Any]) -> str:
    """Return why a function came to no report on a simulated GPU, with its line."""
    where = find_user_frame(stack) or "the function"
    return f"{describe_error(error)} in {where}{describe_missing_value(error, config)}"


class _FirstReport(LocalTrainFnUtils):  # type: ignore[misc]  # private, so that its type is Any
    def report(self, *args: Any, **kwargs: Any) -> None:
        raise AuditEnded


def _bind_end(until: float, clock: Callable[[], float]) -> Callable[[bool], None]:
    """Return a function that ends the audited one, once its argument is true or the time is over."""
    thread = threading.get_ident()

    def end(is_done: bool) -> None:
        if threading.get_ident() == thread and (is_done or clock() > until):
            raise AuditEnded

    return end


def _call(function: Callable[..., Any], config: Mapping[str, Any], utils: Any) -> tuple[BaseException | None, str]:
    """Call `function` with what Ray Train gives to one worker. Return what it raised, and the stack."""
    importlib.import_module("ray.train.torch")  # as in each worker: Ray's own code for Lightning relies on it
    before = None
    with suppress(RuntimeError):  # how Ray says that there is nothing yet outside of a worker
        before = get_train_fn_utils()
    set_ray_functions(utils)
    try:
        call_function(function, [dict(config)], utils.report)
    except AuditEnded:
        pass
    except (Exception, SystemExit) as error:  # whatever the function raises is what the audit is to tell
        return error, traceback.format_exc()
    finally:
        set_ray_functions(before)
    return None, ""


@contextmanager
def watch_steps(tell: Callable[[dict[str, Any]], object], device: str) -> Iterator[None]:
    """Audit the first steps of the function that runs inside the context. Call `tell` once with the result as JSON.

    It neither ends nor delays the function, and takes part in no collective. So it suits one rank of several.
    """
    is_told = False

    def finish(is_done: bool) -> None:
        nonlocal is_told
        if is_done and not is_told:
            is_told = True
            tell(AuditResult(sort_findings(watcher.find()), device=device).as_json())

    watcher = StepWatcher(finish)
    try:
        with watcher.hooked():
            yield
    except BaseException:  # any end of the function, which is raised again
        with suppress(Exception):  # whatever `tell` raises must not replace the function's error
            finish(True)
        raise
    finish(True)


class StepWatcher:
    """Sees the first steps of every optimizer.

    Args:
        on_step: Called after each of them, with whether there were enough.
    """

    def __init__(self, on_step: Callable[[bool], None]) -> None:
        self.records: dict[int, StepRecord] = {}
        self._on_step = on_step
        self._is_done = False
        self._problem = ""

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Record optimizer steps inside the context."""
        with ExitStack() as hooks:
            hooks.callback(register_optimizer_step_pre_hook(self._before_step).remove)
            hooks.callback(register_optimizer_step_post_hook(self._after_step).remove)
            yield

    def find(self) -> list[Finding]:
        """Return the findings about the steps, and a note that names what they cannot show."""
        findings = [make_finding("not-audited", "the function", UNSEEN)]
        if self._problem or not self.records:
            figure = self._problem or "no optimizer of torch made a step"
            return [*findings, make_finding("not-audited", "gradient flow", figure)]
        for index, record in enumerate(self.records.values()):
            findings += _judge(record, f"optimizer {index}")
        return findings

    def _before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if not self._is_done:
            self._guard(_record_gradients, self.records.setdefault(id(optimizer), StepRecord()), optimizer)

    def _after_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if not self._is_done and id(optimizer) in self.records:
            self._guard(_record_change, self.records[id(optimizer)], optimizer)
            self._is_done = bool(self._problem) or max(own.steps for own in self.records.values()) >= STEPS
            self._on_step(self._is_done)

    def _guard(
        self, action: Callable[[StepRecord, torch.optim.Optimizer], None], record: StepRecord, optimizer: Any
    ) -> None:
        try:
            action(record, optimizer)
        except Exception as error:  # an optimizer or a tensor of another library, which must not end the function
            self._problem = f"{type(error).__name__}: {error}"


def _record_gradients(record: StepRecord, optimizer: torch.optim.Optimizer) -> None:
    record.steps += 1
    record.rates |= {float(group.get("lr", 0.0)) for group in optimizer.param_groups}
    for index, parameter in enumerate(get_parameters(optimizer)):
        if not parameter.requires_grad:
            continue
        name = record.names.setdefault(id(parameter), f"[{index}] of shape {tuple(parameter.shape)}")
        if parameter.dtype in (torch.float16, torch.bfloat16):
            record.half.add(name)
        gradients = record.gradients.setdefault(id(parameter), GradientRecord())
        if parameter.grad is not None:
            gradient = get_local(parameter.grad)
            wide = torch.float32 if gradient.dtype is torch.float16 else None  # in which no norm overflows
            gradients.add(float(gradient.norm(dtype=wide)))
            if is_sharded([parameter]):  # the shards of other ranks may be above 0
                gradients.largest = math.inf
    record.before = [_sum_bits(parameter) for parameter in get_parameters(optimizer)]


def _record_change(record: StepRecord, optimizer: torch.optim.Optimizer) -> None:
    record.unchanged += record.before == [_sum_bits(parameter) for parameter in get_parameters(optimizer)]


def _sum_bits(parameter: Tensor) -> int:
    """Return a number that changes if the values of this rank change, without copying them."""
    bits = {1: torch.int8, 2: torch.int16, 4: torch.int32}.get(parameter.element_size(), torch.int64)
    return int(get_local(parameter.detach()).view(bits).sum(dtype=bits))  # another dtype would be a copy


def _judge(record: StepRecord, subject: str) -> list[Finding]:
    named = {record.names[key]: own for key, own in record.gradients.items()}
    missing = [f"{subject} {name}" for name, own in named.items() if not own.seen]
    zero = [f"{subject} {name}" for name, own in named.items() if own.is_zero]
    spoiled = [f"{subject} {name}" for name, own in named.items() if own.non_finite]
    if record.steps == 1:  # LBFGS computes its first gradients within the step
        missing = []
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
