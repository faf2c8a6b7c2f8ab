"""The request of a search: the options of all packages."""

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import BeforeValidator, model_validator

from searchlight.search.execution.options import BudgetOptions, ResourceOptions, TrialOptions
from searchlight.search.formatting import join_words
from searchlight.search.option import REPLACED, list_options, option, option_name
from searchlight.search.samplers.factory import SAMPLERS
from searchlight.search.samplers.options import SamplerOptions
from searchlight.search.schedulers.options import SchedulerOptions
from searchlight.search.space.function_config import check_parameter_names
from searchlight.search.space.options import SpaceOptions
from searchlight.search.storage.options import StorageOptions
from searchlight.search.tracking.options import TrackingOptions

GROUPS = (  # the headings of --help, in order
    "Task",
    "Budget",
    "Resources",
    "Scheduler",
    "Sampler",
    "Search space and objective",
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
    SchedulerOptions,
    BudgetOptions,
):  # --help lists the options of the last class first
    """The options of a search. Each field is an option of the command line and a key of a YAML file.

    A package declares the options that it uses, and its functions take no others. Here are those of the whole search.

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
        "Task to train: arc, liquid, lm, FILE.py:ClassName, package.module:ClassName, or a function of either.",
    )

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

        if (count := len(self.objective)) > 1 and not SAMPLERS[self.sampler].takes_several_objectives:
            able = join_words([name for name, kind in SAMPLERS.items() if kind.takes_several_objectives], "or")
            yield f"--sampler must be {able} with {count} objectives, but got {self.sampler}."

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
                "With --scheduler none it ends when the function returns."
            )
        if self.makes_model:
            yield (
                f"--register must come with a task class, but {self.task.rpartition(':')[2]} is a function, which "
                "does not say what it predicts. Log its checkpoint with mlflow yourself, or make it a task: "
                "docs/tasks.md."
            )
        yield from check_parameter_names(dict.fromkeys(self.search, "--search") | dict.fromkeys(self.set, "--set"))


OPTIONS = sorted(list_options(SearchConfig), key=lambda declared: GROUPS.index(declared.group))
