"""A distributed hyperparameter search for mixed-precision training.

`searchlight.search` decides what to try next, `searchlight.trainables` trains one trial, and `searchlight.models` holds
what the built-in tasks compute.
"""

from typing import TYPE_CHECKING

from searchlight.trainables.lazy_imports import import_on_use

if TYPE_CHECKING:
    from searchlight.search.config import SearchConfig
    from searchlight.search.experiment.background import start
    from searchlight.search.experiment.runner import resume, run
    from searchlight.search.reporting.running_search import RunningSearch
    from searchlight.search.study.record import load_search
    from searchlight.trainables.command.hook.searchlight_hook import params, report, should_stop
    from searchlight.trainables.task import Task, TaskConfig, searchable

__version__ = "0.1.0"
__all__ = [
    "RunningSearch",
    "SearchConfig",
    "Task",
    "TaskConfig",
    "load_search",
    "params",
    "report",
    "resume",
    "run",
    "searchable",
    "should_stop",
    "start",
]

_MODULES = {
    "RunningSearch": "search.reporting.running_search",
    "SearchConfig": "search.config",
    "Task": "trainables.task",
    "TaskConfig": "trainables.task",
    "load_search": "search.study.record",
    "params": "trainables.command.hook.searchlight_hook",
    "report": "trainables.command.hook.searchlight_hook",
    "resume": "search.experiment",
    "run": "search.experiment",
    "searchable": "trainables.task",
    "should_stop": "trainables.command.hook.searchlight_hook",
    "start": "search.experiment",
}


# A worker needs neither Optuna nor MLflow, and the driver of a program's search needs no torch.
__getattr__ = import_on_use(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
