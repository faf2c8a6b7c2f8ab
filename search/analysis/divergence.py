"""Analysis of diverged trials: by precision, region of the search space, kind and first epoch."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from optuna.trial import FrozenTrial

from searchlight.search.analysis.regions import Region, find_region
from searchlight.search.study.trial import get_outcome


@dataclass(frozen=True)
class Divergence:
    """The diverged trials of one precision, or of all.

    Attributes:
        precision: The precision. None: all trials.
        diverged: The number of diverged trials.
        trials: The number of all trials, without failed and interrupted ones, whose end is unknown.
        region: The region that separates diverged trials best. None: no region is clear.
        kinds: The number of trials by kind of divergence, the most frequent first. See docs/tasks.md.
        first_epoch: The earliest epoch in which a trial diverged.
    """

    precision: str | None
    diverged: int
    trials: int
    region: Region | None
    kinds: dict[str, int]
    first_epoch: int | None

    def __str__(self) -> str:
        text = f"{self.precision or 'all'} {self.diverged} of {self.trials}"
        if self.region is not None:
            text += f", {self.region}"
        if self.kinds:
            text += "; " + ", ".join(f"{kind} {count}" for kind, count in self.kinds.items())
        return text + (f"; first in epoch {self.first_epoch}" if self.first_epoch else "")


def find_divergence(trials: Sequence[FrozenTrial]) -> list[Divergence]:
    """Return the diverged trials, for each precision if it is searched. The list is empty if no trial diverged.

    If no single precision has enough trials for a region, all trials are analyzed together.
    """
    known = [trial for trial in trials if get_outcome(trial) in ("completed", "pruned", "diverged")]
    if not any(map(_is_diverged, known)):
        return []
    groups: defaultdict[str | None, list[FrozenTrial]] = defaultdict(list)
    for trial in known:
        groups[trial.params.get("precision")].append(trial)
    divergences = [_summarize_divergence(precision, groups[precision]) for precision in sorted(groups, key=str)]
    if len(divergences) > 1 and not any(divergence.region for divergence in divergences):
        together = _summarize_divergence(None, known)
        divergences += [together] if together.region else []
    return divergences


def _summarize_divergence(precision: str | None, trials: Sequence[FrozenTrial]) -> Divergence:
    diverged = [trial for trial in trials if _is_diverged(trial)]
    seen = [trial.user_attrs.get("divergence") or {"kind": "other", "epoch": 0} for trial in diverged]
    kinds = dict(Counter(details["kind"] for details in seen).most_common())
    first = min((details["epoch"] for details in seen if details["epoch"]), default=None)
    return Divergence(precision, len(diverged), len(trials), find_region(trials, _is_diverged), kinds, first)


def _is_diverged(trial: FrozenTrial) -> bool:
    return get_outcome(trial) == "diverged"
