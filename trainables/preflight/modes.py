"""What each precision of a space does on this device: whether it runs, how fast it is, and how far from fp32."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from searchlight.trainables.precision import Precision, resolve
from searchlight.trainables.preflight.findings import Finding, Kind, declare_kinds, describe_error, make_finding
from searchlight.trainables.preflight.gradients import (
    Gradient,
    Loss,
    Prober,
    changed_config,
    dot,
    evaluation_mode,
    measure_saved,
)
from searchlight.trainables.preflight.observation import ObservedTrial, find_tensors
from searchlight.trainables.private_api import DispatchMode

REPEATS = 5
LONGEST_S = 0.5  # after which a measurement is not repeated
GAIN = 0.97  # of the time or the memory of fp32, below which a mode is a gain
SLOW = 3.0  # times the time of fp32, above which no saved memory is worth it on a CPU: such a mode is emulated
COSINE, LOSS_ERROR = 0.9, 0.05  # beyond which a mode is told to be inaccurate
UNDERFLOW = 0.01  # share of the elements of a gradient that may vanish
SCALES = [2.0**exponent for exponent in (0, 4, 8, 12, 16, 20, 24)]
# What torch says about -1e9 in half precision, and oneDNN about an operation that it does not have for this CPU.
MESSAGES = {"without overflow": "half-precision-constant", "could not create a primitive": "mode-unsupported"}


declare_kinds(
    "Precision",
    Kind("mode-unsupported", "warning", "Choose others: --search precision=..., or --set precision=fp32."),
    Kind("mode-without-gain", "warning", "Leave the precision out: what it saves here is not worth its time."),
    Kind("mode-does-not-run", "warning", "Look for autocast(enabled=False), float() or custom functions."),
    Kind("mode-fails", "error", "Correct the operation, or leave the precision out: --search precision=..."),
    Kind("mode-not-finite", "error", "Compute the operation in fp32, or scale what goes into it."),
    Kind("half-precision-constant", "error", "Use torch.finfo(x.dtype).min in masks: half precision ends at 65504."),
    Kind("mode-overflows", "warning", "Compute the operation in fp32: x.float(), or scale its input."),
    Kind("mode-underflows", "warning", "Raise the initial loss scale: --set loss_scale=..."),
    Kind("mode-inaccurate", "warning", "Compute reductions, norms and softmax in fp32, or leave the precision out."),
)


@dataclass
class Products(DispatchMode):  # type: ignore[misc]  # private, so that its type is Any
    """Counts the floating-point operations of matrix products by dtype, as the dispatcher sees them.

    Attributes:
        flops: By dtype of the first operand.
        overflow: The first operation of a forward pass that made a value that is not finite from finite ones.
        is_forward: Whether a forward pass runs. In a backward pass, the loss scale comes down after an overflow.
    """

    flops: dict[torch.dtype, float] = field(default_factory=dict)
    overflow: str = ""
    is_forward: bool = False

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        packet = getattr(func, "overloadpacket", None)
        operands = [tensor for tensor in find_tensors(args) if tensor.is_floating_point()]
        if packet in flop_registry and operands:
            count = flop_registry[packet](*args, **(kwargs or {}), out_val=result)
            self.flops[operands[0].dtype] = self.flops.get(operands[0].dtype, 0.0) + count
        elif self.is_forward and not self.overflow and "empty" not in str(packet):  # which returns any values
            self._look_for_overflow(str(packet), result, operands)
        return result

    def watch(self, loss: Loss, batch: Any) -> Any:
        """Return the loss of `batch`. Record overflows in this forward pass."""
        self.is_forward = True
        try:
            return loss(batch)
        finally:
            self.is_forward = False

    def _look_for_overflow(self, name: str, result: Any, operands: Sequence[Tensor]) -> None:
        half = [t for t in find_tensors(result) if t.dtype in (torch.float16, torch.bfloat16)]
        if half and not all(_is_finite(t) for t in half) and all(_is_finite(t) for t in operands):
            self.overflow = name

    def share(self, dtype: torch.dtype) -> float:
        """Return the share of matrix-product FLOP in `dtype`, from 0 to 1, or NaN if no product ran."""
        total = sum(self.flops.values())
        return self.flops.get(dtype, 0.0) / total if total else math.nan


@dataclass(frozen=True)
class ModeReport:
    """The cost and the accuracy of one precision on one micro-batch: forward, loss and backward.

    Attributes:
        seconds: The shortest time of a few repetitions.
        saved_bytes: The bytes of the tensors that the forward pass keeps for the backward pass.
        products: The share of matrix products in the dtype of the mode.
    """

    precision: str
    loss: float
    seconds: float
    saved_bytes: int
    products: float
    loss_error: float = 0.0
    cosine: float = 1.0
    underflow: float = 0.0
    smallest_scale: float = 1.0


def find_mode_problems(
    trial: ObservedTrial, modes: Sequence[str], is_over: Callable[[], bool]
) -> tuple[list[Finding], list[ModeReport]]:
    """Compare each of `modes` with fp32 on the first micro-batch of each update."""
    findings, reports, comparisons = list[Finding](), dict[str, ModeReport](), dict[str, _Comparison]()
    for mode in modes:
        if mode != Precision.FP32 and not is_over():
            try:
                precision = resolve(mode, trial.task.context.device)
            except ValueError as error:
                findings.append(make_finding("mode-unsupported", mode, str(error)))
                continue
            for name, record in trial.updates.items():
                for batch, loss in record.batches[:1] if not (reports and is_over()) else ():
                    if name not in comparisons:
                        comparisons[name] = _Comparison(trial, name, loss, batch)
                    found, report = comparisons[name].compare(precision)
                    findings += found
                    if report is not None:
                        reports.setdefault(Precision.FP32, comparisons[name].fp32)
                        reports.setdefault(precision, report)
    unsupported = {finding.subject.partition(",")[0] for finding in findings if finding.name == "mode-unsupported"}
    if unsupported >= {*modes}:  # no trial can run
        findings = [replace(each, severity="error") if each.name == "mode-unsupported" else each for each in findings]
    return findings, [*reports.values()]


class _Comparison:
    """Compares precisions with fp32 on one micro-batch.

    If the loss is random, modules are in evaluation mode, because dropout draws other masks in half precision.
    """

    def __init__(self, trial: ObservedTrial, name: str, loss: Loss, batch: Any) -> None:
        self.trial, self.name, self.loss, self.batch, self.prober = trial, name, loss, batch, Prober(trial)
        self.is_calm = self._is_random()
        with self._mode():
            self.reference = self._compute(Precision.FP32)
            self.fp32 = ModeReport(Precision.FP32, self.reference.loss, *self._measure(Precision.FP32), 1.0)
            self.is_random = self.is_calm and self._is_random()

    def compare(self, precision: Precision) -> tuple[list[Finding], ModeReport | None]:
        """Return the findings about `precision`, and its report unless the task cannot run in it."""
        subject, reference = f"{precision}, update {self.name!r}", self.reference
        with self._mode(), changed_config(self.trial.task, precision=str(precision)):
            try:
                products = Products()
                scale = self.trial.task.config.loss_scale if precision.mode.loss_scale else 1.0
                with products:
                    got = self._compute(precision, scale, partial(products.watch, self.loss))
                measured = self._measure(precision)
            except Exception as error:  # whatever the task raises in this mode ends each of its trials
                kind = next((name for words, name in MESSAGES.items() if words in str(error)), "mode-fails")
                return [make_finding(kind, subject, describe_error(error))], None
            if not math.isfinite(got.loss) and math.isfinite(reference.loss):
                figure = (
                    f"the loss is {got.loss}, and {reference.loss:.4g} in fp32; first in {products.overflow or '?'}"
                )
                return [make_finding("mode-not-finite", subject, figure)], None
            loss_error, cosine, *scales = self._judge_gradient(precision, got)
        if self.is_random:  # other samples are no error
            loss_error, cosine = 0.0, 1.0
        share = products.share(precision.dtype)
        report = ModeReport(precision, got.loss, *measured, share, loss_error, cosine, *scales)
        return [*_judge_mode(report, self.fp32, products, subject, self.trial)], report

    def _mode(self) -> AbstractContextManager[None]:
        return evaluation_mode(self.trial.task.modules) if self.is_calm else nullcontext()

    def _is_random(self) -> bool:
        values = []
        for seed in (0, 1):
            with self.prober.isolated(seed):
                values.append(float(self.prober.forward(self.loss, self.batch)[0].detach()))
        return values[0] != values[1]

    def _compute(self, precision: Precision, scale: float = 1.0, loss: Loss | None = None) -> Gradient:
        return self.prober.compute(self.name, loss or self.loss, self.batch, precision=precision, scale=scale)

    def _judge_gradient(self, precision: Precision, got: Gradient) -> tuple[float, float, float, float]:
        """Return the relative loss error, the cosine of the gradients, the vanishing share and the needed scale."""
        reference = self.reference
        error = abs(got.loss - reference.loss) / max(abs(reference.loss), 1e-6)
        underflow, smallest = _measure_underflow(reference, got), 1.0
        if precision.mode.loss_scale:
            if not math.isfinite(got.norm):  # the trial's own scale comes down by itself
                got = self._compute(precision)
            smallest = math.inf
            for scale in SCALES:
                scaled = self._compute(precision, scale)
                if math.isfinite(scaled.norm) and _measure_underflow(reference, scaled) <= UNDERFLOW:
                    smallest = scale
                    break
        return error, _cosine(reference, got), underflow, smallest

    def _measure(self, precision: Precision) -> tuple[float, int]:
        """Return the seconds of a forward and backward pass, and the bytes that are kept between them."""
        prober, device = self.prober, self.trial.task.context.device
        weights = {p.untyped_storage().data_ptr() for p in prober.all_parameters()}
        parameters = prober.parameters(self.name)

        def step() -> None:
            value, _ = prober.forward(self.loss, self.batch, precision)
            torch.autograd.grad(value.reshape(()), parameters, allow_unused=True)
            torch.clear_autocast_cache()

        with prober.isolated(0):
            storages = measure_saved(step)
            times = [measure_seconds(step, device)]
            while len(times) < REPEATS and sum(times) < LONGEST_S:
                times.append(measure_seconds(step, device))
        return min(times), sum(size for pointer, size in storages.items() if pointer not in weights)


def _judge_mode(
    report: ModeReport, fp32: ModeReport, products: Products, subject: str, trial: ObservedTrial
) -> Iterator[Finding]:
    if report.products < 0.5:
        figure = f"{report.products:.0%} of matrix products run in {report.precision}"
        yield make_finding("mode-does-not-run", subject, figure)
    time_ratio = report.seconds / fp32.seconds
    memory_ratio = report.saved_bytes / fp32.saved_bytes if fp32.saved_bytes else 1.0
    is_slow = time_ratio > SLOW and trial.task.context.device.type == "cpu"
    if is_slow or (time_ratio > GAIN and memory_ratio > GAIN):
        figure = f"{time_ratio:.2f} times the time of fp32, {memory_ratio:.2f} times the memory of activations"
        yield make_finding("mode-without-gain", subject, figure)
    if products.overflow:
        figure = f"first in {products.overflow}: finite operands, and a result that is not"
        yield make_finding("mode-overflows", subject, figure)
    if report.loss_error > LOSS_ERROR or report.cosine < COSINE:
        figure = f"loss {report.loss_error:.1%} off, cosine of the gradients {report.cosine:.3f}"
        yield make_finding("mode-inaccurate", subject, figure)
    initial = trial.task.config.loss_scale
    if report.underflow > UNDERFLOW and report.smallest_scale > initial:
        figure = (
            f"{report.underflow:.1%} of the gradient vanishes with loss_scale {initial:g}; "
            f"it takes {report.smallest_scale:g}"
        )
        yield make_finding("mode-underflows", subject, figure)


def _measure_underflow(reference: Gradient, got: Gradient) -> float:
    """Return the share of elements, from 0 to 1, that are 0 in `got` but not in `reference`."""
    lost = total = 0
    for exact, computed in zip(reference.parts, got.parts, strict=True):
        there = exact.abs() > 0
        total += int(there.sum())
        lost += int((there & (computed == 0)).sum())
    return lost / total if total else 0.0


def _cosine(first: Gradient, second: Gradient) -> float:
    norms = first.norm * second.norm
    return dot(first.parts, second.parts) / norms if norms and math.isfinite(norms) else (1.0 if not norms else 0.0)


def measure_seconds(action: Callable[[], Any], device: torch.device | None = None) -> float:
    """Return the seconds that `action` takes, including its work on a GPU."""
    start = time.perf_counter()
    action()
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def _is_finite(tensor: Tensor) -> bool:
    return bool(tensor.isfinite().all())
