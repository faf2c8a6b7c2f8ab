"""What the functions of `ray.train` and `ray.tune` do in a worker."""

import inspect
import os
from collections.abc import Callable
from contextlib import closing
from typing import Any

from searchlight.trainables.private_api import set_train_fn_utils, tune_globals


def set_ray_functions(functions: Any) -> None:
    """Replace the functions of `ray.train` by the methods of `functions`, and let those of `ray.tune` call them.

    Args:
        functions: A `TrainFnUtils` of Ray, or None outside of a worker.
    """
    tune_globals["_session"] = functions and TuneSession(functions)
    set_train_fn_utils(functions)


def call_function(function: Callable[..., Any], arguments: list[Any], report: Callable[[Any], None]) -> Any:
    """Return what a function returns, or report what it yields: Ray Tune takes both."""
    result = function(*arguments)
    if not inspect.isgenerator(result):
        return result
    with closing(result):
        for metrics in result:
            if metrics is not None:
                report(metrics)
    return None


class TuneSession:
    """What `ray.tune` takes for the session of its trial, so that a function may report to either library.

    Its ranks are those of Ray Train, which refuses its own functions where Tune has no rank.
    """

    # As where no trial of Tune runs: Ray's code for W&B would take them for its run.
    trial_id = trial_name = trial_resources = experiment_name = None

    def __init__(self, functions: Any) -> None:
        self._functions = functions

    def __getattr__(self, name: str) -> Any:
        """Return the rank or the size that `ray.train.get_context()` has by this name."""
        return getattr(self._functions.get_context(), f"get_{name}")()

    @property
    def loaded_checkpoint(self) -> Any:
        return self._functions.get_checkpoint()

    @property
    def trial_dir(self) -> str:
        return os.getcwd()

    def report(self, metrics: dict[str, Any], checkpoint: Any = None) -> None:
        self._functions.report(metrics, checkpoint)
