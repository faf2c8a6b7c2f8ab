"""Measure the benefit of confirming runs, by searches of simulated problems with known true values.

Each search has 20 trials, of which the first one is the defaults. Then the finalists and the defaults run again under
new seeds, as search/schedulers/confirmation.py decides, and search/analysis/confirmation.py chooses the config.
A search without confirmation has as many more trials as the other one has confirming runs, and takes its best trial.
All trials and runs are trained in full. The unit of values is the spread of the true values of a problem's configs.

The last tables draw searches from the recorded trainings of a real task. The true value of a config is its mean over
all recorded seeds, and the unit is that of the task.

    python benchmarks/search/confirmation.py [--searches 400] [--processes 2] [--replays]
"""

import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from multiprocessing import Pool
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a clone need not be installed

from benchmarks.recording import RESULTS, Row, Table, create_parser, print_result
from benchmarks.search.problems.hartmann import ALPHA, A, P
from searchlight.search.analysis.confirmation import CHOSEN_FROM, estimate_confirmation
from searchlight.search.schedulers.confirmation import default_runs, next_runs, num_finalists
from searchlight.search.space.objectives import Objective

TABLE = RESULTS / "digit_seeds.csv"  # a row per config, the defaults first: its values, and a loss for each seed
PARAMETERS = 3  # the first columns of the table
TRIALS = 20
UNITS = dict.fromkeys(("worse_without", "worse", "pick_covered", "differences_covered"), "%")
RUNS = (default_runs(TRIALS, 1), 15)
NOISES = (0.3, 1.0, 3.0)  # standard deviation of a run, in spreads of the true values
THRESHOLDS = (0.5, 0.6, 0.7, 0.75, 0.8, 0.9)
SCORE = Objective("score", "max")
POOL = 50_000  # configs that give the spread, the best value and the quantile of the defaults

Array = NDArray[np.float64]
Rng = np.random.Generator
Results = dict[tuple[str, float, int], list["Outcome"]]  # by name, noise and runs


class Trials(NamedTuple):
    """The trials of a search, in order. The first one is the defaults."""

    true: Array
    seen: Array
    rows: Array  # of the table of a replay


class Outcome(NamedTuple):
    """What a search picked, with and without confirmation."""

    worse_without: bool
    gain_without: float  # true value less that of the defaults
    bias_without: float  # reported value less the true one
    gain: float  # of the best finalist
    sure: float  # probability that it beats the defaults
    bias: float
    covered: bool  # the true value of the pick, by its interval
    differences_covered: Sequence[bool]


@dataclass(frozen=True)
class Problem:
    """True values of configs, and the noise of a run.

    Attributes:
        values: A function that draws points, one per row. Without parameters, it draws the true values themselves.
        defaults: The quantile of the defaults among the configs.
        function: Returns the true value of points. None: the points are values.
        shared: The share of the noise variance that is common to all configs under one seed.
        factor: The factor of the noise as a function of the true value, in spreads.
        degrees: The degrees of freedom of Student's t. None: the noise is normal.
    """

    name: str
    values: Callable[[Rng, int], Array]
    defaults: float
    function: Callable[[Array], Array] | None = None
    shared: float = 0.0
    factor: Callable[[Array], Array] = np.ones_like
    degrees: int | None = None


def draw_few_good(draw: Rng, count: int) -> Array:
    good = draw.random(count) < 0.1
    return np.where(good, draw.normal(2.0, 0.3, count), draw.normal(0.0, 0.5, count))


def draw_plateau(draw: Rng, count: int) -> Array:
    """Return values of which half equal the best one."""
    return np.minimum(0.0, draw.uniform(-1.0, 1.0, count))


def draw_normal(draw: Rng, count: int) -> Array:
    return draw.standard_normal(count)


def compute_branin(points: Array) -> Array:
    x, y = 15 * points[:, 0] - 5, 15 * points[:, 1]
    valley = (y - 5.1 * x**2 / (4 * np.pi**2) + 5 * x / np.pi - 6) ** 2
    return -np.log1p(valley + 10 * (1 - 1 / (8 * np.pi)) * np.cos(x) + 10)


def compute_hartmann6(points: Array) -> Array:
    """Return Hartmann's function, of which larger values are better here."""
    return np.exp(-(A[6] * (points[:, None] - P[6]) ** 2).sum(axis=2)) @ ALPHA


def compute_bowl(points: Array) -> Array:
    """Return a quadratic of 20 parameters of which a few matter."""
    return -(((points - 0.3) ** 2) @ 0.7 ** np.arange(points.shape[1]))


def draw_in_cube(dimensions: int) -> Callable[[Rng, int], Array]:
    return lambda draw, count: draw.random((count, dimensions))


PROBLEMS = {
    problem.name: problem
    for problem in (
        Problem("normal, bad defaults", draw_normal, 0.16),
        Problem("normal, average defaults", draw_normal, 0.5),
        Problem("normal, good defaults", draw_normal, 0.84),
        Problem("normal, seeds shared", draw_normal, 0.84, shared=0.5),
        Problem("skewed", lambda draw, count: -draw.exponential(size=count), 0.8),
        Problem("few good", draw_few_good, 0.5),
        Problem("plateau", draw_plateau, 0.9),
        Problem("noisy if bad", draw_normal, 0.84, factor=lambda true: np.exp(-0.4 * true)),
        Problem("noisy if good", draw_normal, 0.84, factor=lambda true: np.exp(0.4 * true)),
        Problem("heavy-tailed noise", draw_normal, 0.84, degrees=3),
        Problem("branin, 2 parameters", draw_in_cube(2), 0.84, compute_branin),
        Problem("hartmann, 6 parameters", draw_in_cube(6), 0.5, compute_hartmann6),
        Problem("bowl, 20 parameters", draw_in_cube(20), 0.84, compute_bowl),
    )
}


class Simulator:
    """Draws searches and runs of a problem."""

    def __init__(self, problem: Problem, noise: float) -> None:
        self._problem, self._noise = problem, noise
        pool = self._evaluate(problem.values(np.random.default_rng(0), POOL))
        self._zero, self._spread = pool.mean(), pool.std()
        self.defaults = float((np.quantile(pool, problem.defaults) - self._zero) / self._spread)

    def search(self, draw: Rng, trials: int) -> Trials:
        """Return the trials of a search. With a function, some trials are steps from the best trial so far."""
        problem = self._problem
        points = problem.values(draw, trials - 1)
        shared = self.draw_shared(draw)
        true, seen = np.array([self.defaults]), np.array([self._draw_value(draw, self.defaults, shared)])
        for number in range(trials - 1):
            if problem.function is not None and number >= 8 and draw.random() < 0.7:
                best = points[int(seen[1:].argmax())]
                points[number] = np.clip(best + draw.normal(0, 0.1, best.shape), 0, 1)
            value = (self._evaluate(points[number : number + 1])[0] - self._zero) / self._spread
            true, seen = np.append(true, value), np.append(seen, self._draw_value(draw, value, shared))
        return Trials(true, seen, np.arange(trials))

    def draw_shared(self, draw: Rng) -> float:
        """Return the noise that all configs share under one seed."""
        return float(self._noise * np.sqrt(self._problem.shared) * draw.standard_normal())

    def run(self, draw: Rng, trials: Trials, number: int, shared: float) -> float:
        """Return the value of a run of the config of a trial."""
        return self._draw_value(draw, trials.true[number], shared)

    def _draw_value(self, draw: Rng, true: float, shared: float) -> float:
        degrees = self._problem.degrees
        own = draw.standard_normal() if degrees is None else draw.standard_t(degrees) / np.sqrt(degrees / (degrees - 2))
        scale = self._noise * np.sqrt(1 - self._problem.shared) * self._problem.factor(np.array([true]))[0]
        return float(true + shared + scale * own)

    def _evaluate(self, points: Array) -> Array:
        return points if self._problem.function is None else self._problem.function(points)


class Replay:
    """Draws searches and runs from recorded trainings. The trials of a search share a seed, and runs have other seeds.

    Args:
        configs: The number of recorded configs to search, the best ones.
        defaults: The rank of the config that serves as the defaults, where 0 is the best. None: the task's defaults.
    """

    def __init__(self, configs: int, defaults: int | None) -> None:
        self._values = -np.loadtxt(TABLE, delimiter=",", skiprows=1)[:, PARAMETERS:]
        self._true = self._values.mean(axis=1)
        best = np.argsort(-self._true)[:configs]
        self._first = 0 if defaults is None else int(best[defaults])
        self._others = best[best != self._first]
        self.noise = float(np.sqrt(self._values[best[:10]].var(axis=1, ddof=1).mean()))
        self.spread = float(self._true[best].std())

    def search(self, draw: Rng, trials: int) -> Trials:
        """Return the trials of a search, and choose the seeds of the runs that confirm it."""
        first, *self._seeds = draw.permutation(self._values.shape[1])
        rows = np.array([self._first, *draw.permutation(self._others)[: trials - 1]])
        return Trials(self._true[rows], self._values[rows, first], rows)

    def draw_shared(self, draw: Rng) -> float:
        """Return the next seed."""
        return float(self._seeds.pop())

    def run(self, draw: Rng, trials: Trials, number: int, shared: float) -> float:
        """Return the value of a training of the config of a trial under the seed `shared`."""
        return float(self._values[trials.rows[number], int(shared)])


class Drawn(Protocol):
    """Trials and runs whose true values are known: see `Simulator`."""

    def search(self, draw: Rng, trials: int) -> Trials: ...

    def draw_shared(self, draw: Rng) -> float: ...

    def run(self, draw: Rng, trials: Trials, number: int, shared: float) -> float: ...


REPLAYS = {
    "60 configs": (60, None),
    "60 configs, good defaults": (60, 3),
    "the best 30": (30, None),
    "the best 30, good defaults": (30, 3),
}


def simulate(name: str, noise: float, runs: int, searches: int) -> list[Outcome]:
    """Return the outcomes of `searches` with `runs` confirming runs each. `noise` is that of a problem."""
    simulator = Replay(*REPLAYS[name]) if name in REPLAYS else Simulator(PROBLEMS[name], noise)
    seed = zlib.crc32(f"{name} {noise}".encode())
    return [compare_picks(simulator, np.random.default_rng([seed, number]), runs) for number in range(searches)]


def compare_picks(simulator: Drawn, draw: Rng, runs: int) -> Outcome:
    """Return the picks of a search with confirmation and of a longer search without it."""
    all_trials = simulator.search(draw, TRIALS + runs)
    luckiest = int(all_trials.seen.argmax())
    true, seen = all_trials.true[:TRIALS], all_trials.seen[:TRIALS]
    finalists = [int(number) for number in np.argsort(-seen) if number][: num_finalists(runs)]
    values: dict[int | None, dict[int, float]] = {}
    shared: dict[int, float] = {}  # by round
    while due := next_runs(finalists, values, runs, "max"):
        for config, index in due:
            if index not in shared:
                shared[index] = simulator.draw_shared(draw)
            values.setdefault(config, {})[index] = simulator.run(draw, all_trials, config or 0, shared[index])
    found = estimate_confirmation(values, SCORE)
    assert found is not None
    best = next(config for config in found.configs if config.trial is not None)
    pick = next(config for config in found.configs if config.trial == found.chosen)
    of_pick = true[pick.trial or 0]
    return Outcome(
        worse_without=bool(all_trials.true[luckiest] < true[0]),
        gain_without=float(all_trials.true[luckiest] - true[0]),
        bias_without=float(all_trials.seen[luckiest] - all_trials.true[luckiest]),
        gain=float(true[best.trial or 0] - true[0]),
        sure=best.probability_beats_defaults or 0.0,
        bias=pick.mean - of_pick,
        covered=bool(pick.interval[0] <= of_pick <= pick.interval[1]),
        differences_covered=[
            bool(config.difference_interval[0] <= true[config.trial or 0] - true[0] <= config.difference_interval[1])
            for config in found.configs
            if config.difference_interval
        ],
    )


def compute_gains(outcomes: Sequence[Outcome], threshold: float) -> Array:
    """Return the true value of each pick less that of the defaults, if finalists are chosen from `threshold` on."""
    return np.array([outcome.gain if outcome.sure >= threshold else 0.0 for outcome in outcomes])


def describe(outcomes: Sequence[Outcome], noise: float) -> Row:
    """Return the figures of the searches of a problem. Shares are in percent."""
    picked, without = compute_gains(outcomes, CHOSEN_FROM), np.array([outcome.gain_without for outcome in outcomes])
    more = picked - without
    found = {
        "worse_without": 100 * np.mean([outcome.worse_without for outcome in outcomes]),
        "worse": 100 * np.mean(picked < 0),
        "bias_without": np.mean([outcome.bias_without for outcome in outcomes]) / noise,
        "bias": np.mean([outcome.bias for outcome in outcomes]) / noise,
        "pick_covered": 100 * np.mean([outcome.covered for outcome in outcomes]),
        "differences_covered": 100 * np.mean([each for outcome in outcomes for each in outcome.differences_covered]),
        "gain_without": without.mean(),
        "gain": picked.mean(),
        "more": more.mean(),
        "more_error": 2 * more.std(ddof=1) / np.sqrt(len(more)),
    }
    return {name: float(value) for name, value in found.items()}


def describe_problems(results: Results, noise: float, runs: int) -> Iterator[Row]:
    """Yield the figures of each problem, and their means."""
    setting = {"noise": noise, "runs": runs, "finalists": num_finalists(runs)}
    rows = [describe(results[name, noise, runs], noise) for name in PROBLEMS]
    means = {figure: float(np.mean([row[figure] for row in rows])) for figure in rows[0]}
    for name, row in zip([*PROBLEMS, "mean"], [*rows, means], strict=True):
        yield {**setting, "problem": name, **row}


def describe_thresholds(results: Results) -> Iterator[Row]:
    """Yield the means over problems by the probability from which on a finalist is chosen."""
    for noise, runs, threshold in product(NOISES, RUNS, THRESHOLDS):
        found = [compute_gains(results[name, noise, runs], threshold) for name in PROBLEMS]
        shares = {"worse": 100 * float(np.mean([gain < 0 for gain in found])), "gain": float(np.mean(found))}
        yield {"noise": noise, "runs": runs, "threshold": threshold, **shares}


def main() -> None:
    parser = create_parser(__doc__)
    parser.add_argument("--searches", type=int, default=400, help="of each problem, noise and number of runs")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--replays", action="store_true", help="draw from recorded trainings alone")
    given = parser.parse_args()
    cases = [*(() if given.replays else product(PROBLEMS, NOISES, RUNS)), *product(REPLAYS, (0.0,), RUNS)]
    with Pool(given.processes) as pool:
        found = pool.starmap(simulate, [(*case, given.searches) for case in cases], chunksize=1)
    results = dict(zip(cases, found, strict=True))
    figures: dict[str, Table] = {}
    if not given.replays:
        settings = product(RUNS, NOISES)
        figures["problems"] = [row for runs, noise in settings for row in describe_problems(results, noise, runs)]
        figures["thresholds"] = list(describe_thresholds(results))
    replays = {name: Replay(*replayed) for name, replayed in REPLAYS.items()}
    figures["replays"] = [
        {"problem": name, "runs": runs, "finalists": num_finalists(runs)}
        | describe(results[name, 0.0, runs], replay.noise)
        for runs in RUNS
        for name, replay in replays.items()
    ]
    figures["replayed"] = [
        {"problem": name, "noise_of_run": replay.noise, "spread_of_configs": replay.spread}
        for name, replay in replays.items()
    ]
    about = f"{given.searches} searches of {TRIALS} trials; a finalist is chosen from {CHOSEN_FROM:g} on"
    print_result(figures, UNITS, about)


if __name__ == "__main__":
    main()
