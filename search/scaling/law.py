"""The law of an optimum over size: how the best value of each parameter moves as models and data grow."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from searchlight.search.scaling.size import describe_size

Array = NDArray[np.float64]
INTERVAL = (0.05, 0.95)
WIDER = 1.2  # how much wider the spread of a slope must be to show a move: see tests/search/scaling/test_law.py
FEWEST_RUNS = 4  # at each of two sizes that show a move
EDGE = 0.03  # share of a range that counts as its edge
FAR = 10.0  # factor of extrapolation above which the law is not trusted
NEAREST, FARTHEST = 0.06, 0.25  # distance of proposed neighbors, in searched ranges
SAME = 0.02  # proposals that are closer in each parameter are one


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
class Estimate:
    """A value with the spread of the fit: the middle 90 % of bootstrap samples.

    It is no confidence interval: it may miss the true value, above all after few noisy trials.
    """

    value: float
    low: float
    high: float

    @classmethod
    def build(cls, value: float, low: float, high: float) -> "Estimate":
        """Return the estimate of a value, which its spread may miss."""
        return cls(float(value), float(min(low, value)), float(max(high, value)))


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
        prior: Position and slopes of the starting law, (parameters, terms).
        draws: Bootstrap samples of all coefficients with the error of each fit, (draws, parameters, terms).
    """

    parameters: Sequence[ScaledParameter]
    sizes: Sequence[str]
    runs: Mapping[tuple[float, ...], int]
    reference: Array = field(repr=False)
    coefficients: Array = field(repr=False)
    prior: Array = field(repr=False)
    draws: Array = field(repr=False)

    def predict(self, size: Mapping[str, float]) -> dict[str, Estimate]:
        """Return the optimum of each parameter at `size`. See also `find_warnings`.

        Raises:
            ValueError: `size` lacks a name, or has a value that is not positive.
        """
        places = zip(self.parameters, self.locate(size)[0], *self.locate_spread(size), strict=True)
        return {parameter.name: Estimate.build(*map(parameter.from_share, place)) for parameter, *place in places}

    def propose(self, size: Mapping[str, float], count: int) -> list[dict[str, float]]:
        """Return at most `count` settings to run at `size`, inside of the searched ranges, in the order of their use.

        They are the predicted optimum, and for each parameter a smaller and a larger value. The remaining ones are
        drawn around the optimum. The distance of neighbors is half the spread of the bootstrap samples, within limits.
        """
        positions = np.clip(self.locate(size), 0.0, 1.0)
        center = positions[0]
        low, high = np.quantile(positions[1:], INTERVAL, axis=0)
        step = np.clip((high - low) / 2, NEAREST, FARTHEST)
        random = np.random.default_rng(0)
        points = [center, *(center + sign * step * axis for axis in np.eye(len(center)) for sign in (-1.0, 1.0))]
        points += [center + step * random.uniform(-1.5, 1.5, len(center)) for _ in range(4 * count)]
        chosen: list[Array] = []
        for point in (np.clip(point, 0.0, 1.0) for point in points):
            if len(chosen) < count and not any((np.abs(point - other) < SAME).all() for other in chosen):
                chosen.append(point)
        named = (zip(self.parameters, point.tolist(), strict=True) for point in chosen)
        return [{parameter.name: parameter.from_share(share) for parameter, share in each} for each in named]

    def locate(self, size: Mapping[str, float]) -> Array:
        """Return the optimum at `size` as positions in the ranges, (draws + 1, parameters)."""
        return np.asarray(self.coefficients @ self._build_terms(size))

    def locate_spread(self, size: Mapping[str, float]) -> Array:
        """Return the ends of the spread of the optimum at `size` as positions in the ranges, (2, parameters)."""
        return np.asarray(np.quantile(self.draws @ self._build_terms(size), INTERVAL, axis=0))

    def _build_terms(self, size: Mapping[str, float]) -> Array:
        if missing := [name for name in self.sizes if not size.get(name, 0) > 0]:
            raise ValueError(f"a size must have a positive {missing[0]}, but got {dict(size)}.")
        logs = np.log([float(size[name]) for name in self.sizes])
        return build_terms(logs - self.reference, self.coefficients.shape[2])

    @cached_property
    def exponents(self) -> dict[str, dict[str, Estimate]]:
        """The exponent of each size in the law of each parameter: a power law on a log scale, else a slope."""
        found = {}
        for row, parameter in enumerate(self.parameters):
            own = (self._slopes[:, row] * parameter.width).T
            found[parameter.name] = {name: Estimate.build(*each) for name, each in zip(self.sizes, own, strict=True)}
        return found

    @cached_property
    def moves(self) -> dict[str, bool]:
        """Whether the optimum of each parameter clearly moves otherwise than in the starting law.

        Two sizes must have enough runs, and the spread of a slope, widened, must exclude the starting law.
        """
        is_known = sum(count >= FEWEST_RUNS for count in self.runs.values()) >= 2
        start = self.prior[:, 1 : 1 + len(self.sizes)]
        slopes, *ends = self._slopes
        low, high = (slopes + WIDER * (end - slopes) for end in ends)
        return self._name(is_known & ((low > start) | (high < start)).any(axis=1))

    @property
    def trends(self) -> dict[str, bool]:
        """Whether the optimum of each parameter moves otherwise than in the starting law, as far as is known."""
        return self._name((self.coefficients[0, :, 1:] != self.prior[:, 1:]).any(axis=1))

    @cached_property
    def _slopes(self) -> Array:
        """The slopes and the ends of their spread, (3, parameters, sizes)."""
        place = slice(1, 1 + len(self.sizes))
        return np.stack([self.coefficients[0, :, place], *np.quantile(self.draws[..., place], INTERVAL, axis=0)])

    def _name(self, answers: NDArray[np.bool_]) -> dict[str, bool]:
        return dict(zip((parameter.name for parameter in self.parameters), answers.tolist(), strict=True))

    def find_warnings(self, size: Mapping[str, float]) -> Iterator[str]:
        """Yield what to know before the optimum at `size` is used, because it rests on little."""
        known = np.array([*self.runs])
        for name, smallest, largest in zip(self.sizes, known.min(axis=0), known.max(axis=0), strict=True):
            factor = max(size[name] / largest, smallest / size[name])
            if smallest == largest != size[name]:
                yield f"no run varies {name}, so its effect is that of the starting law"
            elif factor > FAR:
                yield f"{name}={size[name]:g} is {factor:.0f} times beyond the sizes that were run"
        found = build_terms(np.log(known) - self.reference, self.coefficients.shape[2]) @ self.coefficients[0].T
        for parameter, at, places in zip(self.parameters, self.locate(size)[0], found.T, strict=True):
            low, high = parameter.low, parameter.high
            if not 0 <= at <= 1:
                yield f"{parameter.name}={parameter.from_share(at):.3g} lies outside of its range, {low:g}..{high:g}"
            for end, is_there in ((low, places < EDGE), (high, places > 1 - EDGE)):
                if is_there.any():
                    sizes = [describe_size(dict(zip(self.sizes, each, strict=True))) for each in known[is_there]]
                    where = f"at the edge of its range, {end:g}, at {', '.join(sizes)}"
                    yield f"the best {parameter.name} is {where}: widen it"


def build_terms(centered: Array, terms: int) -> Array:
    """Return 1, the centered logarithms and, if one more term is left, the square of their mean, (..., terms)."""
    square = centered.mean(axis=-1, keepdims=True) ** 2
    return np.concatenate([np.ones_like(square), centered, square], axis=-1)[..., :terms]
