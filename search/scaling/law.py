"""The law of an optimum over size: how the best value of each parameter moves as models and data grow.

Near its optimum, the loss is a quadratic function of the parameters, on their scales. All sizes share its curvature, and
the optimum moves linearly in the logarithms of the sizes. So the fit uses the best runs of each size with their
neighbors, not single winners:

    loss = c(size) + 1/2 (u - m)' H (u - m),  m = a + B log(size)

Each loss is relative to the best one of its size. Fitting H first makes the rest linear in `a` and `B`, with normal
priors. A trend stays in the law only if its bootstrap interval excludes the starting law, which is no trend unless
exponents are given.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
DRAWS = 200  # bootstrap samples
INTERVAL = (0.05, 0.95)
NEIGHBORS = 0.4  # share of a size's runs that count as near its best
FEWEST_NEIGHBORS = 3  # beyond one run per parameter
EXPONENT_SPREAD = 0.5  # standard deviation of exponents around the starting law
POSITION_SPREAD = 0.5  # of the optimum around the best runs, in searched ranges
FLATTEST = 0.05  # smallest curvature, as a share of the largest
EDGE = 0.03  # share of a range that counts as its edge
FAR = 10.0  # factor of extrapolation above which the law is not trusted
CURVED_FROM = 4  # sizes for a curved law


@dataclass(frozen=True)
class ScaledParameter:
    """A number that is searched between `low` and `high`, on a log scale if `log`."""

    name: str
    low: float
    high: float
    log: bool = False

    @property
    def width(self) -> float:
        """The length of the range, in e-folds on a log scale."""
        return math.log(self.high / self.low) if self.log else self.high - self.low

    def to_share(self, value: float) -> float:
        """Return the position of `value` in the range, from 0 to 1."""
        return (math.log(value / self.low) if self.log else value - self.low) / self.width

    def from_share(self, share: float) -> float:
        """Return the value at a position. Positions outside of 0 to 1 are beyond the range."""
        return self.low * math.exp(share * self.width) if self.log else self.low + share * self.width


@dataclass(frozen=True)
class SizedRun:
    """A run: its size and its values by name, and its final loss. Smaller is better, infinity is a divergence."""

    size: Mapping[str, float]
    values: Mapping[str, float]
    loss: float


@dataclass(frozen=True)
class Estimate:
    """A value with its 90 % bootstrap interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Forecast:
    """The setting that the law predicts for a size, and what to know before it is used."""

    size: Mapping[str, float]
    values: Mapping[str, Estimate]
    warnings: Sequence[str] = ()


@dataclass(frozen=True)
class ScalingLaw:
    """Where the optimum of each parameter lies at a size.

    Attributes:
        parameters: The parameters, in the order of the arrays.
        sizes: The names of the sizes.
        runs: The number of finite runs, by size as a tuple of values, in order of size.
        reference: The logarithms of the mean size, one for each name.
        coefficients: Position and slopes, and the curvature of a curved law, (draws + 1, parameters, terms). The first
            one is the fit, the others are of bootstrap samples.
        trends: Whether the optimum of each parameter moves otherwise than in the starting law.
        curvature: The matrix H, (parameters, parameters), in relative loss per squared range.
    """

    parameters: Sequence[ScaledParameter]
    sizes: Sequence[str]
    runs: Mapping[tuple[float, ...], int]
    reference: Array = field(repr=False)
    coefficients: Array = field(repr=False)
    trends: Mapping[str, bool]
    curvature: Array = field(repr=False)

    def predict(self, size: Mapping[str, float]) -> Forecast:
        """Return the setting for `size`, with warnings where it rests on little.

        Raises:
            ValueError: `size` lacks a name, or has a value that is not positive.
        """
        positions = self.locate(size)
        values = {}
        for index, parameter in enumerate(self.parameters):
            low, high = np.quantile(positions[1:, index], INTERVAL)
            at = positions[0, index]
            ends = (parameter.from_share(float(share)) for share in (at, min(low, at), max(high, at)))
            values[parameter.name] = Estimate(*ends)
        return Forecast(size, values, tuple(self._find_warnings(size, positions[0])))

    def locate(self, size: Mapping[str, float]) -> Array:
        """Return the optimum at `size` as positions in the ranges, (draws + 1, parameters)."""
        terms = _build_terms(_to_logs(size, self.sizes)[None] - self.reference, self.coefficients.shape[2])[0]
        located: Array = self.coefficients @ terms
        return located

    @cached_property
    def exponents(self) -> dict[str, dict[str, Estimate]]:
        """The exponent of each size in the law of each parameter: a power law on a log scale, else a slope."""
        found: dict[str, dict[str, Estimate]] = {}
        for row, parameter in enumerate(self.parameters):
            found[parameter.name] = {}
            for column, name in enumerate(self.sizes, 1):
                slopes = self.coefficients[:, row, column] * parameter.width
                low, high = np.quantile(slopes[1:], INTERVAL)
                found[parameter.name][name] = Estimate(float(slopes[0]), float(low), float(high))
        return found

    def _find_warnings(self, size: Mapping[str, float], position: Array) -> Iterator[str]:
        known = np.array([*self.runs])
        for column, name in enumerate(self.sizes):
            largest, smallest = known[:, column].max(), known[:, column].min()
            factor = max(size[name] / largest, smallest / size[name])
            if smallest == largest != size[name]:
                yield f"no run varies {name}, so its effect is that of the starting law"
            elif factor > FAR:
                yield f"{name}={size[name]:g} is {factor:.0f} times beyond the sizes that were run"
        for row, parameter in enumerate(self.parameters):
            if not 0 <= position[row] <= 1:
                value = parameter.from_share(float(position[row]))
                yield f"{parameter.name}={value:.3g} lies outside of its range, {parameter.low:g}..{parameter.high:g}"
            for known_size in self.runs:
                at = self.locate(dict(zip(self.sizes, known_size, strict=True)))[0, row]
                if not EDGE <= at <= 1 - EDGE:
                    where = describe_size(dict(zip(self.sizes, known_size, strict=True)))
                    end = parameter.low if at < 0.5 else parameter.high
                    yield f"at {where} the best {parameter.name} is at the edge of its range, {end:g}: widen it"


def describe_size(size: Mapping[str, float]) -> str:
    """Return a size as text, e.g. "width=64 depth=2"."""
    return " ".join(f"{name}={value:g}" for name, value in size.items())


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
    finite = [run for run in runs if math.isfinite(run.loss)]
    if not finite or not parameters:
        raise ValueError(f"a law must have a parameter and a finite run, but got {len(parameters)} and {len(finite)}.")
    names = [*finite[0].size]
    if odd := next((run for run in finite if {*run.size} != {*names}), None):
        raise ValueError(f"sizes must have the same names, but got {names} and {[*odd.size]}.")
    sizes = sorted({tuple(float(run.size[name]) for name in names) for run in finite}, key=math.prod)
    levels = np.array([sizes.index(tuple(float(run.size[name]) for name in names)) for run in finite])
    logs = np.log(np.array(sizes))
    reference = logs.mean(axis=0)
    terms = 1 + len(names) + (len(sizes) >= CURVED_FROM)
    prior = np.zeros((len(parameters), terms))
    for row, parameter in enumerate(parameters):
        for column, name in enumerate(names, 1):
            prior[row, column] = (exponents or {}).get(parameter.name, {}).get(name, 0.0) / parameter.width
    data = _Data(
        shares=np.array([[p.to_share(float(run.values[p.name])) for p in parameters] for run in finite]),
        terms=_build_terms(logs - reference, terms)[levels],
        levels=levels,
        losses=_scale_losses(np.array([run.loss for run in finite]), levels),
        prior=prior,
        spread=np.array([_build_spread(parameter, terms) for parameter in parameters]),
    )
    free = np.ones(prior.shape, bool)
    varied = np.ptp(data.terms, axis=0) > 0
    free[:, 1:] = varied[1:]
    samples = [*_draw_samples(levels, draws)]
    tried = np.array([_fit(data, sample, free)[0] for sample in samples])
    low, high = np.quantile(tried, INTERVAL, axis=0)
    moved = free & ((low > prior) | (high < prior))
    moved[:, 0] = True
    for row in range(len(parameters)):  # a curve without a slope is no law
        if terms > 1 + len(names) and not moved[row, 1:-1].any():
            moved[row, -1] = False
    kept, curvature = _fit(data, np.arange(len(finite)), moved)
    coefficients = np.array([kept, *(_fit(data, sample, moved)[0] for sample in samples)])
    trends = {parameter.name: bool(moved[row, 1:].any()) for row, parameter in enumerate(parameters)}
    counts = {size: int((levels == level).sum()) for level, size in enumerate(sizes)}
    return ScalingLaw(tuple(parameters), names, counts, reference, coefficients, trends, curvature)


@dataclass(frozen=True)
class _Data:
    """The finite runs as arrays.

    Attributes:
        shares: Positions of the values in their ranges, (runs, parameters).
        terms: 1, the centered logarithms of the sizes, and the square of their mean for a curved law, (runs, terms).
        levels: The index of the size of each run.
        losses: Relative to the best of the size.
        prior: The starting law, (parameters, terms).
        spread: The standard deviation of the coefficients around it, (parameters, terms).
    """

    shares: Array
    terms: Array
    levels: NDArray[np.int64]
    losses: Array
    prior: Array
    spread: Array


def _build_spread(parameter: ScaledParameter, terms: int) -> list[float]:
    slope = EXPONENT_SPREAD / parameter.width if parameter.log else EXPONENT_SPREAD / 2
    return [POSITION_SPREAD, *[slope] * (terms - 1)]


def _to_logs(size: Mapping[str, float], names: Sequence[str]) -> Array:
    if missing := [name for name in names if not size.get(name, 0) > 0]:
        raise ValueError(f"a size must have a positive {missing[0]}, but got {dict(size)}.")
    return np.log([float(size[name]) for name in names])


def _build_terms(centered: Array, terms: int) -> Array:
    """Return 1, the centered logarithms and, if one more term is left, the square of their mean, (n, terms)."""
    columns = [np.ones(len(centered)), *centered.T]
    if len(columns) < terms:
        columns.append(centered.mean(axis=1) ** 2)
    return np.stack(columns, axis=1)


def _scale_losses(losses: Array, levels: NDArray[np.int64]) -> Array:
    """Return each loss above the best of its size, relative to that if all losses have the same sign."""
    best = np.array([losses[levels == level].min() for level in range(levels.max() + 1)])[levels]
    same_sign = bool((losses > 0).all() or (losses < 0).all())
    scaled: Array = (losses - best) / (np.abs(best) if same_sign else 1.0)
    return scaled


def _draw_samples(levels: NDArray[np.int64], draws: int) -> Iterator[NDArray[np.int64]]:
    """Yield bootstrap samples: indices of runs, as many of each size as there are."""
    random = np.random.default_rng(0)
    places = [np.flatnonzero(levels == level) for level in range(levels.max() + 1)]
    for _ in range(draws):
        yield np.concatenate([random.choice(own, len(own)) for own in places])


def _fit(data: _Data, sample: NDArray[np.int64], free: NDArray[np.bool_]) -> tuple[Array, Array]:
    """Return the coefficients (parameters, terms) and the curvature. Terms that are not `free` have their prior."""
    shares, terms, levels, losses = (each[sample] for each in (data.shares, data.terms, data.levels, data.losses))
    weights = _weigh(losses, levels, shares.shape[1])
    center = np.average(shares, axis=0, weights=weights)
    curvature, noise = _fit_curvature(shares - center, terms, levels, losses, weights)
    push = (shares - center) @ curvature  # (runs, parameters)
    rest = losses - 0.5 * np.einsum("np,np->n", push, shares - center)
    offset = data.prior.copy()
    offset[:, 0] = 0.0  # relative to the center
    design = -np.einsum("np,nt->npt", push, terms)
    rest = rest - np.einsum("npt,pt->n", design, offset)
    chosen = _center(design.reshape(len(rest), -1)[:, free.reshape(-1)], levels, weights)
    target = _center(rest[:, None], levels, weights)[:, 0]
    penalty = (noise / data.spread.reshape(-1)[free.reshape(-1)]) ** 2
    gram = (chosen * weights[:, None]).T @ chosen + np.diag(penalty)
    found = np.zeros(free.size)
    found[free.reshape(-1)] = np.linalg.solve(gram, (chosen * weights[:, None]).T @ target)
    coefficients = offset + found.reshape(free.shape)
    coefficients[:, 0] += center
    return coefficients, curvature


def _weigh(losses: Array, levels: NDArray[np.int64], parameters: int) -> Array:
    """Return the weight of each run, which falls with its distance to the best loss of its size."""
    weights = np.zeros(len(losses))
    for level in np.unique(levels):
        own = losses[levels == level]
        near = min(len(own), max(parameters + FEWEST_NEIGHBORS, math.ceil(NEIGHBORS * len(own))))
        scale = max(float(np.sort(own)[near - 1] - own.min()), 1e-12)
        weights[levels == level] = np.exp(-(((own - own.min()) / scale) ** 2))
    return weights


def _fit_curvature(
    shares: Array, terms: Array, levels: NDArray[np.int64], losses: Array, weights: Array
) -> tuple[Array, float]:
    """Return the positive definite curvature that all sizes share, and the standard deviation of the rest."""
    count = shares.shape[1]
    pairs = [(i, j) for i in range(count) for j in range(i, count)]
    quadratic = np.stack([shares[:, i] * shares[:, j] for i, j in pairs], axis=1)
    linear = np.einsum("np,nt->npt", shares, terms).reshape(len(shares), -1)
    design = _center(np.hstack([quadratic, linear]), levels, weights)
    target = _center(losses[:, None], levels, weights)[:, 0]
    scale = np.sqrt((weights[:, None] * design**2).sum(axis=0) / weights.sum()) + 1e-12
    design = design / scale
    gram = (design * weights[:, None]).T @ design + 1e-2 * weights.sum() * np.eye(design.shape[1])
    found = np.linalg.solve(gram, (design * weights[:, None]).T @ target)
    rest = target - design @ found
    freedom = max(weights.sum() - 0.5 * design.shape[1], 0.3 * weights.sum())
    noise = math.sqrt(float((weights * rest**2).sum()) / freedom) + 1e-9
    curvature = np.zeros((count, count))
    for (i, j), value in zip(pairs, (found / scale)[: len(pairs)], strict=True):
        curvature[i, j] += value
        curvature[j, i] += value
    values, vectors = np.linalg.eigh(curvature)
    flattest = max(FLATTEST * float(values.max()), 1e-6)
    return (vectors * np.maximum(values, flattest)) @ vectors.T, noise


def _center(columns: Array, levels: NDArray[np.int64], weights: Array) -> Array:
    """Return `columns` without their weighted means at each size, which are those of the best loss."""
    centered = columns.astype(float).copy()
    for level in np.unique(levels):
        own = levels == level
        centered[own] -= np.average(columns[own], axis=0, weights=weights[own])
    return centered
