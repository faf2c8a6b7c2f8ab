"""Creation of Optuna's samplers by their names on the command line."""

import random
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import optuna
from optuna import Study
from optuna.samplers import BaseSampler, CmaEsSampler, GPSampler, NSGAIISampler, QMCSampler, RandomSampler
from optuna.trial import FrozenTrial, TrialState

from searchlight.search.samplers.tpe import FastTPESampler, TrialTable


class StudyNSGAIISampler(NSGAIISampler):
    """Optuna's NSGA-II for trials that may fail after they were shown with values.

    Optuna's NSGA-II stores the parents of a generation, and raises if one of them has lost its values.
    """

    def get_parent_population(self, study: Study, generation: int) -> list[FrozenTrial]:
        parents = super().get_parent_population(study, generation)
        return [trial for trial in parents if trial.state == TrialState.COMPLETE]


def sampler_factory(name: str, seed: int) -> Callable[[int], BaseSampler]:
    """Return `create_sampler` for a study. Its samplers share what they have read of the study's trials."""
    return partial(create_sampler, name, seed, table=TrialTable())


def create_sampler(name: str, seed: int, number: int, table: TrialTable | None = None) -> BaseSampler:
    """Return the Optuna sampler `name` that proposes trial `number` of a search with `seed`.

    Its random numbers depend on `seed` and `number` alone, and not on earlier proposals.
    """
    own = random.Random(f"{seed}-{number}").getrandbits(31)
    samplers: dict[str, Any] = {
        # Independent: multivariate TPE finds worse configs (docs/search-quality.md).
        "tpe": lambda: FastTPESampler(own, table),
        "gp": lambda: GPSampler(seed=own, warn_independent_sampling=False),
        "cmaes": lambda: CmaEsSampler(seed=own, warn_independent_sampling=False),
        # One sequence for the whole search, since only a whole sequence fills the space evenly.
        "qmc": lambda: QMCSampler(
            seed=seed, independent_sampler=RandomSampler(seed=own), warn_independent_sampling=False
        ),
        "nsga2": lambda: StudyNSGAIISampler(seed=own, population_size=20),  # with 50, most searches see one generation
        "random": lambda: RandomSampler(seed=own),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # these are pinned and tested
        sampler: BaseSampler = samplers[name]()
    return sampler
