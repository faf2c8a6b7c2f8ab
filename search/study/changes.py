"""What is new in a trial since an observer last saw it, in a running search and after a resume alike."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optuna.trial import FrozenTrial

from searchlight.search.study.datasets import get_datasets
from searchlight.search.study.trial import get_outcome, get_reports

Report = Mapping[str, Any]  # see `searchlight.search.study.trial.get_reports`


@dataclass(frozen=True)
class SeenTrial:
    """What an observer has seen of a trial; by default nothing.

    Attributes:
        num_reports: The number of reports.
        outcome: How the trial ended, or "".
    """

    has_begun: bool = False
    datasets: Sequence[Mapping[str, str]] = ()
    num_reports: int = 0
    outcome: str = ""


UNSEEN = SeenTrial()


@dataclass(frozen=True)
class TrialChanges:
    """What is new in a trial.

    Attributes:
        has_begun: Whether the start of the trial is new.
        datasets: The data sets of the trial, if it named other ones before or none.
        reports: The new reports, each with its epoch.
        outcome: How the trial ended, or "" if it has not, or if its end was seen.
        reason: Why it ended.
        seen: What the observer has seen by now.
    """

    has_begun: bool
    datasets: Sequence[dict[str, str]]
    reports: Sequence[tuple[int, Report]]
    outcome: str
    reason: str
    seen: SeenTrial


def find_changes(trial: FrozenTrial, seen: SeenTrial = UNSEEN, is_over: bool = False) -> TrialChanges:
    """Return what is new in `trial`, without anything if its driver died before it began.

    A trial that has not ended is interrupted if the search `is_over`.
    """
    if "config" not in trial.user_attrs:
        return TrialChanges(False, [], [], "", "", seen)
    reports, datasets = _list_reports(trial), get_datasets(trial)
    if trial.state.is_finished():
        outcome, reason = get_outcome(trial), trial.user_attrs.get("reason", "")
    else:
        outcome, reason = ("interrupted", "the search was stopped") if is_over else ("", "")
    return TrialChanges(
        not seen.has_begun,
        datasets if datasets != seen.datasets else [],
        reports[seen.num_reports :],
        outcome if outcome != seen.outcome else "",
        reason,
        SeenTrial(True, datasets, len(reports), outcome),
    )


def _list_reports(trial: FrozenTrial) -> list[tuple[int, Report]]:
    """Return the reports of `trial` with their epochs, in the order in which they were made.

    A trial whose newest checkpoint cannot be read repeats epochs. If it diverges in one of them, the new report
    replaces the one of that epoch, and is the last one.
    """
    reports = list(get_reports(trial).items())
    diverged_at = trial.user_attrs.get("divergence", {}).get("epoch")
    return reports + [(epoch, report) for epoch, report in reports[:-1] if epoch == diverged_at]
