"""Measure how often parameter importances are right, in searches of known functions by number of trials.

TPE and successive halving search with 4 gangs in simulated time, as by default. In the first function the learning rate
explains most, the decay and the kind a little, and three parameters nothing; in the second, nothing explains anything.
The peer is Optuna's default, PED-ANOVA, on the completed ones of the same trials.

    python benchmarks/importances.py [--searches 30]
"""

import argparse
import math
import time
import warnings
from collections.abc import Callable, Sequence
from multiprocessing import Pool

import numpy as np
import optuna
from optuna.importance import get_param_importances

from benchmarks.quality.problems import OBJECTIVE, Curve, Problem, Values
from benchmarks.quality.simulator import simulate
from benchmarks.quality.strategies import Searchlight
from searchlight.search.analysis.importance import FEWEST, Importances, find_importances
from searchlight.search.config.objectives import Objective
from searchlight.search.config.search_space import resolve_space
from searchlight.search.study.record import SearchRecord
from searchlight.trainables.task import TaskConfig, searchable

EPOCHS = 27
SIZES = (FEWEST, 30, 50, 100)
NOISE = ("noise", "count", "letter")


class Config(TaskConfig):
    lr: float = searchable(1e-4, low=1e-5, high=1e-1, log=True)
    decay: float = searchable(1e-3, low=1e-4, high=1.0, log=True)
    kind: str = searchable("b", choices=["a", "b", "c"])
    noise: float = searchable(0.5, low=0.0, high=1.0)
    count: int = searchable(4, low=1, high=9)
    letter: str = searchable("b", choices=["a", "b", "c"])


def known(values: Values) -> float:
    rate = 0.5 * (math.log10(values["lr"]) + 3) ** 2
    return rate + 0.15 * (math.log10(values["decay"]) + 2) ** 2 + 0.4 * (values["kind"] == "a")


def problem(final: Callable[[Values, np.random.Generator], float], cliff: float) -> Problem:
    def curve(values: Values, draw: np.random.Generator) -> Curve:
        end, speed = final(values, draw), draw.uniform(2, 8)
        seen = [end + 3 * math.exp(-epoch / speed) + 0.1 * draw.standard_normal() for epoch in range(1, EPOCHS + 1)]
        seen = [math.nan if values["lr"] > cliff and epoch > 3 else value for epoch, value in enumerate(seen, 1)]
        return Curve(seen, seen, 60.0, seen[-1])

    return Problem(
        "known", False, resolve_space(Config, {"epochs": EPOCHS, "precision": "fp32"}, {}), EPOCHS, 0, 9, curve
    )


PROBLEMS = {
    "three of six matter": problem(lambda values, draw: known(values), cliff=3e-2),
    "nothing matters": problem(lambda values, draw: float(draw.standard_normal()), cliff=1.0),
}


def one(given: tuple[str, int, int]) -> tuple[Importances, dict[str, float], float]:
    """Run one search. Return Searchlight's importances, Optuna's, and the CPU seconds of the former."""
    name, trials, seed = given
    side = Searchlight(PROBLEMS[name], seed, trials=trials)
    simulate(side, PROBLEMS[name], gangs=4, budget=math.inf, seed=seed)
    side.close()
    searched = SearchRecord("simulated", side.study.get_trials(), (Objective(OBJECTIVE, "min"),), {})
    start = time.process_time()
    found = find_importances(searched)
    seconds = time.process_time() - start
    completed = optuna.create_study()
    completed.add_trials([trial for trial in searched.trials if trial.state.name == "COMPLETE"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there are few of them
        theirs = get_param_importances(completed) if len(completed.trials) > 1 else {}
    return found, theirs, seconds


def tell(name: str, trials: int, results: Sequence[tuple[Importances, dict[str, float], float]]) -> None:
    found = [importances for importances, _, _ in results]
    names = list(Config.model_fields)[-6:]
    claimed = {each: np.mean([each in importances.significant_names for importances in found]) for each in names}
    wrong = names if name.startswith("nothing") else NOISE
    any_wrong = np.mean([any(each in wrong for each in importances.significant_names) for importances in found])
    spans = [(one.low, one.share, one.high) for each in found for one in each.each if one.name == "lr"]
    usual = np.mean([share for _, share, _ in spans])
    inside = np.mean([low <= usual <= high for low, _, high in spans])
    theirs = [shares for _, shares, _ in results if shares]
    first = np.mean([bool(shares) and max(shares, key=shares.__getitem__) == "lr" for _, shares, _ in results])
    to_noise = np.median([sum(shares[each] for each in wrong) for shares in theirs]) if theirs else math.nan
    cells = "  ".join(f"{claimed[each]:6.0%}" for each in names)
    print(
        f"{trials:6}  {cells}   {any_wrong:9.0%}   {usual:7.0%}  {inside:6.0%}   {first:8.0%}  {to_noise:8.0%}"
        f"   {np.median([seconds for _, _, seconds in results]):5.2f} s",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--searches", type=int, default=30)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--functions", nargs="+", choices=list(PROBLEMS), default=list(PROBLEMS))
    given = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with Pool(2) as pool:
        for name in given.functions:
            print(f"{name}: how often a parameter is said to matter in {given.searches} searches; lr's share, and how")
            print("often its interval holds the mean share; in Optuna, how often lr comes first, and what noise gets")
            said = "      lr   decay    kind   noise   count  letter   any wrong"
            print(f"trials{said}   lr mean  inside   lr first     noise")
            for trials in given.sizes:
                tell(name, trials, pool.map(one, [(name, trials, seed) for seed in range(given.searches)]))


if __name__ == "__main__":
    main()
