"""Creation of Optuna's samplers by their names on the command line."""

import random
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import optuna
from optuna import Study
from optuna.samplers import BaseSampler, GPSampler, NSGAIISampler, QMCSampler, RandomSampler
from optuna.trial import FrozenTrial, TrialState

from searchlight.search.samplers.cma_es import ReplayedCmaEsSampler
from searchlight.search.samplers.mixture import Belief, MixtureSampler
from searchlight.search.samplers.own import create_own_sampler
from searchlight.search.samplers.tpe import FastTPESampler, TrialTable


class StudyNSGAIISampler(NSGAIISampler):
    """Optuna's NSGA-II for trials that may fail after they were shown with values.

    Optuna's NSGA-II stores the parents of a generation, and raises if one of them has lost its values.
    """

    def get_parent_population(self, study: Study, generation: int) -> list[FrozenTrial]:
        parents = super().get_parent_population(study, generation)
        return [trial for trial in parents if trial.state == TrialState.COMPLETE]


@dataclass(frozen=True)
class Seeds:
    """What a sampler of one trial is created from.

    Attributes:
        search: The seed of the search.
        trial: The seed of this trial's random numbers.
        table: What the samplers of earlier trials have read of the study.
        beliefs: What the user believes about the parameters.
    """

    search: int
    trial: int
    table: TrialTable | None
    beliefs: Mapping[str, Belief] = field(default_factory=dict)


@dataclass(frozen=True)
class SamplerKind:
    """How a sampler is created, and whether it can optimize several objectives, and follow what users believe."""

    create: Callable[[Seeds], BaseSampler]
    takes_several_objectives: bool = True
    takes_beliefs: bool = False


SAMPLERS = {  # by the names on the command line
    "mixture": SamplerKind(lambda seeds: MixtureSampler(seeds.trial, seeds.table, seeds.beliefs), takes_beliefs=True),
    # Independent: multivariate TPE finds worse configs (benchmarks/notes/search-variants.md).
    "tpe": SamplerKind(lambda seeds: FastTPESampler(seeds.trial, seeds.table), takes_beliefs=True),
    "gp": SamplerKind(lambda seeds: GPSampler(seed=seeds.trial, warn_independent_sampling=False)),
    "cmaes": SamplerKind(lambda seeds: ReplayedCmaEsSampler(seeds.trial), takes_several_objectives=False),
    # One sequence for the whole search, since only a whole sequence fills the space evenly. It is scrambled, because
    # others begin with the corner of all low ends, whatever the seed.
    "qmc": SamplerKind(
        lambda seeds: QMCSampler(
            scramble=True,
            seed=seeds.search,
            independent_sampler=RandomSampler(seed=seeds.trial),
            warn_independent_sampling=False,
        )
    ),
    # With a population of 50, most searches see one generation.
    "nsga2": SamplerKind(lambda seeds: StudyNSGAIISampler(seed=seeds.trial, population_size=20)),
    "random": SamplerKind(lambda seeds: RandomSampler(seed=seeds.trial)),
}

TAKING_BELIEFS = [name for name, kind in SAMPLERS.items() if kind.takes_beliefs]


def sampler_factory(name: str, seed: int, beliefs: Mapping[str, Belief] | None = None) -> Callable[[int], BaseSampler]:
    """Return `create_sampler` for a study. Its samplers share what they have read of the study's trials.

    A sampler of the user proposes all trials of a driver, because Optuna's grid and others keep a state.

    Raises:
        UsageError: The sampler of the user cannot be created.
    """
    if name not in SAMPLERS:
        sampler = create_own_sampler(name, seed)
        return lambda number: sampler
    return partial(create_sampler, name, seed, table=TrialTable(), beliefs=beliefs)


def create_sampler(
    name: str,
    seed: int,
    number: int,
    table: TrialTable | None = None,
    beliefs: Mapping[str, Belief] | None = None,
) -> BaseSampler:
    """Return the Optuna sampler `name` that proposes trial `number` of a search with `seed`.

    Its random numbers depend on `seed` and `number` alone, and not on earlier proposals.
    """
    seeds = Seeds(seed, random.Random(f"{seed}-{number}").getrandbits(31), table, beliefs or {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # these are pinned and tested
        return SAMPLERS[name].create(seeds)
