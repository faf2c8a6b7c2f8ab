"""The schedulers by their names on the command line. A new one is a file, and a line here."""

from searchlight.search.schedulers.asha import ASHAScheduler, FullTraining
from searchlight.search.schedulers.asha_stopping import ASHAStoppingScheduler
from searchlight.search.schedulers.base import Scheduler
from searchlight.search.schedulers.hyperband import HyperBandScheduler
from searchlight.search.schedulers.median_stopping import MedianStoppingScheduler
from searchlight.search.schedulers.pbt import PopulationBasedTraining

SCHEDULERS: dict[str, type[Scheduler]] = {
    "asha": ASHAScheduler,
    "asha-stop": ASHAStoppingScheduler,
    "hyperband": HyperBandScheduler,
    "median": MedianStoppingScheduler,
    "pbt": PopulationBasedTraining,
    "none": FullTraining,
}


def list_schedulers_with(key: str) -> tuple[str, ...]:
    """Return the names of the schedulers that use the option `key`."""
    return tuple(name for name, scheduler in SCHEDULERS.items() if key in scheduler.own_options)
