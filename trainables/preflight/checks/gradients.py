"""The check that each trainable parameter gets a gradient."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from searchlight.trainables.preflight.checks.errors import has_trained
from searchlight.trainables.preflight.findings import Finding, Kind, Severity, declare_kinds, make_finding, make_group
from searchlight.trainables.preflight.observation import (
    FIRST_WINDOWS,
    Check,
    Norms,
    ObservedTrial,
    Window,
    find_tensors,
)

declare_kinds(
    "Gradient flow",
    Kind("module-without-gradient", "error", "Use the module in the loss, or freeze it: requires_grad_(False)."),
    Kind("module-under-no-grad", "error", "Remove no_grad or inference_mode around it, or freeze the module."),
    Kind("module-behind-detach", "error", "Remove detach(), item() or numpy() behind it, or freeze the module."),
    Kind("unused-module", "warning", "Freeze the module or remove it, unless other batches use it."),
    Kind("unused-parameter", "warning", "Freeze the parameter or remove it, unless other batches use it."),
    Kind("zero-gradient", "warning", "Look for a dead activation, a factor of 0, or weights that all start at 0."),
)


@dataclass
class GradientRecord:
    """The gradients of one parameter: in how many windows it had one, their largest norm, how many were not finite."""

    seen: int = 0
    largest: float = 0.0
    non_finite: int = 0

    def add(self, norm: float) -> None:
        """Record the norm of one gradient."""
        is_finite = math.isfinite(norm)
        self.seen += 1
        self.non_finite += not is_finite
        self.largest = max(self.largest, norm if is_finite else 0.0)

    @property
    def is_zero(self) -> bool:
        """Whether there were gradients, all of them 0."""
        return bool(self.seen and not self.largest and not self.non_finite)


@dataclass
class ForwardRecord:
    """The calls of one module: how many had an output that requires a gradient, and whether a gradient arrived."""

    calls: int = 0
    differentiable: int = 0
    arrived: bool = False


class MissingGradients(Check):
    """Records the gradient of each parameter, and in the first windows the forward passes that lead to it."""

    def __init__(self) -> None:
        self.gradients = dict[str, GradientRecord]()
        self.forwards = dict[str, ForwardRecord]()
        self._handles: list[Any] = []

    def on_build(self, trial: ObservedTrial) -> None:
        names = [name for updater in trial.task.updaters.values() for name in updater.trainable_names()]
        self.gradients = {name: GradientRecord() for name in names}
        for key, module in trial.task.modules.items():
            for path, part in module.named_modules():
                if any(p.requires_grad for p in part.parameters(recurse=False)):
                    record = self.forwards.setdefault(f"{key}.{path}".rstrip("."), ForwardRecord())
                    self._handles.append(part.register_forward_hook(partial(_record_forward, record)))

    def on_window(self, trial: ObservedTrial) -> None:
        if trial.windows == FIRST_WINDOWS:
            self.close()

    def on_update(self, trial: ObservedTrial, update: str, window: Window, norms: Norms) -> None:
        for name, norm in norms.items():
            self.gradients.setdefault(name, GradientRecord()).add(norm)

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def find(self, trial: ObservedTrial) -> list[Finding]:
        """Return a finding for each reason why modules and parameters have no gradient."""
        if not has_trained(trial):
            return []
        findings: list[Finding] = []
        reasons: dict[str, list[str]] = {}
        for name, record in self.gradients.items():
            if not record.seen:
                reasons.setdefault(self._explain_missing(name), []).append(name)
        for reason, names in reasons.items():
            severity: Severity | None = "warning" if trial.gradient_check == "skip" else None  # it is meant, for now
            figure = f"no gradient in {trial.windows} windows"
            findings += make_group(reason, _merge_names(names, self.gradients), figure, severity)

        zero = [name for name, record in self.gradients.items() if record.is_zero]
        figure = f"gradient of 0 in {trial.windows} windows"
        findings += make_group("zero-gradient", _merge_names(zero, self.gradients), figure)

        dead = {*zero, *(name for names in reasons.values() for name in names)}
        for key in trial.task.modules if trial.gradient_check != "skip" else ():
            parts = [name for name in self.gradients if name.startswith(f"{key}.")]
            if parts and dead >= {*parts} and not _is_explained(findings, key):
                findings = [finding for finding in findings if finding.subject != key]
                figure = f"{len(parts)} parameters without a gradient"
                findings.append(make_finding("module-without-gradient", key, figure))
        return findings

    def _explain_missing(self, name: str) -> str:
        """Return the kind of finding that says why the parameter `name` gets no gradient."""
        path = name.rpartition(".")[0]
        record = self.forwards.get(path)
        if record is None or not record.calls:
            # A part that is never called may be used through its parent, as attention uses its projection.
            is_whole = not any(r.seen for other, r in self.gradients.items() if other.startswith(f"{path}."))
            return "unused-module" if record is not None and is_whole else "unused-parameter"
        if not record.differentiable:
            return "module-under-no-grad"
        return "unused-parameter" if record.arrived else "module-behind-detach"


def _record_forward(record: ForwardRecord, module: nn.Module, args: Any, result: Any) -> None:
    record.calls += 1
    outputs = [tensor for tensor in find_tensors(result) if tensor.requires_grad]
    record.differentiable += bool(outputs)
    for tensor in outputs:
        tensor.register_hook(partial(_note_arrival, record))  # type: ignore[no-untyped-call]


def _note_arrival(record: ForwardRecord, gradient: Tensor) -> None:
    record.arrived = True


def _is_explained(findings: Sequence[Finding], key: str) -> bool:
    names = [name for finding in findings if finding.severity == "error" for name in finding.subject.split(", ")]
    return any(name == key or name.startswith(f"{key}.") for name in names)


def _merge_names(names: Sequence[str], every: Mapping[str, GradientRecord]) -> list[str]:
    """Return `names` with a module in place of its parameters if all of them are in `names`."""
    left, found, chosen = set(names), [], set(names)
    for name in names:
        if name not in left:
            continue
        parts = name.split(".")
        for depth in range(1, len(parts)):
            prefix = ".".join(parts[:depth]) + "."
            group = {other for other in every if other.startswith(prefix)}
            if group <= chosen and len(group) > 1:
                found.append(prefix.rstrip("."))
                left -= group
                break
        else:
            found.append(name)
            left.discard(name)
    return found
