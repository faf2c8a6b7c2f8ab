"""Optuna's samplers: how they are made, and what they are shown of a study."""

import random
import warnings
from typing import TYPE_CHECKING, Any

import optuna
from optuna.samplers import BaseSampler, CmaEsSampler, GPSampler, NSGAIISampler, QMCSampler, RandomSampler

from search.samplers.tpe import FastTPESampler

if TYPE_CHECKING:
    pass


def create_sampler(name: str, seed: int, number: int) -> BaseSampler:
    """The Optuna sampler that the command line calls `name`, as it proposes one trial.

    Args:
        seed: Of the search.
        number: Of the trial. What is random in a proposal follows from it, and not from what was proposed before.
    """
    own = random.Random(f"{seed}-{number}").getrandbits(31)
    samplers: dict[str, Any] = {
        # Each parameter by itself: Optuna's default, all of them together, finds less (docs/search-quality.md).
        "tpe": lambda: FastTPESampler(own),
        "gp": lambda: GPSampler(seed=own, warn_independent_sampling=False),
        "cmaes": lambda: CmaEsSampler(seed=own, warn_independent_sampling=False),
        # One sequence for the whole search: it is the sequence that fills the space evenly.
        "qmc": lambda: QMCSampler(
            seed=seed, independent_sampler=RandomSampler(seed=own), warn_independent_sampling=False
        ),
        "nsga2": lambda: NSGAIISampler(seed=own, population_size=20),  # of 50, most searches see one generation
        "random": lambda: RandomSampler(seed=own),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # these are pinned and tested
        sampler: BaseSampler = samplers[name]()
    return sampler
