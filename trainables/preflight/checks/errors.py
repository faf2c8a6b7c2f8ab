"""What a task raised, as a finding with the name of the fault and the line of the task."""

import os

from searchlight.trainables.cuda import SYNCHRONOUS
from searchlight.trainables.device_errors import breaks_device, is_out_of_memory
from searchlight.trainables.precision import Diverged
from searchlight.trainables.preflight.checks.structure import find_structure
from searchlight.trainables.preflight.findings import (
    Finding,
    Kind,
    Severity,
    declare_kinds,
    describe_error,
    make_finding,
)
from searchlight.trainables.preflight.observation import ObservedTrial
from searchlight.trainables.registry import find_user_frame

declare_kinds(
    "Gradient flow",
    Kind("build-fails", "error", "Correct build: no trial can start."),
    Kind("training-fails", "error", "Correct the line that is named: no trial gets beyond its first windows."),
    Kind("optimizer-needs-closure", "error", "Use an optimizer that steps without a closure."),
    Kind("loss-is-no-number", "error", "Return (mean loss, weight): a tensor with one element, and a number."),
    Kind("graph-freed", "error", "Compute the shared part again in each loss, or detach it in the second one."),
    Kind("changed-in-place", "error", "Replace the in-place operation, e.g. x = x + 1 for x += 1."),
    Kind("reentrant-checkpoint", "error", "Use torch.utils.checkpoint.checkpoint(..., use_reentrant=False)."),
)
declare_kinds(
    "Determinism and data",
    Kind("evaluation-fails", "error", "Correct evaluate: every trial would fail at the end of its first epoch."),
    Kind("objective-missing", "error", "Return the objective from evaluate."),
    Kind("objective-not-finite", "error", "Return a finite objective: every trial would end as diverged."),
)
declare_kinds(
    "Cost",
    Kind("does-not-fit", "warning", "Lower the upper end of the range, or raise accumulation instead of the batch."),
)

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
    "must return the objective": "objective-missing",
}
PHASES = {"build": "build-fails", "train": "training-fails", "evaluate": "evaluation-fails", "done": "training-fails"}


def name_error(error: BaseException, phase: str) -> str:
    """Return the name of the kind of finding for `error`, which was raised in `phase`."""
    if isinstance(error, Diverged) and error.kind == "objective":
        return "objective-not-finite"
    if is_out_of_memory(error):
        return "does-not-fit"
    text = str(error)
    return next((name for words, name in MESSAGES.items() if words in text), PHASES[phase])


def has_trained(trial: ObservedTrial) -> bool:
    """Return whether updates were applied, and nothing but a constant loss ended the trial."""
    is_applied = any(record.outcomes["applied"] for record in trial.updates.values())
    if trial.is_empty or not is_applied:
        return False
    return trial.error is None or name_error(trial.error, trial.phase) == "constant-loss"


def find_error(trial: ObservedTrial) -> list[Finding]:
    """Return a finding with the error that the task raised and its line, and findings that explain it."""
    if trial.error is None:
        return []
    name = name_error(trial.error, trial.phase)
    structure = find_structure(trial.task)
    if trial.phase == "build" and any(finding.name == name for finding in structure):
        return structure  # what the trainer has checked after build, with all parameters that it concerns
    if name == "training-fails" and any(record.outcomes["skipped"] for record in trial.updates.values()):
        return structure
    where = find_user_frame(trial.stack) or type(trial.task).__name__
    severity: Severity | None = "error" if name == "does-not-fit" else None
    figure = describe_error(trial.error)
    if breaks_device(trial.error) and os.environ.get(SYNCHRONOUS) != "1":
        figure += f". The line may be a later one: {SYNCHRONOUS}=1 shows the right one"
    raised = make_finding(name, where, figure, severity)
    # A task whose build has raised may be half built.
    return [raised] if trial.phase == "build" else [*structure, raised]
