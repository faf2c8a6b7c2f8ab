"""Calls an objective of Optuna as a trial: python -m searchlight.search.command.objective train.py objective."""

import inspect
import os
import sys
from collections.abc import Callable
from typing import Any

from optuna import TrialPruned
from optuna.trial import FixedTrial

from searchlight.trainables.command.call import load_module, name_metrics, report_result
from searchlight.trainables.command.hook.searchlight_hook import params, report, should_stop


class SearchTrial(FixedTrial):
    """A trial of Optuna with the values of a trial of the search, which hears its reports and ends it."""

    def report(self, value: float, step: int) -> None:
        report(step=step, **name_metrics(value))

    def should_prune(self) -> bool:
        return should_stop()


def call_objective(objective: Callable[..., Any]) -> None:
    """Call an objective, with the seed if it takes one, and report what it returns."""
    given = params()
    seed = {"seed": given["seed"]} if "seed" in inspect.signature(objective).parameters else {}
    try:
        result = objective(SearchTrial(given, int(os.environ.get("SEARCHLIGHT_TRIAL", "0"))), **seed)
    except TrialPruned:
        return
    report_result(objective, result)


if __name__ == "__main__":
    _, file, name = sys.argv
    del sys.argv[2:], sys.argv[0]  # as a script has it
    call_objective(getattr(load_module(file), name))
