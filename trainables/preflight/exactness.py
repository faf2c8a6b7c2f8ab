"""The check that several micro-batches give the gradient of one large batch, with the weights of the task."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor, nn

from searchlight.trainables.preflight.findings import Finding, Kind, Severity, declare_kinds, make_finding
from searchlight.trainables.preflight.gradients import (
    ConstantDraws,
    Gradient,
    Loss,
    Prober,
    changed_config,
    combine,
    dot,
    evaluation_mode,
)
from searchlight.trainables.preflight.observation import ObservedTrial
from searchlight.trainables.preflight.samples import (
    count_in_second_dimension,
    count_samples,
    join,
    select,
    select_in_second_dimension,
)

EXACT = 2e-3  # relative error of a gradient that counts as none: fp32 sums in another order
ENOUGH = 12  # samples of a micro-batch that is split
CLEAR = 0.02  # how far a share or a factor must be off to be told
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


declare_kinds(
    "Exactness",
    Kind("weight-is-not-the-mean", "error", "Return as weight the number of elements that the mean was taken over."),
    Kind("loss-is-a-sum", "error", "Return the mean over the micro-batch, and the number of its elements as weight."),
    Kind("divides-by-accumulation", "error", "Return the plain mean: the updater divides by the window's weight."),
    Kind("depends-on-batch", "note", "Expected of batch norm and contrastive losses: accumulation changes the result."),
    Kind("random-loss", "note", "Expected of dropout and sampling: the window was compared without it, or not at all."),
    Kind("stateful-loss", "note", "Expected of running statistics: the same batch gives another loss the second time."),
)


class Split(NamedTuple):
    """A micro-batch, and the gradients of its two parts."""

    whole: Gradient
    parts: tuple[Gradient, Gradient]
    counts: tuple[int, int]

    @property
    def declared(self) -> float:
        """The share of the first part, from 0 to 1, by the weights that the task declares."""
        total = self.parts[0].weight + self.parts[1].weight
        return self.parts[0].weight / total if total else math.nan

    def error(self, first: float, second: float) -> float:
        """Return the distance of the whole from the sum of its parts with these factors, relative to its norm."""
        mixed = combine([(-1.0, self.whole.parts), (first, self.parts[0].parts), (second, self.parts[1].parts)])
        return _norm(mixed) / (self.whole.norm or 1.0)

    def add_parts(self) -> Gradient:
        """Return the sum of the two parts."""
        one, two = self.parts
        return Gradient(one.loss + two.loss, one.weight + two.weight, combine([(1.0, one.parts), (1.0, two.parts)]))

    def fit(self) -> tuple[float, float]:
        """Return the factors of the two parts whose sum is closest to the whole, by least squares.

        Parallel gradients, such as those of a single parameter, fit in many ways: return the shares of the samples.
        """
        one, two, whole = self.parts[0].parts, self.parts[1].parts, self.whole.parts
        a, b, c = dot(one, one), dot(one, two), dot(two, two)
        x, y = dot(one, whole), dot(two, whole)
        det = a * c - b * b
        if det <= 1e-6 * a * c:
            return self.counts[0] / sum(self.counts), self.counts[1] / sum(self.counts)
        return (x * c - y * b) / det, (y * a - x * b) / det


def find_inexact(trial: ObservedTrial, matters: bool, is_over: Callable[[], bool] = lambda: False) -> list[Finding]:
    """Return the reasons why a window of micro-batches does not give the gradient of one large batch.

    Args:
        matters: Whether any trial has several micro-batches in an update, or several ranks. If not, a wrong weight is
            a warning instead of an error.
    """
    prober, findings = Prober(trial), list[Finding]()
    for name, record in trial.updates.items():
        for index, (batch, loss) in enumerate(_join_neighbors(prober, name, record.batches)):
            if index and is_over():
                break
            found = _check_update(prober, name, loss, batch, matters)
            findings += found
            if any(finding.name in ("weight-is-not-the-mean", "loss-is-a-sum") for finding in found):
                break
    return [*findings, *_find_division(trial, prober)]


def _check_update(prober: Prober, name: str, loss: Loss, batch: Any, matters: bool) -> list[Finding]:
    subject, modules = f"update {name!r}", prober.task.modules
    first, again, other = (prober.compute(name, loss, batch, seed) for seed in (0, 0, 1))
    findings = []
    if _differ(first, again):
        figure = f"{first.loss:.6g}, then {again.loss:.6g} with the same random numbers"
        findings.append(make_finding("stateful-loss", subject, figure))
    is_random = _differ(first, other)
    if count_samples(batch) < 2:
        return [*findings, make_finding("not-audited", subject, "exactness: a micro-batch has fewer than 2 samples")]
    try:
        splits = [] if is_random else _split(prober, name, loss, batch)
        if not splits or not _are_exact(splits):
            with evaluation_mode(modules):
                draws = is_random and _depends_on_seed(prober, name, loss, batch)
                with ConstantDraws() if draws else nullcontext():
                    still_random = draws and _depends_on_seed(prober, name, loss, batch)
                    calm = [] if still_random else _split(prober, name, loss, batch)
                    proven = _judge(calm, subject, matters) if calm else None
                    if proven is not None and _is_exact_in_second_dimension(prober, name, loss, batch):
                        proven = replace(proven, severity="warning")  # right as long as the first one has one size
        else:
            return findings
    except Exception as error:  # a task may refuse a part of its batch, in its own way
        return [*findings, make_finding("not-audited", subject, f"exactness: {type(error).__name__}: {error}")]
    if is_random:
        change = abs(first.loss - other.loss)
        findings.append(
            make_finding("random-loss", subject, f"{first.loss:.6g}, and {change:.2g} off with another seed")
        )
    if not calm:
        return findings
    if proven is not None:
        return [*findings, proven]
    if not _are_exact(calm) or not is_random:
        has_batch_norm = any(isinstance(part, BATCH_NORMS) for module in modules.values() for part in module.modules())
        by = "its statistics of the batch" if _are_exact(calm) and has_batch_norm else "the other samples"
        worst = max(split.error(split.declared, 1 - split.declared) for split in splits or calm)
        findings.append(make_finding("depends-on-batch", subject, f"by {by}: {worst:.1%} of the gradient"))
    return findings


def _join_neighbors(prober: Prober, name: str, batches: Sequence[tuple[Any, Loss]]) -> Iterator[tuple[Any, Loss]]:
    """Yield pairs of micro-batches as one, or the first of both if they cannot be joined.

    The samples of one micro-batch may be equally long, so that a wrong weight shows only between two.
    """
    for (batch, loss), (other, of_other) in zip(batches[::2], [*batches[1::2], (None, None)], strict=False):
        chosen = _shorten(batch, ENOUGH)
        if loss == of_other:
            with suppress(Exception):  # a task may refuse a larger micro-batch, in its own way
                joined = join(_shorten(batch, ENOUGH // 2), _shorten(other, ENOUGH // 2))
                prober.compute(name, loss, joined)
                chosen = joined
        yield chosen, loss


def _shorten(batch: Any, count: int) -> Any:
    """Return the first samples of `batch`. A few samples are enough for the check and take less time."""
    try:
        return select(batch, range(min(count_samples(batch), count)))
    except TypeError:  # it cannot be split, which is told later
        return batch


def _split(
    prober: Prober,
    name: str,
    loss: Loss,
    batch: Any,
    count: Callable[[Any], int] = count_samples,
    take: Callable[[Any, Sequence[int]], Any] = select,
) -> list[Split]:
    """Return the gradients of `batch` and of its two parts, for two cuts, where `count` and `take` find the samples."""
    samples = count(batch)
    whole, splits = prober.compute(name, loss, batch), []
    for cut in sorted({max(1, samples // 3), samples - max(1, samples // 4)}):
        parts = (take(batch, range(cut)), take(batch, range(cut, samples)))
        one, two = (prober.compute(name, loss, part) for part in parts)
        splits.append(Split(whole, (one, two), (cut, samples - cut)))
    return splits


def _is_exact_in_second_dimension(prober: Prober, name: str, loss: Loss, batch: Any) -> bool:
    """Return whether the samples are in the second dimension, as those of a recurrent network may be."""
    with suppress(Exception):  # a task may refuse a part of its batch, in its own way
        return _are_exact(_split(prober, name, loss, batch, count_in_second_dimension, select_in_second_dimension))
    return False


def _are_exact(splits: list[Split]) -> bool:
    return all(split.error(split.declared, 1 - split.declared) < EXACT for split in splits)


def _judge(splits: list[Split], subject: str, matters: bool) -> Finding | None:
    """Return the finding about the weight, or none. Gradient and loss must both prove it."""
    severity: Severity = "error" if matters else "warning"
    if _are_exact(splits) or not all(math.isfinite(split.whole.norm) and split.whole.norm for split in splits):
        return None
    split = splits[0]
    if _is_sum(splits):
        figure = f"the loss of {sum(split.counts)} samples is that of {split.counts[0]} plus that of {split.counts[1]}"
        return make_finding("loss-is-a-sum", subject, figure, severity)
    fits = [split.fit() for split in splits]
    if not all(split.error(a, b) < EXACT for split, (a, b) in zip(splits, fits, strict=True)):
        return None
    values = [(s.whole.loss, a * s.parts[0].loss + b * s.parts[1].loss) for s, (a, b) in zip(splits, fits, strict=True)]
    if not all(math.isclose(whole, mixed, rel_tol=CLEAR, abs_tol=1e-6) for whole, mixed in values):
        return None
    a = fits[0][0]
    if all(abs(a + b - 1) < CLEAR and a > 0 and b > 0 for a, b in fits):
        figure = (
            f"{split.counts[0]} of {sum(split.counts)} samples have {split.declared:.1%} of the declared weight, "
            f"and {a:.1%} of the loss"
        )
        return make_finding("weight-is-not-the-mean", subject, figure, severity)
    return None


def _is_sum(splits: Sequence[Split]) -> bool:
    """Return whether the two parts have one sum wherever the cut is: a sum over samples, also with a penalty."""
    whole = splits[0].whole
    one, two = [whole, *(split.add_parts() for split in splits)][-2:]  # of two samples, there is one cut
    is_same = _norm(combine([(1.0, one.parts), (-1.0, two.parts)])) < EXACT * whole.norm
    is_off = all(split.error(split.declared, 1 - split.declared) > CLEAR for split in splits)
    return is_same and is_off and math.isclose(one.loss, two.loss, rel_tol=EXACT, abs_tol=1e-6)


def _find_division(trial: ObservedTrial, prober: Prober) -> list[Finding]:
    """Return a finding for each loss that is divided by the accumulation, as the updater already does."""
    findings = []
    for name, record in trial.updates.items():
        for batch, loss in record.batches[:1]:
            values = []
            for accumulation in (1, 4):
                with changed_config(trial.task, accumulation=accumulation):
                    values.append(prober.compute(name, loss, batch).loss)
            if math.isclose(values[0], 4 * values[1], rel_tol=1e-3) and values[1]:
                figure = f"{values[0]:.4g} with accumulation 1, {values[1]:.4g} with accumulation 4"
                findings.append(make_finding("divides-by-accumulation", f"update {name!r}", figure))
    return findings


def _depends_on_seed(prober: Prober, name: str, loss: Loss, batch: Any) -> bool:
    return _differ(*(prober.compute(name, loss, batch, seed) for seed in (0, 1)))


def _differ(first: Gradient, second: Gradient) -> bool:
    mixed = combine([(1.0, first.parts), (-1.0, second.parts)])
    return _norm(mixed) > 1e-5 * (first.norm or 1.0) or first.loss != second.loss


def _norm(parts: Sequence[Tensor]) -> float:
    return math.sqrt(max(0.0, dot(parts, parts)))
