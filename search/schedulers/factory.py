"""Creation of the scheduler that the options of a search name."""

from searchlight.search.errors import UsageError
from searchlight.search.schedulers.base import Scheduler, SchedulerSettings
from searchlight.search.schedulers.options import SchedulerOptions
from searchlight.search.space.objectives import Mode


def create_scheduler(
    options: SchedulerOptions,
    epochs: int,
    mode: Mode,
    judged_from: int = 1,
    seed: int = 0,
    starts_with_defaults: bool = False,
) -> Scheduler:
    """Return the scheduler that `options` name, for trials of at most `epochs` epochs.

    Args:
        options: The options of schedulers, without contradictions.
        epochs: The largest number of epochs of a trial.
        mode: "min" or "max", the direction of the first objective.
        judged_from: The first epoch whose value predicts the final one.
        seed: The seed of the scheduler's random choices.
        starts_with_defaults: Whether the first trial has the task's defaults.

    Raises:
        UsageError: Trials are too short for the scheduler.

    >>> print(create_scheduler(SchedulerOptions(scheduler="asha"), 9, "min"))
    rungs: 1, 3, 9 epochs
    """
    limit = _compute_limit(options, epochs)
    if options.grace_period is not None and options.grace_period > limit:
        raise UsageError(
            f"--grace-period must be at most a trial's {limit:g} epochs, but got {options.grace_period:g}."
        )
    settings = SchedulerSettings(
        limit,
        mode,
        options.fidelity,
        judged_from,
        seed,
        options.reduction_factor,
        options.grace_period,
        options.population,
        options.exploit_every,
        starts_with_defaults,
    )
    return options.scheduler_class.create(settings)


def _compute_limit(options: SchedulerOptions, epochs: int) -> float:
    """Return the largest budget of a trial, in the unit of fidelity."""
    if options.fidelity == "epochs":
        return min(epochs, int(options.max_fidelity or epochs))
    assert options.max_fidelity is not None, "it was checked when the options were"
    return options.max_fidelity
