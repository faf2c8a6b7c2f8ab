"""The fit of the law of an optimum over size.

Near its optimum, the loss is a quadratic function of the parameters, on their scales. All sizes share its curvature,
and the optimum moves linearly in the logarithms of the sizes. So the fit uses the best runs of each size with their
neighbors, not single winners:

    loss = c(size) + 1/2 (u - m)' H (u - m),  m = a + B log(size)

Each loss is relative to the best one of its size. Fitting H first makes the rest linear in `a` and `B`, with normal
priors. A trend stays in the law only if its bootstrap interval excludes the starting law, which is no trend unless
exponents are given.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from searchlight.search.scaling.law import INTERVAL, Array, ScaledParameter, ScalingLaw, build_terms
from searchlight.search.scaling.size import measure_size

DRAWS = 200  # bootstrap samples
NEIGHBORS = 0.4  # share of a size's runs that count as near its best
FEWEST_NEIGHBORS = 3  # beyond one run per parameter
EXPONENT_SPREAD = 0.25  # standard deviation of exponents around the starting law
POSITION_SPREAD = 0.15  # of the optimum around the best runs, in searched ranges
RIDGE = 1e-2  # of the fit of the curvature, relative to columns of variance 1
NOISE, GUESSED = 0.1, 1.0  # guessed noise as a share of the spread of losses near the best, and its weight in runs
FLATTEST = 0.05  # smallest curvature, as a share of the largest
CURVED_FROM = 4  # sizes for a curved law


@dataclass(frozen=True)
class SizedRun:
    """A run: its size and its values by name, and its final loss. Smaller is better, infinity is a divergence."""

    size: Mapping[str, float]
    values: Mapping[str, float]
    loss: float


def fit_law(
    runs: Sequence[SizedRun],
    parameters: Sequence[ScaledParameter],
    exponents: Mapping[str, Mapping[str, float]] | None = None,
    draws: int = DRAWS,
) -> ScalingLaw:
    """Fit the law of the optimum of `parameters` to `runs`. The result is the same for the same runs.

    Args:
        exponents: The starting law: by parameter and size, the exponent of a power law (log scale), or the change per
            e-fold of size. Others are 0.
        draws: The number of bootstrap samples.

    Raises:
        ValueError: No run is finite, there is no parameter, or sizes differ in their names.
    """
    # The result depends neither on the order of runs nor on the unit of sizes.
    order = sorted(runs, key=lambda run: (measure_size(run.size), run.loss, *run.values.values()))
    finite = [run for run in order if math.isfinite(run.loss)]
    if not finite or not parameters:
        raise ValueError(f"a law must have a parameter and a finite run, but got {len(parameters)} and {len(finite)}.")
    names = [*finite[0].size]
    if odd := next((run for run in finite if {*run.size} != {*names}), None):
        raise ValueError(f"sizes must have the same names, but got {names} and {[*odd.size]}.")
    sizes = [tuple(float(run.size[name]) for name in names) for run in finite]
    counts = Counter(sizes)
    levels = np.array([[*counts].index(size) for size in sizes])
    logs = np.log([*counts])
    reference = logs.mean(axis=0)
    is_curved = len(counts) >= CURVED_FROM
    terms = 1 + len(names) + is_curved
    prior = np.zeros((len(parameters), terms))
    for row, parameter in enumerate(parameters):
        start = (exponents or {}).get(parameter.name, {})
        prior[row, 1 : 1 + len(names)] = [start.get(name, 0.0) / parameter.width for name in names]
    losses = _scale_losses(np.array([run.loss for run in finite]), levels)
    slopes = np.array([EXPONENT_SPREAD / (parameter.width if parameter.log else 2) for parameter in parameters])
    data = _Data(
        shares=np.array([[p.to_share(float(run.values[p.name])) for p in parameters] for run in finite]),
        terms=build_terms(logs - reference, terms)[levels],
        levels=levels,
        losses=losses,
        weights=_weigh(losses, levels, len(parameters)),
        prior=prior,
        spread=np.where(np.arange(terms) == 0, POSITION_SPREAD, slopes[:, None]),
    )
    free = np.tile(np.ptp(data.terms, axis=0) > 0, (len(parameters), 1))
    free[:, 0] = True
    samples = np.random.default_rng(0).exponential(size=(draws, len(finite)))  # a Bayesian bootstrap (Rubin 1981)
    tried, errors = _fit(data, samples, free)
    drawn = tried + errors
    drawn[..., 0] = np.clip(drawn[..., 0], 0.0, 1.0)
    low, high = np.quantile(tried, INTERVAL, axis=0)
    moved = free & ((low > prior) | (high < prior))
    moved[:, 0] = True
    if is_curved:  # a curve without a slope is no law
        moved[:, -1] &= moved[:, 1:-1].any(axis=1)
    coefficients, _ = _fit(data, np.vstack([np.ones(len(finite)), samples]), moved)
    return ScalingLaw(tuple(parameters), names, counts, reference, coefficients, prior, drawn)


@dataclass(frozen=True)
class _Data:
    """The finite runs as arrays.

    Attributes:
        shares: Positions of the values in their ranges, (runs, parameters).
        terms: 1, the centered logarithms of the sizes, and the square of their mean for a curved law, (runs, terms).
        levels: The index of the size of each run.
        losses: Relative to the best of the size.
        weights: Of the runs, by their distance to the best one of the size.
        prior: The starting law, (parameters, terms).
        spread: The standard deviation of the coefficients around it, (parameters, terms).
    """

    shares: Array
    terms: Array
    levels: NDArray[np.int64]
    losses: Array
    weights: Array
    prior: Array
    spread: Array


def _scale_losses(losses: Array, levels: NDArray[np.int64]) -> Array:
    """Return each loss above the best of its size, relative to that if all losses have the same sign."""
    best = np.array([losses[levels == level].min() for level in range(levels.max() + 1)])[levels]
    same_sign = bool((losses > 0).all() or (losses < 0).all())
    scaled: Array = (losses - best) / (np.abs(best) if same_sign else 1.0)
    return scaled


def _fit(data: _Data, samples: Array, free: NDArray[np.bool_]) -> tuple[Array, Array]:
    """Return coefficients and an error of each, drawn from the posterior of each fit, both (draws, parameters, terms).

    Terms that are not `free` have their prior.

    Args:
        samples: How often each run counts in each draw, (draws, runs).
    """
    weights = samples * data.weights
    center = weights @ data.shares / weights.sum(axis=1, keepdims=True)
    shares = data.shares - center[:, None]  # (draws, runs, parameters)
    curvature, noise = _fit_curvature(data, shares, weights)
    push = shares @ curvature
    design = -np.einsum("dnp,nt->dnpt", push, data.terms)
    offset = data.prior.copy()
    offset[:, 0] = 0.0  # relative to the center
    rest = data.losses - 0.5 * (push * shares).sum(axis=2) - np.einsum("dnpt,pt->dn", design, offset)
    chosen = _center(design[..., free], data.levels, weights)
    target = _center(rest[..., None], data.levels, weights)
    penalty = (noise[:, None] / data.spread[free]) ** 2
    weighted = np.swapaxes(chosen * weights[..., None], 1, 2)
    gram = weighted @ chosen + penalty[..., None] * np.eye(chosen.shape[2])
    coefficients, errors = np.zeros((2, len(samples), *free.shape))
    coefficients[:, free] = np.linalg.solve(gram, weighted @ target)[..., 0]
    coefficients += offset
    coefficients[..., 0] = np.clip(coefficients[..., 0] + center, 0.0, 1.0)  # nothing was tried beyond the range
    values, vectors = np.linalg.eigh(gram)
    normal = np.random.default_rng(1).normal(size=values.shape) / np.sqrt(np.maximum(values, penalty.min(1)[:, None]))
    errors[:, free] = noise[:, None] * (vectors @ normal[..., None])[..., 0]
    return coefficients, errors


def _weigh(losses: Array, levels: NDArray[np.int64], parameters: int) -> Array:
    """Return the weight of each run, which falls with its distance to the best loss of its size."""
    weights = np.zeros(len(losses))
    for level in np.unique(levels):
        own = losses[levels == level]
        near = min(len(own), max(parameters + FEWEST_NEIGHBORS, math.ceil(NEIGHBORS * len(own))))
        scale = max(float(np.sort(own)[near - 1]), 1e-12)
        weights[levels == level] = np.exp(-((own / scale) ** 2))
    return weights


def _fit_curvature(data: _Data, shares: Array, weights: Array) -> tuple[Array, Array]:
    """Return positive definite curvatures that all sizes share, and the standard deviations of the rest, by draw."""
    draws, runs, count = shares.shape
    first, second = np.triu_indices(count)
    quadratic = shares[..., first] * shares[..., second]
    linear = np.einsum("dnp,nt->dnpt", shares, data.terms).reshape(draws, runs, -1)
    design = _center(np.concatenate([quadratic, linear], axis=2), data.levels, weights)
    target = _center(np.broadcast_to(data.losses[:, None], (draws, runs, 1)), data.levels, weights)
    total = weights.sum(axis=1)
    scale = np.sqrt((weights[..., None] * design**2).sum(axis=1) / total[:, None]) + 1e-12
    design = design / scale[:, None]
    weighted = np.swapaxes(design * weights[..., None], 1, 2)
    ridge = RIDGE * total[:, None, None] * np.eye(design.shape[2])
    gram = weighted @ design
    found = np.linalg.solve(gram + ridge, weighted @ target)
    rest = (target - design @ found)[..., 0]
    fitted = np.trace(np.linalg.solve(gram + ridge, gram), axis1=1, axis2=2)
    variance = (weights * target[..., 0] ** 2).sum(axis=1) / total
    # A curvature that fits few runs exactly shows no noise, so that a guess is added.
    known = (weights * rest**2).sum(axis=1) + GUESSED * NOISE**2 * variance
    noise = np.sqrt(known / (np.maximum(total - fitted, 0.0) + GUESSED)) + 1e-9
    curvature = np.zeros((draws, count, count))
    curvature[:, first, second] = (found[..., 0] / scale)[:, : len(first)]
    curvature = curvature + np.swapaxes(curvature, 1, 2)
    values, vectors = np.linalg.eigh(curvature)
    flattest = np.maximum(FLATTEST * values.max(axis=1, keepdims=True), 1e-6)
    positive = vectors * np.maximum(values, flattest)[:, None] @ np.swapaxes(vectors, 1, 2)
    return positive, noise


def _center(columns: Array, levels: NDArray[np.int64], weights: Array) -> Array:
    """Return `columns`, (draws, runs, n), without their weighted means at each size."""
    member = np.eye(levels.max() + 1)[levels]  # (runs, sizes)
    shares = weights[..., None] * member
    shares = shares / shares.sum(axis=1, keepdims=True)
    means = np.swapaxes(shares, 1, 2) @ columns
    return np.asarray(columns - means[:, levels])
