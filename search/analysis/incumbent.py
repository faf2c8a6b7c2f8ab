"""Which trials count for what is best, on a page that may be of a search that still runs, or was interrupted."""

from collections.abc import Sequence

from optuna.trial import FrozenTrial

from search.config.objectives import get_sign
from search.study.record import SearchRecord
from search.study.trial import WITH_RESULT, get_best_value, get_outcome, intermediate_values


def comparable_trials(searched: SearchRecord) -> list[FrozenTrial]:
    """Those with a result, as `find_best` has it; as long as there is none, those that can go on."""
    reported = [trial for trial in searched.trials if intermediate_values(trial)]
    settled = [trial for trial in reported if get_outcome(trial) in WITH_RESULT]
    return settled or [trial for trial in reported if get_outcome(trial) == "interrupted"]


def incumbent(searched: SearchRecord, among: Sequence[FrozenTrial] | None = None) -> FrozenTrial | None:
    """The best of `judged`, or of those `among` it; None if there is none. Of equal ones, the first."""
    numbers = None if among is None else {trial.number for trial in among}
    trials = [trial for trial in comparable_trials(searched) if numbers is None or trial.number in numbers]
    return min(trials, key=lambda trial: get_sign(searched.mode) * get_best_value(trial, searched.mode), default=None)


def incumbent_is_final(searched: SearchRecord) -> bool:
    """Whether the leading trial is a result, and not only the best so far."""
    found = incumbent(searched)
    return found is not None and get_outcome(found) in WITH_RESULT
