"""Which finalist of a search is best, and whether it beats the defaults, by runs under new seeds.

The model of a run is a mean of all configs, plus the deviation of its config, plus the effect of its seed, plus noise.
Deviations and effects are random (Henderson 1975), so that few runs are shrunk toward the common mean. The finalists
share one spread. The defaults have another one, because they were not selected. The ratio of each spread to the noise
is averaged over a grid of values (Gelman 2006), which leaves a posterior in closed form for each of them.
See docs/development/confirmation.md for details and measurements.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from searchlight.search.formatting import format_percent, join_words, pluralize
from searchlight.search.space.objectives import Objective

CHOSEN_FROM = 0.75  # probability of beating the defaults
SHOWN_FROM = 0.95  # the same; then the interval of the difference lies above 0
INTERVAL = (0.05, 0.95)  # quantiles
POWER = 0.8  # of telling the detectable difference
SPREADS = tuple(np.geomspace(1 / 8, 8, 5).tolist())  # of the configs, each as a ratio to the noise
SEED_SPREADS = (1 / 8, 1 / 2, 2.0, 8.0, 32.0)  # of the seeds, which may move all configs alike
DRAWS = 20_000

Array = NDArray[np.float64]
Runs = Mapping[int | None, Mapping[int, float]]  # the value of each run, by trial (None: the defaults) and seed


@dataclass(frozen=True)
class ConfirmedConfig:
    """A finalist or the defaults, and the estimate of its value as a mean over seeds.

    Attributes:
        trial: The number of the finalist. None: the defaults.
        values: The value of each confirming run, by seed.
        interval: 90 %, equal-tailed, low <= high.
        difference: To the defaults, where positive is better. None: these are the defaults, or they have no runs.
        difference_interval: 90 %, equal-tailed, low <= high.
        probability_best: Of the best mean of all configs here.
    """

    trial: int | None
    values: Mapping[int, float]
    mean: float
    interval: tuple[float, float]
    difference: float | None
    difference_interval: tuple[float, float] | None
    probability_best: float
    probability_beats_defaults: float | None


@dataclass(frozen=True)
class Confirmation:
    """The answer of a search's confirming runs.

    Attributes:
        configs: The finalists and the defaults, the best mean first.
        noise: The standard deviation of one run around the mean of its config, over seeds.
        chosen: The finalist to use. None: keep the defaults.
        detectable_difference: The smallest true difference between two configs with the most runs whose 90 % interval
            lies on one side of 0 in four of five confirmations.
        diverged, infeasible: The configs that did so under a new seed, and therefore are not in `configs`.
    """

    objective: Objective
    configs: tuple[ConfirmedConfig, ...]
    noise: float
    chosen: int | None
    detectable_difference: float
    diverged: tuple[int | None, ...] = ()
    infeasible: tuple[int | None, ...] = ()

    @property
    def statement(self) -> str:
        """One sentence that says which config to use, how sure that is, and which configs are left out."""
        notes = ""
        for trials, what in ((self.diverged, "diverged"), (self.infeasible, "infeasible")):
            if text := join_words([describe_config(trial) for trial in trials]):
                notes += f" ({text} {what} under a new seed)"
        return self._choice + notes

    @property
    def _choice(self) -> str:
        if self.chosen is None:
            return "no finalist is shown to beat the defaults; keep them"
        config = next(config for config in self.configs if config.trial == self.chosen)
        runs = pluralize(len(config.values), "seed")
        if config.difference is None or config.difference_interval is None:
            mean, interval = _format_estimate(config.mean, config.interval)
            best = f"trial {self.chosen} is the best of {pluralize(len(self.configs), 'finalist')}"
            sure = f"with probability {format_percent(config.probability_best)}"
            return f"{best} {sure}: {self.objective.metric} {mean} estimated ({interval}, {runs})"
        difference, interval = _format_estimate(config.difference, config.difference_interval)
        if (config.probability_beats_defaults or 0.0) >= SHOWN_FROM:
            return f"trial {self.chosen} beats the defaults by {difference} ({interval}, {runs})"
        text = f"trial {self.chosen} is probably better than the defaults, by {difference} ({interval}, {runs})"
        return f"{text}, but this is not shown"


class _Draws(NamedTuple):
    """The posterior of the configs' means in the unit of the values: its mean and draws of it, larger is better."""

    means: Array  # (configs,)
    draws: Array  # (draws, configs)
    noise: float  # standard deviation of a run around the mean of its config
    paired_noise: float  # the same without the effect of the seed


def describe_config(trial: int | None) -> str:
    """Return the name of a config in texts: "trial 9", or "the defaults" for None."""
    return "the defaults" if trial is None else f"trial {trial}"


def estimate_confirmation(
    values: Runs, objective: Objective, diverged: Collection[int | None] = ()
) -> Confirmation | None:
    """Return what confirming runs show, or None if there are too few of them.

    At least two configs must have a run or have diverged, and one must have two runs. Configs without runs are left
    out. They may have runs under different seeds, and different numbers of runs. The result is the same for the same
    values, and is kept for the next call.

    Args:
        values: The value of each run, by trial number (None: the defaults) and seed.
        objective: The objective, which decides whether larger values are better.
        diverged: The configs of which a run diverged. They are worse than all others, because a mean over their other
            seeds would make them look reliable. So they are left out.

    Raises:
        ValueError: A value is not finite.
    """
    trials = sorted((trial for trial in values if values[trial] and trial not in diverged), key=_order_key)
    wrong = [value for trial in trials for value in values[trial].values() if not math.isfinite(value)]
    if wrong:
        raise ValueError(f"the value of a confirming run must be finite, but got {wrong[0]}. Leave out that run.")
    if len(trials) + len(diverged) < 2 or max((len(values[trial]) for trial in trials), default=0) < 2:
        return None
    known = tuple((trial, tuple(sorted(values[trial].items()))) for trial in trials)
    return _estimate(known, objective, tuple(sorted(diverged, key=_order_key)))


@lru_cache(maxsize=16)  # a page and its result ask for the same one several times
def _estimate(
    known: tuple[tuple[int | None, tuple[tuple[int, float], ...]], ...],
    objective: Objective,
    diverged: tuple[int | None, ...],
) -> Confirmation:
    runs = {trial: dict(own) for trial, own in known}
    sign = 1.0 if objective.mode == "max" else -1.0
    posterior = _draw_posterior(runs, sign)
    configs = _summarize_configs(runs, posterior, sign)
    seeds = sorted(map(len, runs.values()))[-2:][0]
    return Confirmation(
        objective=objective,
        configs=tuple(configs),
        noise=posterior.noise,
        chosen=_choose_finalist(configs),
        detectable_difference=_find_detectable_difference(seeds, posterior.paired_noise),
        diverged=diverged,
    )


def _order_key(trial: int | None) -> int:
    return -1 if trial is None else trial


def _draw_posterior(runs: Runs, sign: float) -> _Draws:
    values = np.array([sign * value for own in runs.values() for value in own.values()])
    unit = math.ldexp(1.0, math.frexp(np.abs(values).max())[1] - 1)  # a square of a value may be infinite or 0
    values = values / unit
    center, scale = (values.mean(), values.std()) if np.ptp(values) > 0 else (values[0], 1.0)
    y = (values - center) / scale
    center, scale = center * unit, scale * unit
    design = _build_design(runs)
    ratios, precision = _build_grid([*runs], design.shape[1])
    # Each matrix is (grid, columns, columns), where the columns are the common mean, the configs and the seeds.
    gram = design.T @ design + precision[:, None, :] * np.eye(design.shape[1])
    moment = design.T @ y
    solution = np.linalg.solve(gram, moment[:, None])[..., 0]
    rest = np.maximum(y @ y - solution @ moment, 0.0)
    degrees = len(y) - 1  # a flat prior of the common mean takes one
    log_weight = 0.5 * (np.log(precision[:, 1:]).sum(axis=1) - np.linalg.slogdet(gram).logabsdet)
    log_weight -= 0.5 * degrees * np.log(np.maximum(rest, np.finfo(float).tiny))
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()

    to_means = np.zeros((len(runs), design.shape[1]))
    to_means[:, 0] = 1.0
    to_means[:, 1 : len(runs) + 1] = np.eye(len(runs))
    means = solution @ to_means.T
    scatter = np.linalg.cholesky(to_means @ np.linalg.solve(gram, to_means.T))
    draw = np.random.default_rng(0)
    point = np.repeat(np.arange(len(weight)), draw.multinomial(DRAWS, weight))
    noise = np.sqrt(rest[point] / draw.chisquare(degrees, DRAWS))
    # The configs' distances are no draws from the prior. If they counted as evidence of the noise, as they do above,
    # intervals of differences would be too narrow: see docs/development/confirmation.md.
    sigma = np.sqrt(rest[point] / draw.chisquare(len(y) - len(runs), DRAWS))
    moved = np.einsum("dij,dj->di", scatter[point], draw.standard_normal((DRAWS, len(runs))))
    return _Draws(
        means=center + scale * (weight @ means),
        draws=center + scale * (means[point] + sigma[:, None] * moved),
        noise=float(scale * np.median(noise * np.hypot(1.0, ratios[point, 2]))),
        paired_noise=float(scale * np.median(sigma)),
    )


def _build_design(runs: Runs) -> Array:
    """Return the design matrix, a row of 0 and 1 per run, with columns for the mean, each config and each seed."""
    seeds = sorted({seed for own in runs.values() for seed in own})
    rows = [(config, seeds.index(seed)) for config, own in enumerate(runs.values()) for seed in own]
    configs, of_seed = np.array(rows).T
    return np.hstack([np.ones((len(rows), 1)), np.eye(len(runs))[configs], np.eye(len(seeds))[of_seed]])


def _build_grid(trials: Sequence[int | None], columns: int) -> tuple[Array, Array]:
    """Return the ratios to the noise, of finalists, defaults and seeds, and the prior precision of each column."""
    own = SPREADS if None in trials else SPREADS[:1]
    ratios = np.array([*product(SPREADS, own, SEED_SPREADS)])
    kind = [*(1 if trial is None else 0 for trial in trials), *[2] * (columns - 1 - len(trials))]
    return ratios, np.hstack([np.zeros((len(ratios), 1)), ratios[:, kind] ** -2.0])


def _summarize_configs(runs: Runs, posterior: _Draws, sign: float) -> list[ConfirmedConfig]:
    """Return the configs, the best mean first. Ties are sorted: the defaults, then lower trial numbers."""
    trials, draws = [*runs], posterior.draws
    is_best = draws == draws.max(axis=1, keepdims=True)
    best = (is_best / is_best.sum(axis=1, keepdims=True)).mean(axis=0)
    base = trials.index(None) if None in runs else None
    configs = []
    for index in sorted(range(len(trials)), key=lambda index: -posterior.means[index]):
        has_difference = base is not None and index != base
        gain = draws[:, index] - draws[:, base or 0]
        configs.append(
            ConfirmedConfig(
                trial=trials[index],
                values=runs[trials[index]],
                mean=float(sign * posterior.means[index]),
                interval=_find_interval(sign * draws[:, index]),
                difference=float(posterior.means[index] - posterior.means[base or 0]) if has_difference else None,
                difference_interval=_find_interval(gain) if has_difference else None,
                probability_best=float(best[index]),
                probability_beats_defaults=float((gain > 0).mean()) if has_difference else None,
            )
        )
    return configs


def _find_interval(draws: Array) -> tuple[float, float]:
    low, high = np.quantile(draws, INTERVAL)
    return float(low), float(high)


def _choose_finalist(configs: Sequence[ConfirmedConfig]) -> int | None:
    """Return the finalist with the best mean, or None if it is not likely enough to beat the defaults."""
    best = next((config for config in configs if config.trial is not None), None)
    if best is None:  # all finalists diverged
        return None
    beats = best.probability_beats_defaults
    return best.trial if beats is None or beats >= CHOSEN_FROM else None


def _find_detectable_difference(seeds: int, paired_noise: float) -> float:
    known = (NormalDist().inv_cdf(INTERVAL[1]) + NormalDist().inv_cdf(POWER)) * math.sqrt(2 / seeds) * paired_noise
    # Few seeds shrink the difference and leave the noise unsure. In simulations of 2 to 8 seeds this made up for it.
    return (1 + 1 / seeds) * known


def _format_estimate(value: float, interval: tuple[float, float]) -> tuple[str, str]:
    """Return a value and its interval as text, with two digits of the width of the interval."""
    width = interval[1] - interval[0]
    places = 1 - math.floor(math.log10(width)) if width > 0 else 15
    largest = max(abs(number) for number in (value, *interval))
    digits = max(4, places + 1 + math.floor(math.log10(largest))) if largest > 0 else 4
    own, low, high = (f"{round(number, places):.{min(digits, 15)}g}" for number in (value, *interval))
    return own, f"90 % interval {low} to {high}"
