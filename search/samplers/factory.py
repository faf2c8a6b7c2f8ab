"""Optuna's samplers by the names of the command line."""

import random
import warnings
from typing import Any

import optuna
from optuna import Study
from optuna.samplers import BaseSampler, CmaEsSampler, GPSampler, NSGAIISampler, QMCSampler, RandomSampler
from optuna.trial import FrozenTrial, TrialState

from search.samplers.tpe import FastTPESampler


class StudyNSGAIISampler(NSGAIISampler):
    """Optuna's NSGA-II over trials that may fail after they were shown with values.

    Optuna's keeps the parents of a generation, and raises if one of them has no values any more.
    """

    def get_parent_population(self, study: Study, generation: int) -> list[FrozenTrial]:
        parents = super().get_parent_population(study, generation)
        return [trial for trial in parents if trial.state == TrialState.COMPLETE]


def create_sampler(name: str, seed: int, number: int) -> BaseSampler:
    """Return the Optuna sampler `name` that proposes trial `number` of a search with `seed`.

    What is random in a proposal follows from these two, and not from what was proposed before.
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
        "nsga2": lambda: StudyNSGAIISampler(seed=own, population_size=20),  # of 50, most searches see one generation
        "random": lambda: RandomSampler(seed=own),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # these are pinned and tested
        sampler: BaseSampler = samplers[name]()
    return sampler
