"""Generated series, sampled at irregular times: predict the next value from its known time."""

from collections.abc import Callable
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray

from searchlight.models.data.samples import Domain, Samples, Source

Values = NDArray[np.float64]
Uniform = Callable[[int], Values]  # draws in 0..1 for each lane: (draws, lanes)
System = Callable[[int, Uniform], Values]  # fine steps of each lane: (steps, lanes)

SEED = 0
LANES = {"train": 256, "test": 64}
FINE = 16  # steps of the simulation per unit of time
GRID = 4096  # values are rounded to this grid, which removes differences in the last bits
MEMORY = 17.0  # the delay of Mackey and Glass
BURN_IN = 100  # units of time after which a chaotic system does not depend on its start


def load_series(length: int = 128) -> Source:
    """Generate five domains of 256 training and 64 test sequences, each with its own start and parameters.

    Inputs and targets are (N, T, 1), standardized by the training inputs. `dt` is the time from an input to its target:
    gamma distributed with shape 2 and mean 1, in sixteenths. Seeds are fixed.

    - sines: three of them, with periods of 4 to 20 and amplitudes of 0.5 to 1.
    - mackey-glass: the delay equation of Mackey & Glass (1977), chaotic.
    - lorenz: the first coordinate of Lorenz (1963), chaotic; the other two are hidden.
    - spring: x'' = -x - x^3 - c x' with a friction c of 0.02 to 0.1, which slows down as it decays.
    - van-der-pol: the oscillator of van der Pol (1926), which jumps, with a damping of 1 to 3.
    """
    domains = tuple(_build_domain(name, system, length) for name, system in SYSTEMS.items())
    return Source("values", "series", 0, 1, 1, domains)


def _build_domain(name: str, system: System, length: int) -> Domain:
    random = np.random.Generator(np.random.PCG64([SEED, crc32(name.encode())]))
    lanes = sum(LANES.values())

    def draw_uniform(draws: int) -> Values:
        return random.random((draws, lanes))

    # Only `random` is used, since other distributions change with NumPy's version.
    waits = -np.log1p(-draw_uniform(length)) - np.log1p(-draw_uniform(length))
    intervals = np.maximum(1, np.rint(waits / 2 * FINE)).astype(np.int64)
    times = np.concatenate([np.zeros((1, lanes), dtype=np.int64), np.cumsum(intervals, axis=0)])
    values = np.take_along_axis(system(int(times.max()) + 1, draw_uniform), times, axis=0)

    seen = values[:-1, : LANES["train"]]
    values = np.rint((values - seen.mean()) / seen.std() * GRID) / GRID
    columns = torch.from_numpy(values.T.astype(np.float32))[..., None]
    dt = torch.from_numpy((intervals.T / FINE).astype(np.float32))[..., None]
    samples = Samples(columns[:, :-1].contiguous(), columns[:, 1:].contiguous(), dt)
    return Domain(name, samples.select_rows(slice(LANES["train"])), samples.select_rows(slice(LANES["train"], None)))


def _simulate_sines(steps: int, draw_uniform: Uniform) -> Values:
    time = np.arange(steps)[:, None] / FINE
    total = np.zeros((steps, draw_uniform(1).shape[1]))
    for period, phase, amplitude in zip(
        4 + 16 * draw_uniform(3), draw_uniform(3), 0.5 + 0.5 * draw_uniform(3), strict=True
    ):
        total += amplitude * np.sin(2 * np.pi * (time / period + phase))
    return total


def _simulate_mackey_glass(steps: int, draw_uniform: Uniform) -> Values:
    """Integrate x' = 0.2 x(t - 17) / (1 + x(t - 17)^10) - 0.1 x by Euler's rule, from a random past."""
    delay = int(MEMORY * FINE)
    begin = delay + BURN_IN * FINE
    x = np.empty((begin + steps, draw_uniform(1).shape[1]))
    x[: delay + 1] = 0.5 + draw_uniform(1)
    for now in range(delay, len(x) - 1):
        past = x[now - delay]
        square = past * past
        fourth = square * square
        x[now + 1] = x[now] + (0.2 * past / (1 + fourth * fourth * square) - 0.1 * x[now]) / FINE
    return x[begin:]


def _simulate_lorenz(steps: int, draw_uniform: Uniform) -> Values:
    def compute_slope(state: Values) -> Values:
        x, y, z = state
        return np.stack([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z])

    start = np.stack([20.0, 20.0, 20.0])[:, None] * (draw_uniform(3) - 0.5) + np.stack([0.0, 0.0, 25.0])[:, None]
    return _integrate(compute_slope, start, BURN_IN * FINE + steps, 0.08)[BURN_IN * FINE :]


def _simulate_spring(steps: int, draw_uniform: Uniform) -> Values:
    friction = 0.02 + 0.08 * draw_uniform(1)[0]

    def compute_slope(state: Values) -> Values:
        x, v = state
        return np.stack([v, -x - x * x * x - friction * v])

    return _integrate(compute_slope, 4 * draw_uniform(2) - 2, steps, 0.4)


def _simulate_van_der_pol(steps: int, draw_uniform: Uniform) -> Values:
    damping = 1 + 2 * draw_uniform(1)[0]

    def compute_slope(state: Values) -> Values:
        x, v = state
        return np.stack([v, damping * (1 - x * x) * v - x])

    return _integrate(compute_slope, 4 * draw_uniform(2) - 2, BURN_IN * FINE + steps, 0.5)[BURN_IN * FINE :]


def _integrate(compute_slope: Callable[[Values], Values], start: Values, steps: int, unit: float) -> Values:
    """Integrate a system by the classical fourth-order rule. Return its first coordinate at fine steps.

    It uses only sums and products, which round equally on every machine: a chaotic system amplifies the last bit.

    Args:
        slope: The derivative of a state (coordinates, lanes).
        start: The state at the first step.
        steps: The number of steps to return.
        unit: The system's time per unit of time.
    """
    h = unit / FINE
    seen = np.empty((steps, start.shape[1]))
    state = start
    for step in range(steps):
        seen[step] = state[0]
        first = compute_slope(state)
        second = compute_slope(state + h / 2 * first)
        third = compute_slope(state + h / 2 * second)
        fourth = compute_slope(state + h * third)
        state = state + h / 6 * (first + 2 * second + 2 * third + fourth)
    return seen


SYSTEMS: dict[str, System] = {
    "sines": _simulate_sines,
    "mackey-glass": _simulate_mackey_glass,
    "lorenz": _simulate_lorenz,
    "spring": _simulate_spring,
    "van-der-pol": _simulate_van_der_pol,
}
