"""Calls an objective of Optuna as a trial: python -m searchlight.search.command.objective train.py objective."""

import inspect
import math
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from optuna import TrialPruned
from optuna.trial import FixedTrial

from searchlight.trainables.command.call import load_module, name_metrics, report_result
from searchlight.trainables.command.hook.searchlight_hook import complain, params, report, should_stop


class SearchTrial(FixedTrial):
    """A trial of Optuna with the values of a trial of the search, which hears its reports and ends it.

    Attributes:
        reported: The values that it has reported.
    """

    def __init__(self, given: dict[str, Any], number: int) -> None:
        super().__init__(given, number)
        self.reported: list[float] = []
        self._given = given

    def suggest_float(self, name: str, low: float, high: float, **further: Any) -> float:
        return super().suggest_float(self._check(name), low, high, **further)

    def suggest_int(self, name: str, low: int, high: int, **further: Any) -> int:
        return super().suggest_int(self._check(name), low, high, **further)

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        return super().suggest_categorical(self._check(name), choices)

    def _check(self, name: str) -> str:
        if name not in self._given:
            rule = f"the search must have the parameter {name}, which the objective suggests, but has none."
            raise ValueError(f"{rule} Begin a new search with --search {name}=...")
        return name

    def report(self, value: float, step: int) -> None:
        self.reported.append(float(value))
        report(step=step, **name_metrics(value))

    def should_prune(self) -> bool:
        return should_stop()


def call_objective(objective: Callable[..., Any]) -> None:
    """Call an objective, with the seed if it takes one, and report what it returns.

    One that prunes itself before its first report has diverged, because it has no value.
    """
    given = params()
    seed = {"seed": given["seed"]} if "seed" in inspect.signature(objective).parameters else {}
    trial = SearchTrial(given, int(os.environ.get("SEARCHLIGHT_TRIAL", "0")))
    try:
        result = objective(trial, **seed)
    except TrialPruned:
        if not trial.reported:
            report(**name_metrics(math.nan))
        return
    if trial.reported and isinstance(result, float) and result not in trial.reported:
        last = f"it reported {trial.reported[-1]:g} at last, which the search judges"
        complain(f"{objective.__name__} returned {result:g}, but {last}.")
    report_result(objective, result)


if __name__ == "__main__":
    file, name = sys.argv[1:3]
    del sys.argv[2], sys.argv[0]  # as a script has it
    call_objective(getattr(load_module(file), name))
