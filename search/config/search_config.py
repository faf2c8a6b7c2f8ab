"""The request of a search: the options of all packages."""

from typing import Annotated, Any

from pydantic import BeforeValidator, model_validator

from searchlight.search.execution.options import BudgetOptions, ResourceOptions, TrialOptions
from searchlight.search.option import REPLACED, list_options, option, option_name
from searchlight.search.samplers.options import SamplerOptions
from searchlight.search.schedulers.options import SchedulerOptions
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
        "Task", ..., "", "Task to train: arc, liquid, lm, FILE.py:ClassName or FILE.py:function."
    )

    @model_validator(mode="before")
    @classmethod
    def _refuse_former_options(cls, values: Any) -> Any:
        for name in values if isinstance(values, dict) else ():
            if option_name(name) in REPLACED:
                raise ValueError(f"{name} is gone. Use {REPLACED[option_name(name)]}.")
        return values

    quiet: bool = option("Output", False, "", "Print only warnings, failures and the result.", resumable=True)


OPTIONS = sorted(list_options(SearchConfig), key=lambda declared: GROUPS.index(declared.group))
