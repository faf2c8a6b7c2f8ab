"""Searchers of other projects with an ask-and-tell interface, each configured as its documentation says.

Syne Tune, SMAC3 and NePS are not among the requirements: see `PACKAGES`.
"""

import logging
import math
import os
import sys
import tempfile
import warnings
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping
from datetime import datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import optuna
import torch
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import BaseSampler, GPSampler, TPESampler
from optuna.trial import TrialState

from benchmarks.search.problems.problems import OBJECTIVE, Problem
from benchmarks.search.simulator import Job
from benchmarks.search.strategies import Make
from searchlight.trainables.flatten import flatten

PACKAGES = {"syne": ("syne_tune", "syne-tune"), "smac": ("smac", "smac"), "neps": ("neps", "neural-pipeline-search")}


class OptunaStudy:
    """An Optuna study, called as its page on the ask-and-tell interface says.

    It delivers `Study.best_trial`, which is one of the completed trials. Their value is the last one, as in the
    tutorial on pruning.
    """

    keeps_best = False
    only_whole = True

    def __init__(self, problem: Problem, seed: int, sampler: BaseSampler, pruner: BasePruner) -> None:
        # HyperbandPruner computes the bracket of a trial from the name of the study, which is random by default.
        self._study = optuna.create_study(study_name=f"{problem.name}-{seed}", sampler=sampler, pruner=pruner)
        if problem.defaults is not None:
            self._study.enqueue_trial(dict(problem.defaults))
        self._space = problem.space
        self._epochs = problem.epochs
        self._trials: dict[int, optuna.Trial] = {}

    def suggest(self) -> Job:
        trial = self._study.ask()
        self._trials[trial.number] = trial
        return Job(str(trial.number), trial.number, flatten(self._space.suggest(trial)), 0, self._epochs)

    def report(self, job: Job, epoch: int, value: float) -> bool:
        trial = self._trials[job.trial]
        trial.report(value, epoch)
        if epoch == self._epochs:
            if math.isnan(value):  # as `Study.optimize` does
                self._study.tell(trial, state=TrialState.FAIL)
            else:
                self._study.tell(trial, value)
        elif trial.should_prune():
            self._study.tell(trial, state=TrialState.PRUNED)
        else:
            return True
        del self._trials[job.trial]
        return False


class SyneTune:
    """A scheduler of Syne Tune, called as its page on ask and tell says.

    A trial whose loss is NaN ends with an error. It delivers `Experiment.best_config`, the best of all reports. It has
    no conditional parameters, so parameters that do not apply to a config are sampled and ignored.

    Args:
        name: The name of a class in `syne_tune.optimizer.baselines`.

    Raises:
        ModuleNotFoundError: Syne Tune is not installed.
    """

    keeps_best = True
    only_whole = False

    def __init__(self, name: str, problem: Problem, seed: int) -> None:
        from syne_tune.backend import trial_status
        from syne_tune.optimizer import baselines, scheduler

        np.random.seed(seed)  # RandomSearcher draws from it, whatever its seed is
        self._space = problem.space
        self._epochs = problem.epochs
        self._trial_class = trial_status.Trial
        self._stop = scheduler.SchedulerDecision.STOP
        space = {parameter.name: _convert_to_syne_tune(parameter.distribution) for parameter in self._space.parameters}
        options: dict[str, Any] = {"random_seed": seed, "do_minimize": True}
        if problem.defaults is not None:
            options["points_to_evaluate"] = [dict(problem.defaults)]
        self._scheduler = getattr(baselines, name)(
            space, metric=OBJECTIVE, time_attr="epoch", max_t=self._epochs, **options
        )
        self._trials: dict[int, Any] = {}
        logging.getLogger("syne_tune").setLevel(logging.ERROR)  # it warns of every trial that fails

    def suggest(self) -> Job:
        number, config = len(self._trials), self._scheduler.suggest().config
        trial = self._trial_class(number, config, datetime.fromtimestamp(0))
        self._trials[number] = trial
        self._scheduler.on_trial_add(trial)
        values = self._space.choose(lambda parameter: config[parameter.name])
        return Job(str(number), number, flatten(values), 0, self._epochs)

    def report(self, job: Job, epoch: int, value: float) -> bool:
        trial, result = self._trials[job.trial], {OBJECTIVE: value, "epoch": epoch}
        if math.isnan(value):
            self._scheduler.on_trial_error(trial)
            return False
        if epoch == self._epochs:
            self._scheduler.on_trial_complete(trial, result)
            return False
        return bool(self._scheduler.on_trial_result(trial, result) != self._stop)


class Request(NamedTuple):
    """A config that a peer wants to train until the end of epoch `until`; `handle` is the object to tell it with."""

    config: Hashable
    values: Mapping[str, Any]
    until: int
    handle: Any


class BudgetSearcher:
    """A peer that gets one value for each request, that of the last epoch. A request that diverges has failed.

    Parameters that do not apply to a config are sampled and ignored.
    """

    keeps_best = True
    only_whole = False

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._trials: dict[Hashable, int] = {}
        self._trained: dict[int, int] = {}  # epochs by trial
        self._requests: dict[str, Request] = {}

    @abstractmethod
    def _ask(self) -> Request: ...

    @abstractmethod
    def _tell(self, request: Request, value: float) -> None:
        """Report the value of a request, or NaN if it failed."""

    def suggest(self) -> Job:
        request = self._ask()
        number = self._trials.setdefault(request.config, len(self._trials))
        name = f"{number}-{request.until}"
        self._requests[name] = request
        values = self._problem.space.choose(lambda parameter: request.values[parameter.name])
        return Job(name, number, flatten(values), self._trained.get(number, 0), request.until)

    def report(self, job: Job, epoch: int, value: float) -> bool:
        if epoch < job.until and not math.isnan(value):
            return True
        self._trained[job.trial] = epoch
        self._tell(self._requests.pop(job.name), value)
        return False


class Smac(BudgetSearcher):
    """The multi-fidelity facade of SMAC3, as in its example "Multi-Layer Perceptron Using Multiple Epochs".

    It delivers the incumbent of that example, the best config at the highest budget. A failed request costs as much as
    the worst value. The facade takes the logarithm of values, so negative ones are shifted. Parameters that do not
    apply to a config are sampled and ignored. The defaults are the sixth config of the initial design.

    Raises:
        ModuleNotFoundError: SMAC3 is not installed.
    """

    only_whole = True

    def __init__(self, problem: Problem, seed: int) -> None:
        from ConfigSpace import Configuration, ConfigurationSpace
        from smac import MultiFidelityFacade, Scenario
        from smac.intensifier.hyperband import Hyperband
        from smac.runhistory import StatusType, TrialValue

        super().__init__(problem)
        self._value_class, self._status = TrialValue, StatusType
        self._shift = problem.worst - 2 * problem.best if problem.best < 0 else 0.0
        space = ConfigurationSpace(seed=seed)
        space.add([_convert_to_config_space(p.name, p.distribution) for p in problem.space.parameters])
        self._folder = tempfile.TemporaryDirectory()  # it writes its state
        scenario = Scenario(
            space,
            output_directory=Path(self._folder.name),
            n_trials=500,
            min_budget=1,
            max_budget=problem.epochs,
            crash_cost=problem.worst + self._shift,
            seed=seed,
        )
        first = [] if problem.defaults is None else [Configuration(space, values=flatten(problem.defaults))]
        self._facade = MultiFidelityFacade(
            scenario,
            lambda config, seed, budget: 0.0,
            initial_design=MultiFidelityFacade.get_initial_design(scenario, n_configs=5, additional_configs=first),
            intensifier=Hyperband(scenario, incumbent_selection="highest_budget"),
            overwrite=True,
            logging_level=False,
        )

    def _ask(self) -> Request:
        info = self._facade.ask()
        return Request(info.config, dict(info.config), round(info.budget), info)

    def _tell(self, request: Request, value: float) -> None:
        failed = math.isnan(value)
        cost = (self._problem.worst if failed else value) + self._shift
        status = self._status.CRASHED if failed else self._status.SUCCESS
        self._facade.tell(request.handle, self._value_class(cost=cost, status=status), save=False)


class Neps(BudgetSearcher):
    """An algorithm of NePS, called as its page on ask and tell says.

    It delivers the best of all reports, as `neps.status` does.

    Args:
        name: The name of a function in `neps.algorithms`.
        has_priors: Whether it knows the defaults of the task as priors, with medium confidence.

    Raises:
        ModuleNotFoundError: NePS is not installed.
    """

    def __init__(self, name: str, has_priors: bool, problem: Problem, seed: int) -> None:
        import neps

        super().__init__(problem)
        logging.getLogger("neps").setLevel(logging.ERROR)
        np.random.seed(seed)  # NePS has no argument for a seed
        torch.manual_seed(seed)
        self._random_state: tuple[Any, Any] = np.random.get_state(), torch.get_rng_state()
        self._names = {parameter.name: f"p{number}" for number, parameter in enumerate(problem.space.parameters)}
        given = problem.space.get_defaults() if problem.defaults is None else problem.defaults
        defaults = flatten(given) if has_priors else {}
        fields = {
            self._names[p.name]: _convert_to_neps(p.distribution, defaults.get(p.name))
            for p in problem.space.parameters
        }
        fields["epoch"] = neps.IntegerFidelity(lower=1, upper=problem.epochs)
        space = type("Space", (neps.PipelineSpace,), fields)()
        options = {"sample_prior_first": True} if has_priors and problem.defaults is not None else {}
        self._optimizer = neps.AskAndTell(optimizer=getattr(neps.algorithms, name)(space, **options))

    def _ask(self) -> Request:
        np.random.set_state(self._random_state[0])
        torch.set_rng_state(self._random_state[1])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trial = self._optimizer.ask()
        self._random_state = np.random.get_state(), torch.get_rng_state()
        values = {name: trial.config[short] for name, short in self._names.items()}
        number = trial.metadata.id.split("_rung_")[0]
        return Request(number, values, int(trial.config["epoch"]), trial)

    def _tell(self, request: Request, value: float) -> None:
        failed = math.isnan(value)
        self._optimizer.tell(request.handle, ArithmeticError("diverged") if failed else value)


def _convert(
    distribution: BaseDistribution,
    choice: Callable[[list[Any]], Any],
    real: Callable[[float, float, bool], Any],
    integer: Callable[[int, int, bool], Any],
) -> Any:
    """Return the result of the function for the kind of `distribution`. Ranges are given as low, high and log."""
    if isinstance(distribution, CategoricalDistribution):
        return choice(list(distribution.choices))
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    assert distribution.step in (None, 1)
    convert: Any = real if isinstance(distribution, FloatDistribution) else integer
    return convert(distribution.low, distribution.high, distribution.log)


def _convert_to_syne_tune(distribution: BaseDistribution) -> Any:
    from syne_tune import config_space as space

    return _convert(
        distribution,
        space.choice,
        lambda low, high, log: (space.loguniform if log else space.uniform)(low, high),
        lambda low, high, log: (space.lograndint if log else space.randint)(low, high),
    )


def _convert_to_config_space(name: str, distribution: BaseDistribution) -> Any:
    from ConfigSpace import Categorical, Float, Integer

    return _convert(
        distribution,
        partial(Categorical, name),
        lambda low, high, log: Float(name, (low, high), log=log),
        lambda low, high, log: Integer(name, (low, high), log=log),
    )


def _convert_to_neps(distribution: BaseDistribution, default: Any) -> Any:
    import neps

    def prior(value: Any) -> dict[str, Any]:
        return {} if default is None else {"prior": value, "prior_confidence": "medium"}

    return _convert(
        distribution,
        lambda choices: neps.Categorical(choices, **prior(choices.index(default) if default is not None else None)),
        lambda low, high, log: neps.Float(low, high, log, **prior(default)),
        lambda low, high, log: neps.Integer(low, high, log, **prior(default)),
    )


def find_missing_package(side: str) -> str | None:
    """Return the package that `side` needs and that is not installed, by its name for pip, or None."""
    module, package = PACKAGES.get(side.split("-")[0], ("optuna", ""))
    return None if find_spec(module) else package


def require_hash_seed(sides: Iterable[str]) -> None:
    """Exit with a line if NePS is among `sides` and its proposals would differ from run to run.

    It iterates over sets of names, whose order depends on the hashes of this process.
    """
    if any(side.startswith("neps") for side in sides) and os.environ.get("PYTHONHASHSEED") != "0":
        sys.exit("NePS must run with PYTHONHASHSEED=0, since its proposals depend on it. Set it before python.")


def _build_tpe(problem: Problem, seed: int, pruner: BasePruner) -> OptunaStudy:
    return OptunaStudy(problem, seed, TPESampler(seed=seed), pruner)


PEERS: dict[str, Make] = {
    # With max_resource, as the documentation of HyperbandPruner recommends; all else is the default.
    "optuna-hyperband": lambda problem, seed: _build_tpe(problem, seed, HyperbandPruner(max_resource=problem.epochs)),
    "optuna-median": lambda problem, seed: _build_tpe(problem, seed, MedianPruner()),
    "optuna-halving": lambda problem, seed: _build_tpe(problem, seed, SuccessiveHalvingPruner()),
    "optuna-gp": lambda problem, seed: OptunaStudy(problem, seed, GPSampler(seed=seed), NopPruner()),
    "optuna-gp-hyperband": lambda problem, seed: OptunaStudy(
        problem, seed, GPSampler(seed=seed), HyperbandPruner(max_resource=problem.epochs)
    ),
    "syne-asha": partial(SyneTune, "ASHA"),
    "syne-bohb": partial(SyneTune, "BOHB"),
    "syne-cqr": partial(SyneTune, "ASHACQR"),
    "smac": Smac,
    "neps-hyperband": partial(Neps, "hyperband", False),  # what NePS chooses if it has no priors
    "neps-priorband": partial(Neps, "priorband", True),
}
