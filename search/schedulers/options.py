"""The options of schedulers."""

from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any

from pydantic import BeforeValidator, PositiveFloat, ValidationInfo

from searchlight.search.formatting import join_words
from searchlight.search.option import Choice, Count, Options, list_options, option, parse_duration
from searchlight.search.schedulers.base import Scheduler
from searchlight.search.schedulers.registry import SCHEDULERS, list_schedulers_with
from searchlight.search.space.fidelity import Unit


def parse_fidelity(value: Any, info: ValidationInfo) -> Any:
    """Return an amount in the unit of --fidelity. Parse "10m" if that unit is GPU-seconds."""
    return parse_duration(value) if info.data.get("fidelity") == "gpu-seconds" else value


Amount = Annotated[PositiveFloat | None, BeforeValidator(parse_fidelity)]

_scheduler = partial(option, "Scheduler")
_advanced = partial(option, "Advanced")


class SchedulerOptions(Options):
    """Which trials end early, and the budget of a trial.

    >>> SchedulerOptions(scheduler="asha", max_fidelity=27).scheduler_class.__name__
    'ASHAScheduler'
    >>> [problem] = SchedulerOptions(scheduler="none", population=8).find_problems()
    >>> problem
    '--population must come with --scheduler pbt, but got none.'
    """

    scheduler: Annotated[str, Choice(SCHEDULERS)] = _scheduler(
        "hyperband",
        "NAME",
        f"Algorithm that ends trials early: {join_words(list(SCHEDULERS), 'or')}. A command gets "
        "median if it cannot resume, or if its number of epochs is not given.",
    )
    reduction_factor: int = _scheduler(
        3,
        "N",
        "At a rung, continue one of this many trials.",
        schedulers=list_schedulers_with("reduction_factor"),
        ge=2,
    )
    fidelity: Unit = _scheduler(
        "epochs",
        "UNIT",
        "Unit of a trial's budget: epochs, samples or gpu-seconds. "
        f"{join_words([name for name, kind in SCHEDULERS.items() if kind.counts_epochs])} take only epochs.",
    )
    max_fidelity: Amount = _scheduler(
        None, "AMOUNT", "Largest budget of a trial in the unit of --fidelity, e.g. 27 or 10m. Default: all its epochs."
    )
    grace_period: Amount = _scheduler(
        None,
        "AMOUNT",
        "Budget before which no trial ends early, in the unit of --fidelity. "
        "Default: 1 epoch, or more if the task declares it; in another unit, the amount that gives three rungs.",
        schedulers=list_schedulers_with("grace_period"),
    )
    population: int | None = _advanced(
        None,
        "N",
        "Size of the population. Default: half of --trials, at most 20.",
        schedulers=list_schedulers_with("population"),
        ge=2,
    )
    exploit_every: Count | None = _advanced(
        None,
        "N",
        "Epochs between comparisons of the population. Default: an eighth of a trial.",
        schedulers=list_schedulers_with("exploit_every"),
    )

    @property
    def scheduler_class(self) -> type[Scheduler]:
        """The class of the scheduler."""
        return SCHEDULERS[self.scheduler]

    def find_problems(self) -> Iterator[str]:
        yield from super().find_problems()
        for known in list_options(SchedulerOptions):
            if (
                known.schedulers
                and self.scheduler not in known.schedulers
                and getattr(self, known.key) != known.default
            ):
                names = ", ".join(known.schedulers)
                yield f"{known.name} must come with --scheduler {names}, but got {self.scheduler}."
        yield from self._find_fidelity_problems()

    def _find_fidelity_problems(self) -> Iterator[str]:
        unit, limit, grace = self.fidelity, self.max_fidelity, self.grace_period
        if unit != "epochs" and self.scheduler_class.counts_epochs:
            yield f"--fidelity must be epochs with --scheduler {self.scheduler}, but got {unit}."
        if unit != "epochs" and limit is None:
            example = "600 or 10m" if unit == "gpu-seconds" else "100000"
            yield (
                f"--max-fidelity must come with --fidelity {unit}, but got none. "
                f"Set a trial's largest budget: {example}."
            )
        for name, amount in (("--max-fidelity", limit), ("--grace-period", grace)):
            if unit == "epochs" and amount is not None and amount % 1:
                yield f"{name} must be a whole number of epochs, but got {amount:g}."
        if limit is not None and grace is not None and grace > limit:
            yield f"--grace-period must be at most --max-fidelity, {limit:g}, but got {grace:g}."
