"""What is new in a trial since an observer last saw it, in a running search and after a resume alike."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from optuna.trial import FrozenTrial

from searchlight.search.study.datasets import get_datasets
from searchlight.search.study.trial import get_outcome, get_reports, get_segments

Report = Mapping[str, Any]  # see `searchlight.search.study.trial.get_reports`


class SeenTrial(NamedTuple):
    """What an observer has seen of a trial; by default nothing.

    Attributes:
        num_reports: The number of reports.
        last_epoch: The last epoch that has a report.
        outcome: How the trial ended, or "".
    """

    has_begun: bool = False
    datasets: Sequence[Mapping[str, str]] = ()
    num_reports: int = 0
    last_epoch: int = 0
    outcome: str = ""


UNSEEN = SeenTrial()


class TrialChanges(NamedTuple):
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
    datasets, (reports, num_reports) = get_datasets(trial), _find_new_reports(trial, seen)
    if trial.state.is_finished():
        outcome, reason = get_outcome(trial), trial.user_attrs.get("reason", "")
    else:
        outcome, reason = ("interrupted", _describe_interruption(trial)) if is_over else ("", "")
    return TrialChanges(
        not seen.has_begun,
        datasets if datasets != seen.datasets else [],
        reports,
        outcome if outcome != seen.outcome else "",
        reason,
        SeenTrial(True, datasets, num_reports, max(seen.last_epoch, reports[-1][0] if reports else 0), outcome),
    )


def _describe_interruption(trial: FrozenTrial) -> str:
    segments = get_segments(trial)
    has_failed = bool(segments) and segments[-1].get("failed", False)  # and ends the search, which says why
    return "it failed" if has_failed else "the search was stopped"


def _find_new_reports(trial: FrozenTrial, seen: SeenTrial) -> tuple[Sequence[tuple[int, Report]], int]:
    """Return the new reports of `trial` with their epochs, in the order in which they were made, and the number of all.

    A trial whose newest checkpoint cannot be read repeats epochs. If it diverges in one of them, a new report may
    replace the one of that epoch. An observer that has seen the former report finds it as the last one.
    """
    attributes = trial.user_attrs
    if "divergence" not in attributes:  # two common cases without a look at all reports
        num_reports, epoch = len([name for name in attributes if name.startswith("report/")]), seen.last_epoch + 1
        if num_reports == seen.num_reports:
            return [], num_reports
        if num_reports == seen.num_reports + 1 and (report := attributes.get(f"report/{epoch}")) is not None:
            return [(epoch, report)], num_reports
    reports = list(get_reports(trial).items())
    if "divergence" in attributes:
        reports += [(epoch, report) for epoch, report in reports if report.get("repeated")]
    return list(dict(reports[seen.num_reports :]).items()), len(reports)
