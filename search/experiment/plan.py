"""What a search will do, checked in all that can be known before Ray starts."""

import os
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import BaseModel

from search.config import SearchConfig, function_config
from search.config.fidelity import UNLIMITED
from search.config.initial_points import first_points
from search.config.objectives import Judged, Objective, asked_for
from search.config.search_config import complete
from search.config.search_space import Space, resolve
from search.config.task_source import TaskSource, find_task
from search.errors import UsageError
from search.execution.cluster.address_check import check_address
from search.execution.cluster.local_machine import check_machine, joins_cluster
from search.experiment.warm_start import WarmStart, warm_start
from search.schedulers.base import Schedule
from search.schedulers.factory import make_schedule
from search.schedulers.pbt import Population
from search.storage.locations import check_place
from search.storage.study_store import check_store
from search.tracking.uri import check_tracking, store_of


@dataclass(frozen=True)
class Plan(Judged):
    """A search that has passed every check that needs no Ray.

    Attributes:
        first: Points to try first, unless the search is one that is taken up.
        warm: What earlier searches found.
    """

    config: SearchConfig
    source: TaskSource
    space: Space
    schedule: Schedule
    objectives: tuple[Objective, ...]
    first: tuple[dict[str, Any], ...] = ()
    warm: WarmStart = field(default_factory=WarmStart)

    @property
    def trials(self) -> int:
        """How many to start: no more than there are combinations, unless copies differ by their weights."""
        combinations = self.space.combinations()
        if combinations is None or self.config.scheduler == "pbt":
            return self.config.trials
        return min(self.config.trials, len(combinations))

    @property
    def is_limited(self) -> bool:
        """Whether a trial ends by itself, and not only when its function returns."""
        return self.schedule.unit != "epochs" or self.schedule.limit < UNLIMITED

    @property
    def expected(self) -> float | None:
        """How much all trials get together, in the unit of fidelity; None where nobody knows."""
        known = self.is_limited and not any(parameter.name == "epochs" for parameter in self.space.parameters)
        return self.schedule.expected(self.trials) if known else None


def plan(config: SearchConfig) -> Plan:
    """Check all that can be known before Ray starts.

    Raises:
        UsageError: All that is wrong, a line each.
    """
    check_place(config.storage, config.name)
    check_store(config.study, config.name)
    check_tracking(config, os.environ)
    source = find_task(config.task)
    if "trials" not in config.model_fields_set:
        trials = source.task_class.trials if source.task_class else config.trials
        config = complete(config.model_copy(update={"trials": trials}))  # as much as follows from that
    planned = checked(config, source, space_of(config, source))
    first = first_points(planned.space, config.try_, config.trials)
    fresh = planned.schedule.size if isinstance(planned.schedule, Population) else config.trials
    if len(first) > fresh:
        raise UsageError(
            f"--population must be at least {len(first)} for the task's defaults and {len(first) - 1} points to try, "
            f"but is {fresh}: the trials beyond it are copies. Raise it or leave out a --try."
        )
    tracking_uri, _ = store_of(config, os.environ)
    if config.warm_start and len(planned.objectives) > 1:
        raise UsageError(
            f"--warm-start must come with one --objective, but got {len(planned.objectives)}: "
            "what earlier searches found is told by one."
        )
    warm = warm_start(config.warm_start, planned.space, planned.objective, planned.mode, tracking_uri)
    first += [point for point in warm.best if point not in first][: fresh - len(first)]
    return replace(planned, first=tuple(first), warm=warm)


def space_of(config: SearchConfig, source: TaskSource) -> Space:
    """The space of a search, as its task declares it and its user changes it.

    Raises:
        UsageError: All that is wrong, a line each.
    """
    config_class, _ = _asked_for(config, source)
    fixed = {"seed": config.seed, **(config.set if source.task_class else function_config.read(config.set))}
    if "seed" in config.search and "seed" not in config.set:
        del fixed["seed"]
    space = resolve(config_class, fixed, config.search)
    return Space(space.config_class, (), space.fixed) if config.once else space


def checked(config: SearchConfig, source: TaskSource, space: Space) -> Plan:
    """The plan of a search over `space`.

    Raises:
        UsageError: It cannot be done so, or not here.
    """
    _, objectives = _asked_for(config, source)
    names = {parameter.name for parameter in space.parameters}
    if "epochs" in names and config.scheduler != "none" and config.fidelity == "epochs":
        raise UsageError("--search epochs must come with --scheduler none: it is what the scheduler decides on.")
    if not names and config.trials > 1:
        raise UsageError(f"a parameter must be searched to try {config.trials} trials, but all are fixed. Say --once.")
    judged_from = source.task_class.judged_from(space.config(space.defaults())) if source.task_class else 1
    schedule = make_schedule(config, space.epochs or UNLIMITED, objectives[0].mode, judged_from)
    if joins_cluster():
        check_address(os.environ["RAY_ADDRESS"])
    else:
        check_machine(config, space)
    return Plan(config, source, space, schedule, objectives)


def _asked_for(config: SearchConfig, source: TaskSource) -> tuple[type[BaseModel], tuple[Objective, ...]]:
    """The config class and the objectives: a task class has its own, of a function the user says them."""
    task = source.task_class
    own = Objective(task.objective, task.mode) if task else None
    objectives, problems = asked_for(config.objective, config.mode, own, source.name)
    if task is None:
        problems += function_config.check(config)
    if problems:
        raise UsageError(*problems)
    return task.config_class() if task else function_config.config_class(config.set, config.search), objectives
