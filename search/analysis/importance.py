"""The importance of each parameter in a search, with an interval.

A random forest learns the ranks of some trials from their parameters and predicts the ranks of the others. The
importance of a parameter is the loss of accuracy after its values are shuffled among these trials (Breiman 2001). As a
share of the variance of the ranks, it is Sobol's total effect. A parameter matters only if its share exceeds the shares
that parameters get by chance, when their values belong to other trials (Altmann et al. 2010).

Optuna's evaluators are not used. They consider completed trials only, and early stopping leaves few of them. Their
shares always add up to one, also if no parameter matters. docs/development/search-quality.md contains measurements.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import CategoricalDistribution
from optuna.trial import FrozenTrial

from searchlight.search.analysis.ranking import rank_trials
from searchlight.search.study.record import SearchRecord

FEWEST = 20  # trials: fewer show next to nothing
SHUFFLES = 39  # of the values; a parameter matters if at most one of them gives any parameter as much
SURE = 0.9  # how often the true share lies in the interval
HALVES = 20
LEARNED = 0.632  # of the trials, by each tree: as many different ones as a bootstrap has
LEAF = 2

Array = NDArray[np.float64]
Columns = NDArray[np.float32]
Owner = NDArray[np.int64]


@dataclass(frozen=True)
class Importance:
    """The importance of one parameter.

    Attributes:
        name: The name of the parameter.
        share: The share of the variance of ranks that the parameter explains, alone and together with others.
        low, high: The interval of the share, with the confidence SURE if the estimate has no bias.
        matters: Whether the share exceeds chance, and the interval is above 0.
    """

    name: str
    share: float
    low: float
    high: float
    matters: bool


@dataclass(frozen=True)
class Importances:
    """The importances of all parameters that varied.

    Attributes:
        each: The importances. Parameters that matter come first, then the largest shares.
        trials: The number of compared trials.
        chance: The share that a parameter without effect gets by chance. None: there are too few trials.
    """

    each: tuple[Importance, ...]
    trials: int
    chance: float | None

    @property
    def significant_names(self) -> list[str]:
        """The names of the parameters that matter, the largest share first."""
        return [one.name for one in self.each if one.matters]


def find_importances(record: SearchRecord) -> Importances:
    """Return the importances of a search for its first objective. They are empty if there are too few trials."""
    places = rank_trials(record)
    trials = [trial for trial in record.trials if trial.number in places]
    y = np.array([places[trial.number] for trial in trials])
    if len(trials) < FEWEST or np.ptp(y) == 0:
        return Importances((), len(trials), None)
    draw = np.random.default_rng(0)
    names, table, owner = _build_columns(trials, draw)
    if not names:
        return Importances((), len(trials), None)
    shares = _compute_shares(table, owner, y, seed=0)
    mattering, chance = _find_significant(table, owner, y, shares)
    reach = NormalDist().inv_cdf((1 + SURE) / 2) * _estimate_deviations(table, owner, y)
    low, high = np.clip([shares - reach, shares + reach], 0.0, 1.0)
    each = [
        Importance(name, max(0.0, float(shares[i])), float(low[i]), float(high[i]), i in mattering and bool(low[i] > 0))
        for i, name in enumerate(names)
    ]
    return Importances(tuple(sorted(each, key=lambda one: (not one.matters, -one.share))), len(trials), chance)


def _find_significant(table: Columns, owner: Owner, y: Array, shares: Array) -> tuple[set[int], float]:
    """Return the indices of parameters whose share exceeds chance, and the share that chance explains.

    Parameters are found in steps, because the strongest one would otherwise hide the others. In each step, the values
    of the remaining parameters are moved to other trials. Chance is the largest share that one of them then gets.
    """
    mattering: set[int] = set()
    while True:
        rest = [i for i in range(len(shares)) if i not in mattering]
        own = np.isin(owner, rest)
        draw = np.random.default_rng(1)
        most = []
        for seed in range(1, SHUFFLES + 1):
            shuffled = table.copy()
            shuffled[:, own] = table[draw.permutation(len(y))][:, own]
            most.append(float(_compute_shares(shuffled, owner, y, seed)[rest].max()))
        chance = max(0.0, sorted(most)[-2])
        found = {i for i in rest if shares[i] > chance}
        mattering |= found
        if not found or len(mattering) == len(shares):
            return mattering, chance


def _estimate_deviations(table: Columns, owner: Owner, y: Array) -> Array:
    """Return the standard deviations of the shares over halves of the trials without replacement (Shao 1989).

    A bootstrap would contain trials twice, and the forest would learn one copy and predict the other.
    """
    draw = np.random.default_rng(2)
    halves = (draw.permutation(len(y))[: len(y) // 2] for _ in range(HALVES))
    found: Array = np.std(
        [_compute_shares(table[half], owner, y[half], seed) for seed, half in enumerate(halves)], axis=0, ddof=1
    )
    return found


def _build_columns(trials: Sequence[FrozenTrial], draw: np.random.Generator) -> tuple[list[str], Columns, Owner]:
    """Return the names of parameters that vary, their values as numbers, and the parameter of each column.

    Numbers become ranks, since trees do not depend on the scale. Each choice becomes a column. If a parameter does not
    apply to a trial, it gets the value of a trial to which it applies. Any other value would mark these trials.
    """
    names, columns, owner = list[str](), list[list[int]](), list[int]()
    for name in dict.fromkeys(name for trial in trials for name in trial.params):
        known = [trial.params[name] for trial in trials if name in trial.params]
        order = list(dict.fromkeys(known)) if _is_categorical(name, trials) else sorted(set(known))
        if len(order) < 2:
            continue
        codes = [order.index(trial.params.get(name, known[draw.integers(len(known))])) for trial in trials]
        if _is_categorical(name, trials):
            new_columns = [[int(code == choice) for code in codes] for choice in range(len(order))]
        else:
            new_columns = [codes]
        columns += new_columns
        owner += [len(names)] * len(new_columns)
        names.append(name)
    return names, np.array(columns, dtype=np.float32).T.copy(), np.array(owner)


def _is_categorical(name: str, trials: Sequence[FrozenTrial]) -> bool:
    return any(isinstance(trial.distributions.get(name), CategoricalDistribution) for trial in trials)


def _compute_shares(table: Columns, owner: Owner, y: Array, seed: int) -> Array:
    """Return the share of the variance of `y` that each parameter explains, around 0 for one without effect."""
    from sklearn.tree import DecisionTreeRegressor  # takes a second, and only reports need it

    count, parameters = len(y), int(owner.max()) + 1
    trees = max(20, min(60, 6000 // count))
    draw = np.random.default_rng(seed)
    added, tested_count = np.zeros(parameters), 0
    for tree_seed in range(trees):
        order = draw.permutation(count)
        learned, tested = np.split(order, [round(LEARNED * count)])
        tree = DecisionTreeRegressor(min_samples_leaf=LEAF, random_state=tree_seed)
        tree.fit(table[learned], y[learned], check_input=False)  # our own floats, thousands of times
        shuffled = np.repeat(table[tested][None], parameters, axis=0)
        for parameter in range(parameters):
            own = owner == parameter
            shuffled[parameter][:, own] = table[draw.permutation(tested)][:, own]
        worse = _compute_squared_errors(tree, shuffled.reshape(-1, len(owner)), np.tile(y[tested], parameters))
        added += worse.reshape(parameters, -1).sum(1) - _compute_squared_errors(tree, table[tested], y[tested]).sum()
        tested_count += len(tested)
    shares: Array = added / tested_count / max(2 * y.var(), 1e-12)
    return shares


def _compute_squared_errors(tree: Any, table: Columns, y: Array) -> Array:
    errors: Array = (tree.tree_.predict(table)[:, 0] - y) ** 2  # without the checks that take longer than it does
    return errors
