"""The check that each trainable parameter gets a gradient."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from searchlight.trainables.precision import Diverged
from searchlight.trainables.preflight.findings import Finding, Severity, make_finding
from searchlight.trainables.preflight.observation import ObservedTrial
from searchlight.trainables.registry import find_user_frame
from searchlight.trainables.task import Task
from searchlight.trainables.update.parameters import get_named_parameters, get_parameters

# What torch, or the training step, says about a fault that has a name of its own.
MESSAGES = {
    "backward through the graph a second time": "graph-freed",
    "modified by an inplace operation": "changed-in-place",
    "is being used in an in-place operation": "changed-in-place",
    "checkpoints must not be reentrant": "reentrant-checkpoint",
    "must depend on a parameter": "constant-loss",
    "must depend on what": "constant-loss",
    "does not require grad and does not have a grad_fn": "constant-loss",
    "loss must return (mean loss": "loss-is-no-number",
    "loss must be one number": "loss-is-no-number",
    "weight of a micro-batch must be": "loss-is-no-number",
    "must step without a closure": "optimizer-needs-closure",
    "must belong to one optimizer": "two-optimizers",
    "parameters appear in more than one parameter group": "two-optimizers",
    "optimizer got an empty parameter list": "nothing-to-train",
    "must hold a parameter that requires a gradient": "nothing-to-train",
    "must give each trainable parameter to an optimizer": "no-optimizer",
    "must be fp32, but got": "half-precision-parameter",
    "out of memory": "does-not-fit",
    "can't allocate memory": "does-not-fit",
    "must return the objective": "objective-missing",
}
PHASES = {"build": "build-fails", "train": "training-fails", "evaluate": "evaluation-fails", "done": "training-fails"}
MOST = 5  # parameters that one finding names


def name_error(error: BaseException, phase: str) -> str:
    """Return the name of the kind of finding for `error`, which was raised in `phase`."""
    if isinstance(error, Diverged) and error.kind == "objective":
        return "objective-not-finite"
    text = str(error)
    return next((name for words, name in MESSAGES.items() if words in text), PHASES[phase])


def find_error(trial: ObservedTrial) -> list[Finding]:
    """Return a finding with the error that the task raised and its line, and findings that explain it."""
    if trial.error is None:
        return []
    name = name_error(trial.error, trial.phase)
    structure = find_structure(trial.task)
    if trial.phase == "build" and any(finding.severity == "error" for finding in structure):
        return structure
    if name == "training-fails" and _are_skipped(trial):
        return structure
    lines = str(trial.error).splitlines()
    where = find_user_frame(trial.stack) or type(trial.task).__name__
    severity: Severity | None = "error" if name == "does-not-fit" else None
    return [
        *structure,
        make_finding(name, where, f"{type(trial.error).__name__}: {lines[0] if lines else ''}", severity),
    ]


def find_structure(task: Task[Any]) -> list[Finding]:
    """Return the findings about the modules and optimizers that `build` made, or none if one of both is no dict."""
    if not hasattr(task.modules, "items") or not hasattr(task.optimizers, "items"):
        return []
    return [*_find_owners(task), *_find_dtypes(task)]


def _find_owners(task: Task[Any]) -> Iterator[Finding]:
    named = get_named_parameters(task.modules)
    names = {id(parameter): name for name, parameter in named.items()}
    owners: dict[int, list[str]] = {}
    for key, optimizer in task.optimizers.items():
        for index, parameter in enumerate(get_parameters(optimizer)):
            owners.setdefault(id(parameter), []).append(key)
            if id(parameter) not in names:
                shape = "lazy" if is_lazy(parameter) else f"of shape {tuple(parameter.shape)}"
                yield make_finding("outside-modules", f"{key}[{index}]", f"a parameter {shape} that no module has")
    for name, parameter in named.items():
        keys = owners.get(id(parameter), [])
        if len(keys) > 1:
            yield make_finding("two-optimizers", name, f"optimizers {' and '.join(map(repr, keys))} have it")
    loose = [name for name, p in named.items() if p.requires_grad and id(p) not in owners]
    yield from make_group("no-optimizer", loose, "trainable, but in no optimizer")
    if task.optimizers and named and not any(named[names[i]].requires_grad for i in owners if i in names):
        yield make_finding("nothing-to-train", type(task).__name__, f"0 of {len(named)} parameters are trained")


def _find_dtypes(task: Task[Any]) -> Iterator[Finding]:
    half: dict[str, list[str]] = {}
    for name, parameter in get_named_parameters(task.modules).items():
        if parameter.requires_grad and parameter.dtype in (torch.float16, torch.bfloat16):
            half.setdefault(str(parameter.dtype).removeprefix("torch."), []).append(name)
    for dtype, names in half.items():
        yield from make_group("half-precision-parameter", names, f"{len(names)} parameters in {dtype}")


def make_group(kind: str, names: Sequence[str], figure: str, severity: Severity | None = None) -> list[Finding]:
    """Return one finding about all of `names`, or none if there is no name."""
    if not names:
        return []
    more = f" and {len(names) - MOST} more" if len(names) > MOST else ""
    return [make_finding(kind, ", ".join(names[:MOST]) + more, figure, severity)]


def find_flow(trial: ObservedTrial) -> list[Finding]:
    """Return the findings about the gradients of `trial`, which may have ended with an error."""
    if trial.trainer is None:
        return []
    late = _find_late_parameters(trial)
    structure = [own for own in find_structure(trial.task) if own.subject not in {other.subject for other in late}]
    findings = [*structure, *late, *_find_bypasses(trial)]
    applied = sum(record.outcomes.get("applied", 0) for record in trial.updates.values())
    if trial.is_empty:
        return [*findings, make_finding("no-batches", "train_batches", "0 micro-batches in an epoch")]
    if applied and (trial.error is None or name_error(trial.error, trial.phase) == "constant-loss"):
        findings += _find_missing(trial)
        findings += _find_idle_optimizers(trial)
    findings += _find_spoiled(trial)
    return findings


def _find_late_parameters(trial: ObservedTrial) -> list[Finding]:
    owned = {id(p) for optimizer in trial.task.optimizers.values() for p in get_parameters(optimizer)}
    late = [name for name, p in trial.trainable().items() if name not in trial.named or trial.named[name] is not p]
    return make_group(
        "created-after-optimizer",
        [name for name in late if id(trial.trainable()[name]) not in owned],
        f"absent after build, present after {trial.windows} windows",
    )


def _find_bypasses(trial: ObservedTrial) -> Iterator[Finding]:
    """Yield a finding for each operation of the updater that the task does itself."""
    for key, steps in trial.steps_outside.items():
        if steps:
            yield make_finding("steps-outside-update", key, f"{steps} steps in {trial.windows} windows")
    for name in sorted(trial.backward_in_loss):
        yield make_finding("backward-in-loss", f"update {name!r}", "the loss changes gradients while it is computed")
    for name in sorted(trial.dropped_in_loss):
        yield make_finding("gradients-dropped-in-loss", f"update {name!r}", "gradients are gone after the next loss")
    for name, figure in trial.rates_in_loss.items():
        yield make_finding("rate-changes-in-loss", f"update {name!r}", figure)
    for line, figure in trial.broadcasts.items():
        yield make_finding("targets-broadcast", line, figure)
    for name, record in trial.updates.items():
        if record.repeated:
            figure = f"{record.calls} updates in {trial.windows} windows"
            yield make_finding("window-updated-twice", f"update {name!r}", figure)
        if trial.windows and not record.calls:
            yield make_finding("skips-windows", f"update {name!r}", f"0 updates in {trial.windows} windows")


def _find_missing(trial: ObservedTrial) -> list[Finding]:
    """Return a finding for each reason why modules and parameters have no gradient."""
    seen = trial.gradients
    findings: list[Finding] = []
    reasons: dict[str, list[str]] = {}
    for name, record in seen.items():
        if not record.seen:
            reasons.setdefault(_explain_missing(trial, name), []).append(name)
    for reason, names in reasons.items():
        severity: Severity | None = "warning" if trial.gradient_check == "skip" else None  # it is meant, for now
        figure = f"no gradient in {trial.windows} windows"
        findings += make_group(reason, _merge_names(names, seen), figure, severity)
    zero = [name for name, record in seen.items() if record.seen and not record.largest and not record.non_finite]
    findings += make_group("zero-gradient", _merge_names(zero, seen), f"gradient of 0 in {trial.windows} windows")
    dead = {*zero, *(name for names in reasons.values() for name in names)}
    for key in trial.task.modules if trial.gradient_check != "skip" else ():
        own = [name for name in seen if name.startswith(f"{key}.")]
        if own and dead >= {*own} and not _is_explained(findings, key):
            findings = [finding for finding in findings if finding.subject != key]
            findings.append(make_finding("module-without-gradient", key, f"{len(own)} parameters without a gradient"))
    return findings


def _is_explained(findings: Sequence[Finding], key: str) -> bool:
    names = [name for finding in findings if finding.severity == "error" for name in finding.subject.split(", ")]
    return any(name == key or name.startswith(f"{key}.") for name in names)


def _explain_missing(trial: ObservedTrial, name: str) -> str:
    """Return the kind of finding that says why the parameter `name` gets no gradient."""
    path = name.rpartition(".")[0]
    record = trial.forwards.get(path)
    if record is None or not record.calls:
        # A part that is never called may be used through its parent, as attention uses its projection.
        return "unused-module" if record is not None and _is_whole(trial, path) else "unused-parameter"
    if not record.differentiable:
        return "module-under-no-grad"
    return "unused-parameter" if record.arrived else "module-behind-detach"


def _is_whole(trial: ObservedTrial, path: str) -> bool:
    return not any(r.seen for name, r in trial.gradients.items() if name.startswith(f"{path}."))


def _merge_names(names: Sequence[str], every: Any) -> list[str]:
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


def _find_idle_optimizers(trial: ObservedTrial) -> Iterator[Finding]:
    """Yield a finding for each optimizer whose updates change no parameter although it has gradients."""
    by_id = {id(p): name for name, p in trial.named.items()}
    for key, optimizer in trial.task.optimizers.items():
        parameters = [p for p in get_parameters(optimizer) if id(p) in trial.initial and not is_lazy(p)]
        names = [by_id[id(p)] for p in parameters if id(p) in by_id]
        if not any(trial.gradients[name].largest for name in names if name in trial.gradients):
            continue
        if any(not torch.equal(trial.initial[id(p)], p.detach()) for p in parameters):
            continue
        rates = {float(group.get("lr", math.nan)) for group in optimizer.param_groups}
        applied = max(record.outcomes.get("applied", 0) for record in trial.updates.values())
        severity: Severity = "error" if rates == {0.0} and not trial.task.schedulers else "warning"
        figure = f"{len(parameters)} parameters unchanged by {applied} updates, learning rate {_format(rates)}"
        yield make_finding("update-changes-nothing", f"optimizer {key!r}", figure, severity)


def _find_spoiled(trial: ObservedTrial) -> Iterator[Finding]:
    for name, record in trial.updates.items():
        skipped = record.outcomes.get("skipped", 0)
        if not skipped:
            if record.outcomes.get("empty", 0) == record.calls and record.calls and trial.error is None:
                yield _describe_empty(name, record.reasons, record.calls)
            continue
        severity: Severity = "error" if skipped == record.calls else "warning"
        figure = f"{skipped} of {record.calls} windows skipped in fp32"
        if any(not math.isfinite(loss) for loss in record.losses):
            yield make_finding("non-finite-loss", f"update {name!r}", figure, severity)
        else:
            spoiled = [key for key, own in trial.gradients.items() if own.non_finite]
            yield from make_group("non-finite-gradient", spoiled or [f"update {name!r}"], figure, severity)


def _describe_empty(name: str, reasons: set[str], calls: int) -> Finding:
    if "no gradient" in reasons:
        return make_finding(
            "constant-loss", f"update {name!r}", f"none of its parameters got a gradient in {calls} updates"
        )
    return make_finding("no-batches", f"update {name!r}", f"{calls} windows without weight")


def _are_skipped(trial: ObservedTrial) -> bool:
    return any(record.outcomes.get("skipped") for record in trial.updates.values())


def _format(rates: set[float]) -> str:
    return ", ".join(f"{rate:g}" for rate in sorted(rates))
