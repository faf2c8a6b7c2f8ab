"""Detection of a diverged loss: far above its initial size for several windows.

Other trainers detect it for one kind of loss: fastai's range test ends at 4 times the best smoothed loss, axolotl's
watchdog after 3 steps above a limit that the user sets, LLM Foundry's KillLossSpike after several above twice the
running mean. Here, a loss may have any shape: negative, zero at first, noise around zero, or rising because the
trial learns. A false alarm ends a good trial and a late one costs seconds, so the limit is high.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.parameter import is_lazy

from searchlight.trainables.context import Context
from searchlight.trainables.precision import Diverged
from searchlight.trainables.training.epoch_metrics import EpochTotals
from searchlight.trainables.update import UpdateReport
from searchlight.trainables.update.parameters import get_local

FIRST = 5  # losses that determine the size of this trial's loss
IN_A_ROW = 5  # a single spike is no divergence
SMALLEST = 1.0  # lower bound of the size, for losses that begin near zero
MAX_SPOILED_SHARE = 0.5  # of an epoch's windows
AT_MOST = 100.0  # upper bound of the size, as a multiple of the first loss


@dataclass
class LossDivergenceDetector:
    """Watches the losses of one updater, which are the same on all ranks.

    The reference size is the second smallest of the first five losses: one may be near zero by chance, and the later
    ones may already diverge. After one bad update, all but the first may be large, so the size is at most a multiple of
    the first loss. A loss that rises while the objective improves rises by design, as returns or losses under a
    curriculum do: it then becomes the reference.

    Attributes:
        first: The first losses. Losses of exactly 0 are ignored.
        size: The reference size of this trial's losses, in absolute value.
        largest: The largest loss that did not exceed the limit.
        above: The number of consecutive losses above the limit.
        best: The lowest cost of the trial's evaluations.
    """

    first: list[float] = field(default_factory=list)
    size: float = 0.0
    largest: float = 0.0
    above: int = 0
    best: float | None = None

    def add(self, loss: float, rise: float) -> bool:
        """Count the loss of an applied window. Return whether too many in a row exceed `rise` times the size."""
        if len(self.first) < FIRST:
            if loss:
                self.first.append(loss)
                usual = sorted(abs(loss) for loss in self.first)[:2][-1]
                self.size = max(SMALLEST, min(usual, AT_MOST * max(SMALLEST, abs(self.first[0]))))
            return False
        if loss > rise * self.size:
            self.above += 1
        else:
            self.above = 0
            self.largest = max(self.largest, loss)
        return self.above >= IN_A_ROW

    def add_evaluation(self, cost: float) -> None:
        """Count an evaluation.

        Args:
            cost: The objective, negated if it is maximized.
        """
        if self.best is not None and cost < self.best:
            self.size = max(self.size, self.largest)
        self.best = cost if self.best is None else min(cost, self.best)


def check_skipped_windows(updates: Collection[EpochTotals], epoch: int, steps: int, is_last: bool) -> None:
    """Check whether enough windows of an epoch were applied.

    In fp16, windows with a finite loss may be skipped while the loss scale is lowered, in a short epoch all of them.

    Args:
        updates: The totals of each update. One of several may fail while the others train.
        steps: How many updates were applied in the whole trial.
        is_last: Whether the trial ends with this epoch.

    Raises:
        Diverged: None was applied, or too many were skipped.
    """
    applied = sum(totals.applied for totals in updates)
    skipped = sum(totals.skipped for totals in updates)
    spoiled = sum(totals.spoiled for totals in updates)
    none_applied = not applied and (spoiled > 0 or (is_last and not steps))
    if skipped and (none_applied or spoiled > MAX_SPOILED_SHARE * (applied + skipped)):
        reason = f"{skipped} of {applied + skipped} windows in epoch {epoch} were not finite and skipped"
        raise Diverged(reason, agreed=True, kind="skips")


def find_non_finite(weights: Mapping[str, Tensor], others: Mapping[str, Tensor] | None = None) -> list[str]:
    """Return the names of weights with an infinity or NaN, and of `others` with a NaN: masks may hold infinities.

    Of sharded parameters, check this rank's part.

    Args:
        weights: What is trained, by name.
        others: Buffers and frozen parameters, by name. All are on one device, which is synchronized once.
    """
    good = {name: get_local(weight).isfinite().all() for name, weight in weights.items()}
    good |= {name: ~_get_values(get_local(other)).isnan().any() for name, other in (others or {}).items()}
    flags = torch.stack(list(good.values())).tolist() if good else []
    return [name for name, is_good in zip(good, flags, strict=True) if not is_good]


def _get_values(buffer: Tensor) -> Tensor:
    """Return the elements of a buffer, of a sparse one those that it has."""
    if buffer.layout == torch.sparse_coo:
        return buffer.coalesce().values()
    return buffer if buffer.layout == torch.strided else buffer.values()


def find_non_finite_parts(modules: Mapping[str, Module]) -> list[str]:
    """Return the names of parameters and buffers of `modules` that are not finite, as `find_non_finite` judges them."""
    found = []
    for key, module in modules.items():
        parameters = {name: each for name, each in module.named_parameters() if not is_lazy(each)}
        buffers = {name: each for name, each in module.named_buffers() if not is_lazy(each)}
        weights = {name: parameter for name, parameter in parameters.items() if parameter.requires_grad}
        others = {name: parameter for name, parameter in parameters.items() if name not in weights}
        found += [f"{key}.{name}" for name in find_non_finite(weights, {**others, **buffers})]
    return found


def check_finite(modules: Mapping[str, Module], context: Context, when: str, ignored: Collection[str]) -> None:
    """Check parameters and buffers on all ranks. Buffers may differ between ranks.

    Args:
        ignored: The names of those that were not finite before training, since the task made them so.

    Raises:
        Diverged: A parameter or a buffer is not finite on some rank. All ranks raise it.
    """
    found = (name for name in find_non_finite_parts(modules) if name not in ignored)
    for name in context.gather(next(found, None)):
        if name is not None:
            raise Diverged(f"{name} is not finite {when}", agreed=True, kind="weights")


def check_weights(weights: Mapping[str, Tensor], context: Context, step: int, report: UpdateReport) -> None:
    """Check the weights after the first skipped window: no skipped window changes them.

    Raises:
        Diverged: A weight is not finite, so that every window would be skipped.
    """
    trained = {name: weight for name, weight in weights.items() if weight.requires_grad}
    found = next(iter(find_non_finite(trained)), None)
    weight = next((name for name in context.gather(found) if name is not None), None)
    if weight is not None:
        where = f"at step {step} the loss is {report.loss:g}, the gradient norm {report.grad_norm:g}"
        raise Diverged(f"{weight} is not finite: {where}", agreed=True, kind="weights")
