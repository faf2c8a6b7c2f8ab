"""The kinds of findings of an audit, each with its severity and its remedy."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


class Kind(NamedTuple):
    """A kind of finding. `severity` is the usual one; a finding may have another one."""

    severity: Severity
    remedy: str


# Each kind has a section in docs/preflight.md, which a test checks.
GRADIENT_FLOW = {
    "build-fails": Kind("error", "Correct build: no trial can start."),
    "training-fails": Kind("error", "Correct the line that is named: no trial gets beyond its first windows."),
    "no-batches": Kind("error", "Let train_batches yield micro-batches, each with a weight above 0."),
    "nothing-to-train": Kind("error", "Set requires_grad=True, and give the parameters to an optimizer."),
    "no-optimizer": Kind("error", "Give the parameter to an optimizer, or set requires_grad=False."),
    "two-optimizers": Kind("error", "Give each parameter to one optimizer only."),
    "created-after-optimizer": Kind(
        "error", "Create all parameters in build before the optimizer; initialize lazy ones with a first batch there."
    ),
    "outside-modules": Kind(
        "warning", "Add it to self.modules: else it is in no checkpoint, and ranks do not share it."
    ),
    "half-precision-parameter": Kind("error", "Keep parameters in fp32: module.float(). Autocast does the rest."),
    "optimizer-needs-closure": Kind("error", "Use an optimizer that steps without a closure."),
    "module-without-gradient": Kind("error", "Use the module in the loss, or freeze it: requires_grad_(False)."),
    "module-under-no-grad": Kind("error", "Remove no_grad or inference_mode around it, or freeze the module."),
    "module-behind-detach": Kind("error", "Remove detach(), item() or numpy() behind it, or freeze the module."),
    "unused-module": Kind("warning", "Freeze the module or remove it, unless other batches use it."),
    "unused-parameter": Kind("warning", "Freeze the parameter or remove it, unless other batches use it."),
    "zero-gradient": Kind("warning", "Look for a dead activation, a factor of 0, or weights that all start at 0."),
    "non-finite-gradient": Kind("error", "Keep sqrt, log, norm and division away from 0, e.g. by an epsilon inside."),
    "non-finite-loss": Kind("error", "Keep log, exp and division in their range; look at the first batch."),
    "constant-loss": Kind("error", "Return a loss that is computed from the outputs of self.modules."),
    "loss-term-without-gradient": Kind("warning", "Remove detach() or no_grad() from the term, or leave the term out."),
    "constant-loss-term": Kind("note", "Leave the term out: it trains nothing."),
    "loss-is-no-number": Kind("error", "Return (mean loss, weight): a tensor with one element, and a number."),
    "graph-freed": Kind("error", "Compute the shared part again in each loss, or detach it in the second one."),
    "changed-in-place": Kind("error", "Replace the in-place operation, e.g. x = x + 1 for x += 1."),
    "reentrant-checkpoint": Kind("error", "Use torch.utils.checkpoint.checkpoint(..., use_reentrant=False)."),
    "update-changes-nothing": Kind("warning", "Look for a learning rate of 0, or one that fp32 rounds away."),
    "steps-outside-update": Kind("error", "Leave optimizer.step() to the updater: it steps once per window."),
    "backward-in-loss": Kind("error", "Return the loss and leave backward() to the updater."),
    "rate-changes-in-loss": Kind("warning", "Leave scheduler.step() out: add the scheduler to self.schedulers."),
    "targets-broadcast": Kind("warning", "Give predictions and targets one shape: squeeze(1), or unsqueeze(1)."),
    "gradients-dropped-in-loss": Kind("error", "Leave zero_grad() out: the updater clears gradients between windows."),
    "window-updated-twice": Kind("warning", "Update each window once, unless several passes over it are meant."),
    "skips-windows": Kind("warning", "Pass each window to its updaters in update(window)."),
}
EXACTNESS = {
    "weight-is-not-the-mean": Kind("error", "Return as weight the number of elements that the mean was taken over."),
    "loss-is-a-sum": Kind("error", "Return the mean over the micro-batch, and the number of its elements as weight."),
    "divides-by-accumulation": Kind("error", "Return the plain mean: the updater divides by the window's weight."),
    "depends-on-batch": Kind("note", "Expected of batch norm and contrastive losses: accumulation changes the result."),
    "random-loss": Kind("note", "Expected of dropout and sampling: the window was compared without it, or not at all."),
    "stateful-loss": Kind("note", "Expected of running statistics: the same batch gives another loss the second time."),
    "ranks-differ": Kind("error", "Return (mean, weight) from evaluate, and give each sample to one rank."),
}
PRECISION = {
    "mode-unsupported": Kind("warning", "Leave the precision out: --search precision=..."),
    "mode-without-gain": Kind("warning", "Leave the precision out: it saves neither time nor memory here."),
    "mode-does-not-run": Kind("warning", "Look for autocast(enabled=False), float() or custom functions."),
    "mode-fails": Kind("error", "Correct the operation, or leave the precision out: --search precision=..."),
    "mode-not-finite": Kind("error", "Compute the operation in fp32, or scale what goes into it."),
    "half-precision-constant": Kind("error", "Use torch.finfo(x.dtype).min in masks: half precision ends at 65504."),
    "mode-overflows": Kind("warning", "Compute the operation in fp32: x.float(), or scale its input."),
    "mode-underflows": Kind("warning", "Raise the initial loss scale: --set loss_scale=..."),
    "mode-inaccurate": Kind("warning", "Compute reductions, norms and softmax in fp32, or leave the precision out."),
}
DETERMINISM_AND_DATA = {
    "not-reproducible": Kind("warning", "Draw random numbers from torch, numpy or self.context.generator only."),
    "depends-on-earlier-trial": Kind("warning", "Keep no state in modules or classes: make it in build."),
    "overlapping-shards": Kind("error", "Split with self.context.shard: each sample belongs to one rank."),
    "loss-changes-data": Kind("warning", "Change a copy of the batch, e.g. x = x - mean for x -= mean."),
    "order-never-changes": Kind("warning", "Shuffle each epoch, as self.context.shard does."),
    "repeated-samples": Kind("note", "Expected of sampling with replacement and of short sequences."),
    "evaluation-in-training": Kind("warning", "Take the samples out of the training data."),
    "noisy-evaluation": Kind("warning", "Evaluate on more samples, or with fixed random numbers."),
    "evaluation-fails": Kind("error", "Correct evaluate: every trial would fail at the end of its first epoch."),
    "evaluation-changes-weights": Kind("error", "Change no parameter in evaluate."),
    "objective-missing": Kind("error", "Return the objective from evaluate."),
    "objective-not-finite": Kind("error", "Return a finite objective: every trial would end as diverged."),
}
COST = {
    "does-not-fit": Kind("warning", "Lower the upper end of the range, or raise accumulation instead of the batch."),
    "config-refused": Kind("warning", "Narrow the range: the task refuses this corner of the space."),
    "config-fails": Kind("warning", "Narrow the range, or correct the task for this corner of the space."),
    "evaluation-dominates": Kind("note", "Evaluate on fewer samples."),
    "start-dominates": Kind("note", "Keep in self.context.cache what build loads or prepares."),
}
LIMITS = {
    "not-audited": Kind("note", "The audit does not cover this part."),
}
KINDS: dict[str, Kind] = {**GRADIENT_FLOW, **EXACTNESS, **PRECISION, **DETERMINISM_AND_DATA, **COST, **LIMITS}


@dataclass(frozen=True)
class Finding:
    """A finding of an audit.

    Attributes:
        name: The kind, a key of KINDS.
        subject: The parameter, module, mode or part of the task.
        figure: The measured value, or the message of an error.
        where: The configs that have the finding, or "" for the defaults.
    """

    severity: Severity
    name: str
    subject: str
    figure: str
    remedy: str
    where: str = ""

    def __str__(self) -> str:
        where = f" ({self.where})" if self.where else ""
        return f"{self.severity} {self.name}: {self.subject}: {self.figure}{where}. {self.remedy}"


def make_finding(name: str, subject: str, figure: str, severity: Severity | None = None, where: str = "") -> Finding:
    """Return a finding of kind `name`."""
    kind = KINDS[name]
    return Finding(severity or kind.severity, name, subject, figure, kind.remedy, where)


def from_dict(fields: Mapping[str, Any]) -> Finding:
    """Return the finding that `dataclasses.asdict` wrote."""
    return Finding(**fields)


def sort_findings(findings: Iterable[Finding]) -> list[Finding]:
    """Return the first finding of each kind about each subject, the most severe first."""
    first: dict[tuple[str, str], Finding] = {}
    for finding in findings:
        first.setdefault((finding.name, finding.subject), finding)
    return sorted(first.values(), key=lambda finding: SEVERITIES.index(finding.severity))


def has_errors(findings: Iterable[Finding]) -> bool:
    """Return whether a search with these findings must not start."""
    return any(finding.severity == "error" for finding in findings)
