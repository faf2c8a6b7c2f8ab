"""The schedulers, a file each, and the one that a search asks for."""

from search.config import SearchConfig
from search.errors import UsageError
from search.schedule import Mode, Schedule
from search.schedulers.halving import Halving
from search.schedulers.hyperband import HyperBand
from search.schedulers.median import Median
from search.schedulers.pbt import Population


def make_schedule(config: SearchConfig, epochs: int, mode: Mode) -> Schedule:
    """The scheduler that `config` names, for trials of so many epochs.

    Raises:
        UsageError: Trials are too short for it.
    """
    if config.scheduler == "asha":
        return Halving.over(epochs, config.reduction_factor, config.grace_period, mode)
    if config.scheduler == "hyperband":
        return HyperBand.over(epochs, config.reduction_factor, config.grace_period, mode)
    if config.scheduler == "median":
        return Median(epochs, config.grace_period, mode)
    if config.scheduler == "pbt":
        interval = config.exploit_every or max(1, epochs // 8)
        if interval >= epochs:
            raise UsageError(
                f"--exploit-every must be below the epochs of a trial, {epochs}, but got {interval}. "
                "Set more epochs, as in --set epochs=9."
            )
        size = config.population or max(2, min(20, config.trials // 2))
        return Population(size, interval, epochs, mode, config.seed)
    return Halving.straight(epochs, mode)
