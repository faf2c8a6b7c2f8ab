"""The plan of a search, checked in everything that needs no Ray."""

import difflib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial
from pydantic import BaseModel

from searchlight.search.command.program import build_settings, describe_choices, explain_seed, takes_seed
from searchlight.search.config import SearchConfig
from searchlight.search.config.loading import resolve_config
from searchlight.search.errors import UsageError
from searchlight.search.execution.cluster.address_check import check_address
from searchlight.search.execution.cluster.local_machine import (
    check_driver,
    check_machine,
    leave_out_fp16,
    may_train_on_gpus,
    uses_existing_cluster,
)
from searchlight.search.execution.confirmation import ConfirmationPlan
from searchlight.search.experiment.task_files import resolve_task
from searchlight.search.experiment.warm_start import WarmStart, load_warm_start
from searchlight.search.folder.locations import check_location
from searchlight.search.samplers.factory import sampler_factory
from searchlight.search.samplers.mixture import build_beliefs
from searchlight.search.schedulers.base import Scheduler
from searchlight.search.schedulers.confirmation import default_runs
from searchlight.search.schedulers.factory import create_scheduler
from searchlight.search.space import function_config
from searchlight.search.space.constraints import Constraint
from searchlight.search.space.fidelity import UNLIMITED
from searchlight.search.space.initial_points import describe_points, initial_points, parse_beliefs
from searchlight.search.space.objectives import HasObjectives, Objective, parse_objectives
from searchlight.search.space.search_space import Space, resolve_space
from searchlight.search.storage.study_store import create_backend
from searchlight.search.study.trial import split_trials
from searchlight.search.task_source import TaskSource, find_model_problems
from searchlight.search.tracking.run_content import find_refused_names
from searchlight.search.tracking.uri import check_tracking, resolve_tracking_uri
from searchlight.trainables.command.output import OutputPatterns
from searchlight.trainables.command.settings import CommandSettings
from searchlight.trainables.command.trial_folder import TRIALS

NEAR = 0.84  # ratio of difflib: "los" is near to "loss", and "val_loss" is not


@dataclass(frozen=True)
class SearchPlan(HasObjectives):
    """A search that has passed every check that needs no Ray."""

    config: SearchConfig
    source: TaskSource
    space: Space
    schedule: Scheduler
    objectives: tuple[Objective, ...]
    first: tuple[dict[str, Any], ...] = ()  # points to try first; none for a resumed search
    command: CommandSettings | None = None  # what a trial runs if its task is a command
    warm: WarmStart = field(default_factory=WarmStart)  # the trials of earlier searches
    notes: tuple[str, ...] = ()  # lines for the user

    @property
    def options(self) -> dict[str, Any]:
        """All options by key, as the study and MLflow store them."""
        return self.config.model_dump(mode="json", by_alias=True)

    @cached_property
    def constraints(self) -> tuple[Constraint, ...]:
        """The constraints on metrics."""
        return tuple(map(Constraint.from_text, self.config.constraint))

    def create_sampler_factory(self) -> Callable[[int], BaseSampler]:
        """Return what creates the sampler of a trial, from its number.

        Raises:
            UsageError: The sampler of the user cannot be created, or --trust names no searched parameter.
        """
        return sampler_factory(self.config.sampler, self.config.seed, build_beliefs(self.space, self.config.trust))

    @property
    def trials(self) -> int:
        """The number of trials to start: at most one per combination."""
        return self.config.trials if self.combinations is None else min(self.config.trials, self.combinations)

    @cached_property
    def combinations(self) -> int | None:
        """The number of different configs, or None if it is no limit: it is infinite, or weights tell copies apart."""
        combinations = None if self.schedule.makes_copies else self.space.list_combinations()
        return None if combinations is None else len(combinations)

    def is_exhausted(self, count: int) -> bool:
        """Return whether `count` trials have tried all configs, so that a larger number of trials changes nothing."""
        return self.combinations is not None and count >= self.combinations

    def is_complete(self, trials: Sequence[FrozenTrial]) -> bool:
        """Return whether all `trials` have ended, and neither a trial nor a confirming run is left to start."""
        searched, _ = split_trials(trials)
        has_ended = len(searched) >= self.trials and all(trial.state.is_finished() for trial in searched)
        return has_ended and (self.confirmation is None or self.confirmation.is_complete(trials))

    @cached_property
    def confirmation(self) -> ConfirmationPlan | None:
        """The plan that chooses the confirming runs, or None if the search has no confirming runs."""
        config = self.config
        if config.confirm == 0 or config.once or self.schedule.makes_copies or self.trials < 2:
            return None
        if self.command and not takes_seed(self.command):
            return None
        space, defaults = self.space, None
        if self.source.task_class or len(space.get_defaults()) == len(space.parameters):
            defaults = space.build_config({}).model_dump(mode="json", round_trip=True)
        unit, limit = self.schedule.unit, self.schedule.limit if self._has_fixed_length else None
        return ConfirmationPlan(self.objectives, config.seed, unit, config.confirm, defaults, limit)

    @property
    def confirming_runs(self) -> int | None:
        """The expected number of confirming runs, or None if it is unknown."""
        if self.confirmation is None:
            return 0
        if self.config.confirm is not None:
            return self.config.confirm
        return None if self.expected_cost is None else default_runs(int(self.expected_cost / self.schedule.limit), 1)

    @property
    def is_limited(self) -> bool:
        """Whether trials have a limit, and do not only end when their function returns."""
        return self.schedule.unit != "epochs" or self.schedule.limit < UNLIMITED

    @property
    def expected_cost(self) -> float | None:
        """The expected budget of all trials together, in the unit of fidelity, or None if it is unknown."""
        return self.schedule.expected_cost(self.trials) if self._has_fixed_length else None

    @property
    def _has_fixed_length(self) -> bool:
        return self.is_limited and not any(parameter.name == "epochs" for parameter in self.space.parameters)


def plan(config: SearchConfig) -> SearchPlan:
    """Check everything that can be known before Ray starts. Return the plan of a new search.

    Raises:
        UsageError: The config is wrong, with a line per problem.
    """
    check_location(config.storage, config.name)
    create_backend(config.path, config.study).check()
    check_tracking(config, os.environ)
    config, source = resolve_task(config)
    if within := [path for path in source.modules.values() if path.is_dir() and config.local_path.is_relative_to(path)]:
        raise UsageError(
            f"--storage must be outside of {within[0]}, which the task imports and the search copies, "
            f"but is {config.storage}. Start the search in {within[0].parent}."
        )
    if "trials" not in config.model_fields_set:
        trials = source.task_class.trials if source.task_class else config.trials
        config = resolve_config(config.model_copy(update={"trials": trials}))  # as much as follows from that
    space = build_space(config, source)
    notes: tuple[str, ...] = ()
    if not may_train_on_gpus(config) and not config.warm_start:  # earlier trials may be in any precision of the space
        space, notes = leave_out_fp16(config, space)
    search_plan = build_new_plan(config, source, space)
    if search_plan.command:
        notes += describe_choices(search_plan.command, config.scheduler)
        if search_plan.space.parameters and not search_plan.space.get_defaults():
            notes += (function_config.explain_no_defaults(search_plan.space, search_plan.command.defaults),)
    if config.defaults:
        notes += (f"the defaults of this search are {', '.join(f'{n}={v}' for n, v in config.defaults.items())}",)
    search_plan = replace(search_plan, notes=notes)
    first = initial_points(search_plan.space, config.try_, config.trials)
    fresh = search_plan.schedule.max_fresh_trials or config.trials
    if len(first) > fresh:
        wanted = describe_points(search_plan.space, first)
        raise UsageError(
            f"--population must be at least {len(first)} for {wanted}, but is {fresh}: "
            "the trials beyond it are copies. Raise it or leave out a --try."
        )
    tracking_uri, _ = resolve_tracking_uri(config, os.environ)
    if config.warm_start and len(search_plan.objectives) > 1:
        raise UsageError(
            f"--warm-start must come with one --objective, but got {len(search_plan.objectives)}: "
            "earlier results have one objective."
        )
    if config.warm_start and config.constraint:
        raise UsageError("--warm-start must come without --constraint: earlier results do not say if they meet it.")
    warm = load_warm_start(config.warm_start, search_plan.space, search_plan.objective, tracking_uri)
    first += [point for point in warm.best if point not in first][: fresh - len(first)]
    return replace(search_plan, first=tuple(first), warm=warm)


def _check_beliefs(search_plan: SearchPlan) -> None:
    """Raise a UsageError if the search cannot follow the beliefs of its user."""
    beliefs, objectives = search_plan.config.believe, search_plan.objectives
    if beliefs and len(objectives) > 1:
        raise UsageError(f"--believe must come with one --objective, but got {len(objectives)}.")
    try:
        parse_beliefs(search_plan.space, beliefs)
    except UsageError as error:
        raise UsageError(*(f"--believe {problem}" for problem in error.problems)) from error


def build_space(config: SearchConfig, source: TaskSource) -> Space:
    """Return the search space that the task declares, with the changes of the user.

    Raises:
        UsageError: The options are wrong, with a line per problem.
    """
    config_class, _ = _parse_config_and_objectives(config, source)
    values = config.set if source.task_class else function_config.parse_fixed_values(config.set)
    fixed = {**({} if "seed" in config.search else {"seed": config.seed}), **values}
    space = resolve_space(config_class, fixed, config.search)
    return Space(space.config_class, (), space.fixed) if config.once else space


def build_new_plan(config: SearchConfig, source: TaskSource, space: Space) -> SearchPlan:
    """Return the plan of a search over `space` that has not begun. One that has is resumed whatever its names are.

    Raises:
        UsageError: As for `build_plan`, or MLflow would refuse a name, or a belief is not one in values of the space.
    """
    search_plan = build_plan(config, source, space)
    if config.tracker == "mlflow" and (refused := [*find_refused_names(config.experiment, search_plan.objectives)]):
        raise UsageError(*refused)
    _check_beliefs(search_plan)
    return search_plan


def build_plan(config: SearchConfig, source: TaskSource, space: Space) -> SearchPlan:
    """Return the plan of a search over `space`.

    Raises:
        UsageError: The options contradict each other, or this machine or cluster cannot run the search.
    """
    if config.sizes:
        raise UsageError("--sizes must be run with searchlight.search.experiment.ladder.run: it is several searches.")
    _, objectives = _parse_config_and_objectives(config, source)
    space = space.with_defaults(config.defaults)
    names = {parameter.name for parameter in space.parameters}
    if "epochs" in names and config.scheduler != "none" and config.fidelity == "epochs":
        raise UsageError("--search epochs must come with --scheduler none: the scheduler decides the number of epochs.")
    if not names and config.trials > 1:
        raise UsageError(f"a parameter must be searched to try {config.trials} trials, but all are fixed. Use --once.")
    if uses_existing_cluster():
        check_address(os.environ["RAY_ADDRESS"])
    else:
        if not config.command:  # its programs have a torch of their own, or none
            check_driver(config)
        check_machine(config, space)
    command = None
    if config.command:
        metrics = [objective.metric for objective in objectives]
        metrics += [each.metric for each in map(Constraint.from_text, config.constraint) if each.metric not in metrics]
        command = build_settings(config, space, config.set, metrics, str(config.path / TRIALS))
        if config.confirm and not takes_seed(command):
            rule = f"--confirm must be 0 if the command takes no seed, but got {config.confirm}."
            raise UsageError(f"{rule} {explain_seed(command)}.")
        if defaults := function_config.parse_defaults(space, command.defaults):
            config_class = function_config.build_function_config(config.set, config.search, defaults)
            space = replace(space, config_class=config_class)
    judged_from = source.task_class.judged_from(space.build_config(space.get_defaults())) if source.task_class else 1
    limit, has_defaults = space.epochs or UNLIMITED, bool(space.get_defaults())  # of the command, too
    schedule = create_scheduler(config, limit, objectives[0].mode, judged_from, config.seed, has_defaults)
    search_plan = SearchPlan(config, source, space, schedule, objectives, command=command)
    search_plan.create_sampler_factory()  # raises now, and not once Ray has started
    return search_plan


def _find_unread_objectives(config: SearchConfig, objectives: Sequence[Objective]) -> Iterator[str]:
    """Yield a line for each objective that is nearly the name of a --metric, but is none of them."""
    with suppress(ValueError):  # `config` has said so
        read = OutputPatterns(config.metric).names
        for metric in {objective.metric for objective in objectives} - read:
            for near in difflib.get_close_matches(metric, read, n=1, cutoff=NEAR):
                rule = f"--objective {metric} must be a metric of the command, but --metric names {near}."
                yield f"{rule} Use {near}. If the program has both, give --metric another name."


def _parse_config_and_objectives(
    config: SearchConfig, source: TaskSource
) -> tuple[type[BaseModel], tuple[Objective, ...]]:
    """Return the config class and the objectives. A task class declares both. For a function, the user does."""
    task = source.task_class
    declared = Objective(task.objective, task.mode) if task else None
    objectives, problems = parse_objectives(config.objective, declared, source.name)
    if config.command:
        problems += [*config.find_command_problems(), *_find_unread_objectives(config, objectives)]
    elif task is None:
        problems += config.find_function_problems()
    elif config.makes_model:
        problems += [f"--register {problem}" for problem in find_model_problems(task)]
    if problems:
        raise UsageError(*problems)
    return task.config_class() if task else function_config.build_function_config(config.set, config.search), objectives
