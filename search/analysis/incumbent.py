"""Which trials count for what is best, on a page that may be of a search that still runs, or was interrupted."""

from collections.abc import Sequence

from optuna.trial import FrozenTrial

from search.config.objectives import sign
from search.study.record import Searched
from search.study.trial import SETTLED, best_value, curve_of, outcome_of


def judged(searched: Searched) -> list[FrozenTrial]:
    """Those with a result, as `find_best` has it; as long as there is none, those that can go on."""
    reported = [trial for trial in searched.trials if curve_of(trial)]
    settled = [trial for trial in reported if outcome_of(trial) in SETTLED]
    return settled or [trial for trial in reported if outcome_of(trial) == "interrupted"]


def leading(searched: Searched, among: Sequence[FrozenTrial] | None = None) -> FrozenTrial | None:
    """The best of `judged`, or of those `among` it; None if there is none. Of equal ones, the first."""
    numbers = None if among is None else {trial.number for trial in among}
    trials = [trial for trial in judged(searched) if numbers is None or trial.number in numbers]
    return min(trials, key=lambda trial: sign(searched.mode) * best_value(trial, searched.mode), default=None)


def is_settled(searched: Searched) -> bool:
    """Whether the leading trial is a result, and not only the best so far."""
    found = leading(searched)
    return found is not None and outcome_of(found) in SETTLED
