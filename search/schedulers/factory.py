"""Creation of the scheduler that a search is configured with."""

from searchlight.search.config import SearchConfig
from searchlight.search.errors import UsageError
from searchlight.search.schedulers.asha import ASHAScheduler
from searchlight.search.schedulers.asha_stopping import ASHAStoppingScheduler
from searchlight.search.schedulers.base import Scheduler
from searchlight.search.schedulers.hyperband import HyperBandScheduler
from searchlight.search.schedulers.median_stopping import MedianStoppingScheduler
from searchlight.search.schedulers.pbt import PopulationBasedTraining
from searchlight.search.space.objectives import Mode

LADDERS: dict[str, type[ASHAScheduler | HyperBandScheduler | ASHAStoppingScheduler]] = {
    "asha": ASHAScheduler,
    "asha-stop": ASHAStoppingScheduler,
    "hyperband": HyperBandScheduler,
}


def create_scheduler(config: SearchConfig, epochs: int, mode: Mode, judged_from: int = 1) -> Scheduler:
    """Return the scheduler that `config` names, for trials of at most `epochs` epochs.

    Args:
        config: The options of the search.
        epochs: The largest number of epochs of a trial.
        mode: "min" or "max", the direction of the first objective.
        judged_from: The first epoch whose value predicts the final one.

    Raises:
        UsageError: Trials are too short for the scheduler.
    """
    limit = _compute_limit(config, epochs)
    if config.grace_period is not None and config.grace_period > limit:
        raise UsageError(f"--grace-period must be at most a trial's {limit:g} epochs, but got {config.grace_period:g}.")
    if config.scheduler in LADDERS:
        return LADDERS[config.scheduler].from_config(
            limit, config.reduction_factor, _compute_grace_period(config, limit, judged_from), mode, config.fidelity
        )
    if config.scheduler == "median":
        return MedianStoppingScheduler(int(limit), int(config.grace_period or judged_from), mode)
    if config.scheduler == "pbt":
        return _create_pbt(config, int(limit), mode, judged_from)
    assert config.scheduler == "none", f"{config.scheduler} must be created here"
    return ASHAScheduler.without_stopping(limit, mode, config.fidelity)


def _compute_limit(config: SearchConfig, epochs: int) -> float:
    """Return the largest budget of a trial, in the unit of fidelity."""
    if config.fidelity == "epochs":
        return min(epochs, int(config.max_fidelity or epochs))
    assert config.max_fidelity is not None, "it was checked when the options were"
    return config.max_fidelity


def _compute_grace_period(config: SearchConfig, limit: float, judged_from: int) -> float:
    """Return the lowest budget of a rung. The default for samples and seconds is two rungs below the limit."""
    if config.grace_period is not None:
        return config.grace_period
    return judged_from if config.fidelity == "epochs" else limit / config.reduction_factor / config.reduction_factor


def _create_pbt(config: SearchConfig, epochs: int, mode: Mode, judged_from: int) -> PopulationBasedTraining:
    interval = config.exploit_every or max(1, epochs // 8)
    if interval >= epochs:
        raise UsageError(
            f"--exploit-every must be below the epochs of a trial, {epochs}, but got {interval}. "
            "Set more epochs, as in --set epochs=9."
        )
    if -(-judged_from // interval) * interval >= epochs:
        raise UsageError(
            f"--scheduler must not be pbt if trials of {epochs} epochs are compared from epoch {judged_from} on: "
            "no member would be compared. Set more epochs."
        )
    assert config.population is not None  # complete() sets it
    return PopulationBasedTraining(config.population, interval, epochs, mode, config.seed, judged_from)
