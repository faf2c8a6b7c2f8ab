"""The schedulers, a file each, and the one that a search asks for."""

from search.config import SearchConfig
from search.config.objectives import Mode
from search.errors import UsageError
from search.schedulers.asha import Halving
from search.schedulers.asha_stopping import Stopping
from search.schedulers.base import Schedule
from search.schedulers.hyperband import HyperBand
from search.schedulers.median_stopping import Median
from search.schedulers.pbt import Population

LADDERS: dict[str, type[Halving | HyperBand | Stopping]] = {
    "asha": Halving,
    "asha-stop": Stopping,
    "hyperband": HyperBand,
}


def make_schedule(config: SearchConfig, epochs: int, mode: Mode, judged_from: int = 1) -> Schedule:
    """The scheduler that `config` names, for trials of at most so many epochs.

    Args:
        config: Of the search.
        epochs: Of a trial.
        mode: Of the first objective.
        judged_from: The first epoch that says something of a trial's end.

    Raises:
        UsageError: Trials are too short for it.
    """
    limit = _limit(config, epochs)
    if config.scheduler in LADDERS:
        return LADDERS[config.scheduler].over(
            limit, config.reduction_factor, _grace_period(config, limit, judged_from), mode, config.fidelity
        )
    if config.scheduler == "median":
        return Median(int(limit), int(config.grace_period or judged_from), mode)
    if config.scheduler == "pbt":
        return _population(config, int(limit), mode, judged_from)
    return Halving.straight(limit, mode, config.fidelity)


def _limit(config: SearchConfig, epochs: int) -> float:
    """How much a trial gets at most."""
    if config.fidelity == "epochs":
        return min(epochs, int(config.max_fidelity or epochs))
    assert config.max_fidelity is not None, "it was checked when the options were"
    return config.max_fidelity


def _grace_period(config: SearchConfig, limit: float, judged_from: int) -> float:
    """Where the first rung may lie; of samples and seconds nobody knows how few say anything: two rungs are below."""
    if config.grace_period is not None:
        return config.grace_period
    return judged_from if config.fidelity == "epochs" else limit / config.reduction_factor / config.reduction_factor


def _population(config: SearchConfig, epochs: int, mode: Mode, judged_from: int) -> Population:
    interval = config.exploit_every or max(1, epochs // 8)
    if interval >= epochs:
        raise UsageError(
            f"--exploit-every must be below the epochs of a trial, {epochs}, but got {interval}. "
            "Set more epochs, as in --set epochs=9."
        )
    if -(-judged_from // interval) * interval >= epochs:
        raise UsageError(
            f"--scheduler must be another than pbt where trials of {epochs} epochs say something from epoch "
            f"{judged_from} on: no member would be compared. Set more epochs."
        )
    assert config.population is not None  # complete() sees to it
    return Population(config.population, interval, epochs, mode, config.seed, judged_from)
