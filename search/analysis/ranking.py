"""Trials in order, best first, although most of them were stopped early."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable

from optuna.trial import FrozenTrial

from search.config import load_config
from search.config.fidelity import UNLIMITED, Unit, cumulative_cost
from search.config.objectives import get_sign
from search.schedulers.factory import create_scheduler
from search.study.record import SearchRecord
from search.study.trial import WITH_RESULT, get_best_value, get_outcome, get_reports, intermediate_values

Key = tuple[int, float, float]


def rank_trials(searched: SearchRecord) -> dict[int, float]:
    """By number of the trial its place between 0, the best, and 1; equal ones share theirs.

    The last values of trials that were stopped at different epochs cannot be compared. So whoever came further is
    better, as to the scheduler that let it go on, and among those that came equally far, the best value counts. Trials
    that ran to their end come first, those that diverged last. Trials that failed or were interrupted are not known,
    and copies train on with the weights of another: they are left out.
    """
    reached = _build_progress_measure(searched)
    keys = {
        trial.number: key for trial in searched.trials if (key := _build_sort_key(trial, searched, reached)) is not None
    }
    order = sorted(keys.values())
    last = max(1, len(order) - 1)
    return {number: (bisect_left(order, key) + bisect_right(order, key) - 1) / 2 / last for number, key in keys.items()}


def _build_sort_key(trial: FrozenTrial, searched: SearchRecord, reached: Callable[[FrozenTrial], float]) -> Key | None:
    """Smaller is better."""
    outcome = get_outcome(trial)
    if "copied_from" in trial.user_attrs:
        return None
    if outcome == "diverged":
        return 2, 0.0, 0.0
    if outcome not in WITH_RESULT or not intermediate_values(trial):
        return None
    value = get_sign(searched.objectives[0].mode) * get_best_value(trial, searched.mode)
    return (0, 0.0, value) if outcome == "completed" else (1, -reached(trial), value)


def _build_progress_measure(searched: SearchRecord) -> Callable[[FrozenTrial], float]:
    """How far a trial came: in epochs, or in rungs where these lie at another epoch for each trial."""
    told = {name: value for name, value in searched.about.get("config", {}).items() if value is not None}
    unit: Unit = told.get("fidelity", "epochs")
    if unit == "epochs":
        return lambda trial: max(intermediate_values(trial))
    rungs = create_scheduler(load_config(told), UNLIMITED, searched.objectives[0].mode).rungs

    def count_passed_rungs(trial: FrozenTrial) -> float:
        spent = max(cumulative_cost(get_reports(trial), unit).values(), default=0.0)
        return sum(spent >= rung for rung in rungs)

    return count_passed_rungs
