"""Searches at several sizes, one after the other, for the parameters of a large one."""

import json
import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from optuna.distributions import FloatDistribution, IntDistribution
from rich.console import Console

from searchlight.search.analysis.ladder import Ladder, SizedSearch
from searchlight.search.analysis.result import SearchResult
from searchlight.search.config import SearchConfig
from searchlight.search.config.loading import load_config, resolve_config, to_yaml
from searchlight.search.errors import UsageError, suggest_nearest
from searchlight.search.experiment import runner
from searchlight.search.experiment.plan import build_plan, build_space
from searchlight.search.experiment.task_files import resolve_task
from searchlight.search.folder.locations import LADDER, check_location
from searchlight.search.formatting import SCHEMA, format_duration, pluralize
from searchlight.search.option import read_yaml
from searchlight.search.reporting.console.tables import create_console
from searchlight.search.scaling.size import RESOURCES, Size, convert_whole, describe_size, get_measures
from searchlight.search.study.record import load_search
from searchlight.search.task_source import TaskSource
from searchlight.trainables.filesystem.atomic_file import write_atomic
from searchlight.trainables.filesystem.paths import StoragePath, may_exist

PAGE, RESULT = "ladder.html", "ladder.json"
HOUR = 3600.0
INTERRUPTIONS = ("interrupted", "time budget")


@dataclass(frozen=True)
class LadderResult:
    """The result of searches at several sizes.

    Attributes:
        results: The result of each search, from small to large.
        left_out: The sizes that the budget did not allow.
        ended: The names of the sizes that a resume leaves as they are.
        stopped: Why the ladder ended early, or "".
    """

    name: str
    ladder: Ladder
    results: list[SearchResult] = field(repr=False)
    left_out: list[str]
    ended: list[str]
    stopped: str

    @property
    def is_interrupted(self) -> bool:
        """Whether the user or the time budget ended it, so that it can be resumed."""
        return self.stopped in INTERRUPTIONS

    def as_json(self) -> dict[str, Any]:
        """Return the object that `--json` prints, and that is stored."""
        found = {"schema": SCHEMA, "name": self.name, **self.ladder.as_json(), "left_out": self.left_out}
        return {**found, "ended": self.ended, "stopped": self.stopped or None}


def run(
    config: SearchConfig, console: Console | None = None, show: Callable[[LadderResult], None] = lambda result: None
) -> LadderResult:
    """Search at each of `config.sizes`, and return the law of the best values and the setting for the target.

    Raises:
        UsageError: The searches cannot run as configured. Nothing was started.
    """
    config = resolve_config(config)
    check_location(config.storage, config.name)
    config = _check(config)
    config.path.mkdir(parents=True, exist_ok=True)
    # `to_yaml` leaves out the name, which is that of the folder.
    write_atomic(config.path / LADDER, to_yaml(config))
    return _climb(config, console, show)


def resume(
    location: StoragePath, console: Console | None = None, show: Callable[[LadderResult], None] = lambda result: None
) -> LadderResult:
    """Go on with the searches of the ladder in the folder `location`, those that ended left as they are.

    Raises:
        UsageError: They cannot be resumed.
    """
    values = read_yaml((location / LADDER).read_text(encoding="utf-8"))
    given = {**values, "name": location.name, "storage": location.parent}
    return _climb(load_config(given), console, show)


def is_ladder(location: StoragePath) -> bool:
    """Return whether the folder `location` has searches at several sizes."""
    return may_exist(location / LADDER, in_bucket=False)


def _check(config: SearchConfig) -> SearchConfig:
    """Return the config with its task resolved, once each size was seen to be one that the task takes.

    Raises:
        UsageError: The task refuses a size, it is searched, or a name is taken.
    """
    if not config.sizes:
        raise UsageError("--sizes must be given, e.g. --sizes width=64,128,256.")
    if config.local_path != config.path:
        raise UsageError(f"--sizes must come with a --storage on a disk, but got {config.storage}.")
    if config.once or config.scheduler_class.makes_copies or config.warm_start:
        raise UsageError("--sizes must come without --once, --warm-start and a scheduler that copies trials.")
    config, source = resolve_task(config)
    sizes = {**config.sizes, **({"target": config.target} if config.target else {})}
    problems: list[str] = []
    numbers: set[str] = set()
    for name, size in sizes.items():
        try:
            numbers |= _check_size(config, name, size, source)
        except UsageError as error:
            problems += [f"at size {name}: {problem}" for problem in error.problems]
    if not problems:
        unknown = [name for name in config.exponents if name not in numbers]
        rule = "--exponent must name a searched number, but got"
        problems += [f"{rule} {name!r}. {suggest_nearest(name, numbers)}" for name in unknown]
    if problems:
        raise UsageError(*problems)
    return config


def _check_size(config: SearchConfig, name: str, size: Size, source: TaskSource) -> set[str]:
    """Return the names of the searched numbers, once the search at the size was seen to be one that can run.

    Raises:
        UsageError: It cannot.
    """
    child = _build_config(config, name, size)
    SearchConfig(task=config.task, **{key: value for key, value in convert_whole(size).items() if key in RESOURCES})
    space = build_space(child, source)
    kinds = FloatDistribution | IntDistribution
    numbers = {parameter.name for parameter in space.parameters if isinstance(parameter.distribution, kinds)}
    if not numbers:
        raise UsageError("a number must be searched, but none is.")
    if name in config.sizes:  # the target is only predicted, perhaps for another machine
        check_location(child.storage, child.name)
        if problems := [*child.find_problems()]:
            raise UsageError(*problems)
        build_plan(child, source, space)
    return numbers


def _build_config(config: SearchConfig, name: str, size: Mapping[str, float], **more: Any) -> SearchConfig:
    """Return the config of the search at one size, with `more` options."""
    whole = convert_whole(size)
    resources = {key: value for key, value in whole.items() if key in RESOURCES}
    fixed = {key: value for key, value in whole.items() if key not in RESOURCES}
    update = {"name": f"{config.name}-{name}", "sizes": {}, "target": {}, "exponent": {}, **resources}
    return config.model_copy(update={**update, "set": {**config.set, **fixed}, **more})


class _Climber:
    """Runs the searches of a ladder, each with what those before it have shown."""

    def __init__(self, config: SearchConfig, console: Console) -> None:
        self.config, self.console = config, console
        self.target = get_measures(config.target or [*config.sizes.values()][-1])
        self.ladder = Ladder((), self.target, config.exponents)
        self.results: list[SearchResult] = []
        self.left_out: list[str] = []
        self.ended: list[str] = []
        self.stopped = ""
        self._start = time.monotonic()

    def climb(self) -> None:
        """Search at each size that the budget allows, until the user or the time ends it."""
        ended = _read_ended(self.config.path)
        for index, (name, size) in enumerate(self.config.sizes.items()):
            child = _build_config(self.config, name, size)
            if self.stopped:
                self.left_out.append(name)
            elif name in ended and (child.path / "search.yaml").exists():
                self._record(name, get_measures(size), SearchResult.from_record(load_search(child.path)))
            else:
                self._climb_to(index, name, size)
            write_atomic(self.config.path / RESULT, json.dumps(self.result.as_json(), indent=1))

    @property
    def result(self) -> LadderResult:
        """What the searches so far have shown."""
        return LadderResult(self.config.name, self.ladder, self.results, self.left_out, self.ended, self.stopped)

    def _climb_to(self, index: int, name: str, size: Size) -> None:
        config, measures, is_last = self.config, get_measures(size), index == len(self.config.sizes) - 1
        child = _build_config(config, name, size)
        spent = sum(search.gpu_seconds for search in self.ladder.searches)
        limits = limit_size(config, spent, time.monotonic() - self._start, is_last)
        if (child.path / "search.yaml").exists():
            return self._record(name, measures, runner.resume(child.name, child.storage, limits, self.console))
        options: dict[str, Any] = {**limits, "confirm": config.confirm if is_last else 0}
        if index:
            points, self.stopped = self.ladder.plan_points(measures, limits.get("gpu_hours", math.inf) * HOUR)
            if self.stopped:
                self.left_out.append(name)
                return None
            options |= {"trials": 1 + len(points), "try_": points, "defaults": self.ladder.unscaled}
        self._say(f"size {describe_size(measures)}: {pluralize(options.get('trials', config.trials), 'trial')}")
        result = runner.run(_build_config(config, name, size, **options), self.console)
        return self._record(name, measures, result)

    def _record(self, name: str, size: Size, result: SearchResult) -> None:
        self.results.append(result)
        search = SizedSearch(name, size, result.searched)
        self.ladder = Ladder((*self.ladder.searches, search), self.target, self.config.exponents)
        if reasons := [each for each in INTERRUPTIONS if each in result.reasons]:
            self.stopped = reasons[0]
        else:
            self.ended.append(name)
            self.stopped = "" if result.best is not None else f"no trial at {name} has a result"
        if search.best is not None:
            self._say(f"size {name} took {format_duration(search.gpu_seconds)} of all workers")

    def _say(self, line: str) -> None:
        if not self.config.quiet:
            self.console.print(line, highlight=False, markup=False)


def limit_size(config: SearchConfig, spent: float, seconds: float, is_last: bool) -> dict[str, float]:
    """Return the options that limit the search at a size, which has a half of the GPU-hours left if others follow.

    Args:
        spent: The GPU-seconds of the sizes before.
        seconds: The time since the searches began, or were resumed.
    """
    limits = {}
    if config.gpu_hours is not None:
        hours_left = max(config.gpu_hours - spent / HOUR, 1.0 / HOUR)
        limits["gpu_hours"] = hours_left if is_last else hours_left / 2
    if config.time_budget is not None:
        limits["time_budget"] = max(1.0, config.time_budget - seconds)
    return limits


def _read_ended(folder: StoragePath) -> list[str]:
    """Return the names of the sizes that had ended before a resume. Their trials stay as they are."""
    if not may_exist(folder / RESULT, in_bucket=False):
        return []
    ended: list[str] = json.loads((folder / RESULT).read_text(encoding="utf-8"))["ended"]
    return ended


def _climb(config: SearchConfig, console: Console | None, show: Callable[[LadderResult], None]) -> LadderResult:
    climber = _Climber(config, console or create_console(sys.stderr))
    climber.climb()
    if climber.ladder.searches:
        from searchlight.search.reporting.html.ladder import render_ladder  # importing plotly takes a while

        write_atomic(config.path / PAGE, render_ladder(config.name, climber.ladder))
    show(climber.result)
    return climber.result
