"""The request of a search: the options of all packages."""

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, ValidationError, model_validator

from searchlight.search.command.options import CommandOptions, name_program, split_command
from searchlight.search.errors import UsageError, format_validation_errors, suggest_nearest
from searchlight.search.execution.options import BudgetOptions, ResourceOptions, TrialOptions
from searchlight.search.formatting import join_words
from searchlight.search.option import REPLACED, list_options, option, option_name
from searchlight.search.samplers.factory import SAMPLERS
from searchlight.search.samplers.options import SamplerOptions
from searchlight.search.scaling.options import ScalingOptions
from searchlight.search.schedulers.options import SchedulerOptions
from searchlight.search.space.function_config import check_parameter_names
from searchlight.search.space.options import SpaceOptions
from searchlight.search.storage.options import StorageOptions
from searchlight.search.tracking.options import TrackingOptions

GROUPS = (  # the headings of --help, in order
    "Task",
    "Command",
    "Budget",
    "Resources",
    "Scheduler",
    "Sampler",
    "Search space and objective",
    "Sizes",
    "Storage and tracking",
    "Output",
    "Advanced",
    "Only in a YAML file",
)


def parse_task(value: Any) -> Any:
    """Return the name of a task, a class or a function unchanged.

    Raises:
        ValueError: It is none of these.
    """
    if isinstance(value, str) or getattr(value, "__name__", "").isidentifier():
        return value
    raise ValueError(f"must be a text, or a class or a function that has a name, but got {value!r}")


class SearchConfig(
    TrackingOptions,
    TrialOptions,
    StorageOptions,
    ResourceOptions,
    SpaceOptions,
    SamplerOptions,
    ScalingOptions,
    SchedulerOptions,
    BudgetOptions,
    CommandOptions,
):  # --help lists the options of the last class first
    """The options of a search. Each field is an option of the command line and a key of a YAML file.

    A package declares the options that it uses, and its functions take no others. Here are those of the whole search.

    Examples:
        >>> config = SearchConfig(task="liquid", trials=8, scheduler="asha", search={"lr": "1e-4..1e-2:log"})
        >>> config.trials, config.workers
        (8, 1)
        >>> [*SearchConfig(task="liquid", confirm=2).find_problems()]
        ['--confirm must be 0 or at least 4, but got 2: a finalist and the defaults need two seeds each.']
    """

    # In Python, also a class or a function. A planned search has the text.
    task: Annotated[Any, BeforeValidator(parse_task)] = option(
        "Task",
        ...,
        "",
        "Task to train: arc, liquid, lm, FILE.py:NAME or package.module:NAME of a task class or a function.",
    )

    if not TYPE_CHECKING:  # else mypy would not know the fields as arguments

        def __init__(self, **values: Any) -> None:
            """Raise a UsageError, with a line for each problem, as the command line does."""
            if unknown := [*describe_unknown_keys(values)]:
                raise UsageError(*unknown)
            try:
                super().__init__(**values)
            except ValidationError as error:
                problems = format_validation_errors(error)
            else:
                return
            raise UsageError(*map(_format_option_problem, problems))  # without the text of pydantic before it

    @model_validator(mode="before")
    @classmethod
    def _name_task(cls, values: Any) -> Any:
        """Call the task of a command by the name of its program."""
        if not isinstance(values, dict) or not values.get("command"):
            return values
        words = split_command(values["command"])
        name = name_program(tuple(map(str, words))) if isinstance(words, list | tuple) else "command"
        if values.get("task") not in (None, name):
            raise ValueError(f"task must be left out with a command, but got {values['task']!r}")
        return {**values, "task": name}

    @model_validator(mode="before")
    @classmethod
    def _refuse_former_options(cls, values: Any) -> Any:
        for name in values if isinstance(values, dict) else ():
            if option_name(name) in REPLACED:
                raise ValueError(f"{name} is gone. Use {REPLACED[option_name(name)]}.")
        return values

    quiet: bool = option("Output", False, "", "Print only warnings, failures and the result.", resumable=True)

    def find_problems(self) -> Iterator[str]:
        """Yield a line for each contradiction between options of a search, within a package and across packages."""
        yield from super().find_problems()
        runs, makes_copies = self.confirm, self.scheduler_class.makes_copies
        once_without = {
            "--trials and --search": self.search or self.trials not in (1, type(self).model_fields["trials"].default),
            "--try": self.try_,
            "--warm-start": self.warm_start,
            "--patience": self.patience,
        }
        for names in (names for names, is_given in once_without.items() if self.once and is_given):
            yield f"--once must come without {names}: it is one run with fixed parameters."

        if runs and self.once:
            yield f"--confirm must be 0 with --once, but got {runs}: there is one config. Leave it out."
        elif runs and self.trials < 2:
            yield f"--trials must be at least 2 with --confirm {runs}, but got {self.trials}: it compares configs."
        if runs and makes_copies:
            yield (
                f"--confirm must be 0 with --scheduler {self.scheduler}, but got {runs}: a member's parameters change "
                "while it trains, and no config trains the like again. Leave it out."
            )

        if makes_copies and self.trials < 2:
            yield f"--trials must be at least 2 with --scheduler {self.scheduler}, but got {self.trials}."
        elif makes_copies and "trials" in self.model_fields_set and self.trials < (self.population or 0):
            yield (
                f"--population must be at most --trials, {self.trials}, but got {self.population}. "
                "Trials beyond it are the copies."
            )

        kind = SAMPLERS.get(self.sampler)
        if kind and not kind.takes_several_objectives and (count := len(self.objective)) > 1:
            able = join_words([name for name, kind in SAMPLERS.items() if kind.takes_several_objectives], "or")
            yield f"--sampler must be {able} with {count} objectives, but got {self.sampler}."

    def choose_scheduler(self) -> str:
        """Return the scheduler of a command for which the user names none: the best one that its trials allow.

        `median` ended more simulated searches below `asha-stop` than above it, see
        docs/development/search-quality.md. It compares epochs only.
        """
        if self.can_resume and self._has_length:
            return "hyperband"
        return "median" if self.fidelity == "epochs" else "asha-stop"

    @property
    def _has_length(self) -> bool:
        """Whether the largest budget of a trial is known before it ends."""
        return self.fidelity != "epochs" or self.max_fidelity is not None or "epochs" in {*self.set, *self.search}

    def find_command_problems(self) -> Iterator[str]:
        """Yield a line for each problem with these options if the task is a command."""
        name, kind = self.scheduler, self.scheduler_class
        if self.fidelity == "samples":
            yield "--fidelity must be epochs or gpu-seconds with a command, but got samples: it does not say how many."
        if kind.makes_copies:
            yield f"--scheduler must be another one with a command, but got {name}: it copies weights between trials."
        elif kind.pauses and not self.can_resume:
            yield (
                f"--scheduler {name} pauses trials, so the command must be able to resume: name {{checkpoint_dir}} "
                "in it, or give --resume-with. Otherwise use asha-stop, median or none."
            )
        if name not in ("median", "none") and not self._has_length:
            yield (
                f"--set epochs=N must be given with --scheduler {name}: how many reports a trial makes. With median or "
                "none it ends when its program ends."
            )
        if self.workers > 1:
            yield (
                f"--workers must be 1 with a command, but got {self.workers}: it starts its processes itself. Give it "
                "--gpus-per-worker N or --cpus-per-worker N, and {nproc} in the command."
            )
        if self.makes_model:
            yield f"--register must come with a task class, but {self.task} is a command."
        options = dict.fromkeys(self.search, "--search") | dict.fromkeys(self.set, "--set")
        yield from check_parameter_names(options, re.compile(r"[A-Za-z][\w/-]*"))

    def find_function_problems(self) -> Iterator[str]:
        """Yield a line for each problem with these options if the task is a function."""
        if self.fidelity == "samples":
            yield (
                "--fidelity must be epochs or gpu-seconds with a function, but got samples: a function does not say "
                "how many it takes."
            )
        if self.scheduler != "none" and self.fidelity == "epochs" and "epochs" not in {*self.set, *self.search}:
            yield (
                f"--set epochs=N must be given with --scheduler {self.scheduler}: how many reports a trial makes. "
                "Or give --scheduler none: then it ends when the function returns, also without a report."
            )
        if self.makes_model:
            yield (
                f"--register must come with a task class, but {self.task.rpartition(':')[2]} is a function, which "
                "does not say what it predicts. Log its checkpoint with mlflow yourself, or make it a task: "
                "docs/tasks.md."
            )
        yield from check_parameter_names(dict.fromkeys(self.search, "--search") | dict.fromkeys(self.set, "--set"))


def describe_unknown_keys(keys: Iterable[str]) -> Iterator[str]:
    """Yield a line for each of `keys` that no option of a search has, nor had in an older version."""
    names = {option.key for option in OPTIONS}
    for key in keys:
        if key not in names | SearchConfig.model_fields.keys() and option_name(key) not in REPLACED:
            rule = "must be an option of a search, but there is none of that name."
            yield f"{key} {rule} {suggest_nearest(key, names)}"


def _format_option_problem(problem: str) -> str:
    name, _, rest = problem.partition(" ")
    name = re.sub(r"\.\d+$", "", name)  # the index in a list
    return f"{'task' if name == 'task' else option_name(name)} {rest}"


OPTIONS = sorted(list_options(SearchConfig), key=lambda declared: GROUPS.index(declared.group))
