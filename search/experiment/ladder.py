"""Searches at several sizes, one after the other, for the parameters of a large one."""

import json
import math
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from typing import Any

from optuna.distributions import FloatDistribution, IntDistribution
from rich.console import Console

from searchlight.search.analysis.ladder import Ladder, SizedSearch
from searchlight.search.analysis.result import SearchResult
from searchlight.search.config import SearchConfig
from searchlight.search.config.loading import load_config, locate_task, resolve_config, to_yaml
from searchlight.search.errors import UsageError, suggest_nearest
from searchlight.search.experiment import runner
from searchlight.search.experiment.opening import storage_errors
from searchlight.search.experiment.plan import build_new_plan, build_space
from searchlight.search.experiment.task_files import copy_code, resolve_task
from searchlight.search.folder.locations import LADDER, check_location
from searchlight.search.folder.uploader import Uploader
from searchlight.search.folder.working_copy import downloaded_copy, working_copy
from searchlight.search.formatting import SCHEMA, format_duration, pluralize
from searchlight.search.option import read_yaml
from searchlight.search.reporting.console.tables import create_console
from searchlight.search.samplers.options import list_ignored
from searchlight.search.scaling.size import (
    RESOURCES,
    UNNAMED,
    Size,
    convert_whole,
    describe_size,
    get_measures,
    name_size,
)
from searchlight.search.space.search_space import list_size_fields
from searchlight.search.storage.backend import lock_study_file
from searchlight.search.storage.study_store import holds_study
from searchlight.search.study.record import load_search
from searchlight.search.task_source import TaskSource
from searchlight.trainables.filesystem.atomic_file import write_atomic
from searchlight.trainables.filesystem.paths import StoragePath, remove_tree

PAGE, RESULT = "ladder.html", "ladder.json"
HOUR = 3600.0
INTERRUPTIONS = ("interrupted", "time budget")


@dataclass
class LadderResult:
    """The result of searches at several sizes, as far as they have come.

    Attributes:
        ladder: The searches, from small to large, with their law.
        left_out: The sizes that the budget did not allow.
        ended: The names of the sizes that a resume leaves as they are.
        stopped: Why the ladder ended early, or "".
    """

    name: str
    ladder: Ladder
    left_out: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    stopped: str = ""

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
    config, source = _check(config)
    with working_copy(config.path) as folder:
        uploader = Uploader(folder, config.path)
        with storage_errors():
            folder.mkdir(parents=True, exist_ok=True)
            copy_code(source, folder)  # a resume elsewhere begins further sizes with it
            # `to_yaml` leaves out the name, which is that of the folder.
            write_atomic(folder / LADDER, to_yaml(config))
        return _Climber(config, uploader, console).climb(show)


def resume(
    location: StoragePath, console: Console | None = None, show: Callable[[LadderResult], None] = lambda result: None
) -> LadderResult:
    """Go on with the searches of the ladder in the folder `location`, those that ended left as they are.

    Raises:
        UsageError: They cannot be resumed.
    """
    with downloaded_copy(location) as folder:
        values = read_yaml((folder / LADDER).read_text(encoding="utf-8"))
        if not values.get("command"):
            values["task"] = locate_task(values["task"], location)
        for key in list_ignored(values.get("sampler", "")):
            values.pop(key, None)
        config = load_config({**values, "name": location.name, "storage": location.parent})
        return _Climber(config, Uploader(folder, location), console).climb(show)


def _check(config: SearchConfig) -> tuple[SearchConfig, TaskSource]:
    """Return the config with its task resolved, and the task, once it was seen that the task takes each size.

    Raises:
        UsageError: The task refuses a size, it is searched, or a name is taken.
    """
    if not config.sizes:
        raise UsageError("--sizes must be given, e.g. --sizes width=64,128,256.")
    if config.once or config.scheduler_class.makes_copies or config.warm_start:
        raise UsageError("--sizes must come without --once, --warm-start and a scheduler that copies trials.")
    config, source = resolve_task(config)
    config = name_sizes(config, source)
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
    return config, source


def name_sizes(config: SearchConfig, source: TaskSource) -> SearchConfig:
    """Return the config in which sizes without a name are of the parameter that the task declares as its size.

    Raises:
        UsageError: The task declares none, or several, or the sizes do not fit together.
    """
    if not any(UNNAMED in size for size in (*config.sizes.values(), config.target)):
        return config
    declared = list_size_fields(source.task_class.config_class()) if source.task_class else []
    if len(declared) != 1:
        found = f"the sizes {', '.join(declared)}" if declared else "no size"
        raise UsageError(f"--sizes must be like width=64,128,256, because {source.name} declares {found}.")
    if any({UNNAMED, declared[0]} <= {*size} for size in config.sizes.values()):
        raise UsageError(f"--sizes must have {declared[0]} once, but it is also that of the numbers without a name.")
    *sizes, target = (
        {name or declared[0]: value for name, value in size.items()} for size in (*config.sizes.values(), config.target)
    )
    named = {name_size(convert_whole(size)): size for size in sizes}
    return resolve_config(config.model_copy(update={"sizes": named, "target": target}))


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
        build_new_plan(child, source, space)
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

    def __init__(self, config: SearchConfig, uploader: Uploader, console: Console | None) -> None:
        self.config, self.uploader, self.console = config, uploader, console or create_console(sys.stderr)
        target = get_measures(config.target or [*config.sizes.values()][-1])
        self.result = LadderResult(config.name, Ladder((), target, config.exponents))
        self._start = time.monotonic()

    def climb(self, show: Callable[[LadderResult], None]) -> LadderResult:
        """Search at each size that the budget allows, until the user or the time ends it. Show the result."""
        folder, result = self.config.local_path, self.result
        with ExitStack() as services:
            if folder == self.config.path:
                services.enter_context(closing(lock_study_file(folder / f"{LADDER}.lock", self.config.name)))
            before = folder / RESULT
            ended = json.loads(before.read_text(encoding="utf-8"))["ended"] if before.exists() else []
            for name, size in self.config.sizes.items():
                self._publish()  # first, so that the options are stored before a search begins
                if result.stopped:
                    result.left_out.append(name)
                elif searched := self._search(name, size, name in ended):
                    self._record(name, get_measures(size), searched)
                write_atomic(folder / RESULT, json.dumps(result.as_json(), indent=1))
            if result.ladder.searches:
                from searchlight.search.reporting.html.ladder import render_ladder  # importing plotly takes a while

                write_atomic(folder / PAGE, render_ladder(self.config.name, result.ladder))
            self._publish()
        show(result)
        return result

    def _search(self, name: str, size: Size, has_ended: bool) -> SearchResult | None:
        """Return the result at a size: that of before if it `has_ended`. Return None if the budget allows no search."""
        config, measures, ladder = self.config, get_measures(size), self.result.ladder
        child, is_last = _build_config(config, name, size), name == [*config.sizes][-1]
        has_begun = (child.path / "search.yaml").exists() or holds_study(child.path, child.study)
        if has_begun and has_ended:
            return SearchResult.from_record(load_search(child.path))
        spent = sum(search.gpu_seconds for search in ladder.searches)
        limits = limit_size(config, spent, time.monotonic() - self._start, is_last)
        if has_begun:
            return runner.resume(child.name, child.storage, limits, self.console)
        remove_tree(child.path)  # of a driver that was killed before its search began
        options: dict[str, Any] = {**limits, "confirm": config.confirm if is_last else 0}
        if ladder.searches:
            points, self.result.stopped = ladder.plan_points(measures, limits.get("gpu_hours", math.inf) * HOUR)
            if self.result.stopped:
                self.result.left_out.append(name)
                return None
            options |= {"trials": 1 + len(points), "try_": points, "defaults": ladder.unscaled}
        self._say(f"size {describe_size(measures)}: {pluralize(options.get('trials', config.trials), 'trial')}")
        return runner.run(_build_config(config, name, size, **options), self.console)

    def _record(self, name: str, size: Size, searched: SearchResult) -> None:
        result, search = self.result, SizedSearch(name, size, searched.searched)
        result.ladder = replace(result.ladder, searches=(*result.ladder.searches, search))
        if reasons := [each for each in INTERRUPTIONS if each in searched.reasons]:
            result.stopped = reasons[0]
        else:
            result.ended.append(name)
            result.stopped = "" if searched.best is not None else f"no trial at {name} has a result"
        if search.best is not None:
            self._say(f"size {name} took {format_duration(search.gpu_seconds)} of all workers")

    def _publish(self) -> None:
        """Copy the files of the ladder to where it lies."""
        with storage_errors():
            self.uploader.copy()

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
