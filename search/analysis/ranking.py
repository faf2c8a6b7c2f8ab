"""Trials in order, best first, although most of them were stopped early."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable

from optuna.trial import FrozenTrial

from search.config import load_config
from search.config.fidelity import UNLIMITED, Unit, cumulated
from search.config.objectives import sign
from search.schedulers.factory import make_schedule
from search.study.record import Searched
from search.study.trial import SETTLED, best_value, curve_of, outcome_of, reports_of

Key = tuple[int, float, float]


def ranked(searched: Searched) -> dict[int, float]:
    """By number of the trial its place between 0, the best, and 1; equal ones share theirs.

    The last values of trials that were stopped at different epochs cannot be compared. So whoever came further is
    better, as to the scheduler that let it go on, and among those that came equally far, the best value counts. Trials
    that ran to their end come first, those that diverged last. Trials that failed or were interrupted are not known,
    and copies train on with the weights of another: they are left out.
    """
    reached = _reached(searched)
    keys = {trial.number: key for trial in searched.trials if (key := _key(trial, searched, reached)) is not None}
    order = sorted(keys.values())
    last = max(1, len(order) - 1)
    return {number: (bisect_left(order, key) + bisect_right(order, key) - 1) / 2 / last for number, key in keys.items()}


def _key(trial: FrozenTrial, searched: Searched, reached: Callable[[FrozenTrial], float]) -> Key | None:
    """Smaller is better."""
    outcome = outcome_of(trial)
    if "copied_from" in trial.user_attrs:
        return None
    if outcome == "diverged":
        return 2, 0.0, 0.0
    if outcome not in SETTLED or not curve_of(trial):
        return None
    value = sign(searched.objectives[0].mode) * best_value(trial, searched.mode)
    return (0, 0.0, value) if outcome == "completed" else (1, -reached(trial), value)


def _reached(searched: Searched) -> Callable[[FrozenTrial], float]:
    """How far a trial came: in epochs, or in rungs where these lie at another epoch for each trial."""
    told = {name: value for name, value in searched.about.get("config", {}).items() if value is not None}
    unit: Unit = told.get("fidelity", "epochs")
    if unit == "epochs":
        return lambda trial: max(curve_of(trial))
    rungs = make_schedule(load_config(told), UNLIMITED, searched.objectives[0].mode).rungs

    def passed(trial: FrozenTrial) -> float:
        spent = max(cumulated(reports_of(trial), unit).values(), default=0.0)
        return sum(spent >= rung for rung in rungs)

    return passed
