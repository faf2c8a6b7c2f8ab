"""Compare Searchlight with Ray's documented recipe, random search and TPE at equal time.

Time is simulated: gangs train curves that are known in closed form or were recorded. The real searchers and schedulers
decide what to train. A side is judged by what it delivers: see `delivered` in benchmarks/search/problems/problems.py.

    python benchmarks/search/search_quality.py [--seeds 40] [--problems cliff,digits] [--sides ray,grace-3]

Each search is stored in --runs, and searches in that file are not run again. So the same command resumes an interrupted
run. --report runs nothing, and reports the seeds that all sides have.
"""

import argparse
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a clone need not be installed

from benchmarks.search.comparison import (
    MEASURES,
    RESAMPLES,
    SEARCHES,
    Interval,
    Pair,
    bootstrap,
    choose_on_halves,
    choose_side,
    correct_by_holm,
    count_wins,
    get_final_ratio,
    get_p_value,
    get_relative_time,
)
from benchmarks.search.peers import find_missing_package
from benchmarks.search.problems.problems import Problem
from benchmarks.search.problems.recorded import list_problems
from benchmarks.search.runs import ALL_SIDES, GANGS, POINTS, TRAININGS, Row, add_rows, list_keys, load_rows
from benchmarks.search.variants import VARIANTS

PEER = "ray"
RUNS = Path(__file__).resolve().parents[1] / "results" / "search_quality.parquet"
SEEDS = 40  # the recorded ones, so that nothing needs to run without options
OURS = ("hyperband", "asha")
PUBLISHED = (*OURS, "ray", "random", "optuna-hyperband")  # the sides that are recorded on all problems
# The problems of each row are left out together when the choice of OURS is checked.
GROUPS = (
    ("hartmann3-good", "hartmann6-bad", "hartmann6-good", "hartmann3-terrible"),
    ("cliff", "crossing", "curriculum", "finetune", "annealed"),
    ("digits", "liquid", "noisy", "conv", "deep"),
    ("linear", "gru", "friedman", "autoencoder"),
    ("lm", "attention", "diabetes", "features"),
)
SHARES = (0.1, 0.25, 0.5, 1.0)  # of the budget, at which regrets are printed

Outcomes = dict[str, dict[str, list[Row]]]  # rows by seed, of each problem and side


def group_rows(rows: Sequence[Row]) -> Outcomes:
    """Return the rows of each problem and side by seed. Seeds that not all sides of the problem have are left out."""
    found: defaultdict[str, defaultdict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in sorted(rows, key=lambda row: row.seed):
        found[row.problem][row.side].append(row)
    outcomes: Outcomes = {}
    for problem, sides in found.items():
        seeds = set.intersection(*({row.seed for row in of_side} for of_side in sides.values()))
        outcomes[problem] = {side: [row for row in of_side if row.seed in seeds] for side, of_side in sides.items()}
    return outcomes


def pair_with_peer(problem: Problem, sides: dict[str, list[Row]], side: str, peer: str = PEER) -> Pair:
    """Return the regrets of `side` and of `peer` on `problem`, as shares of the range of its values."""
    ours, theirs = (np.array([row.regrets for row in sides[name]], float) for name in (side, peer))
    return Pair(ours / (problem.worst - problem.best), theirs / (problem.worst - problem.best))


def pair_finals(problem: Problem, sides: dict[str, list[Row]], side: str, judged: str) -> Pair:
    """Return the final regrets of `side` and of the peer as `pair_with_peer` does, with another criterion.

    "by best": both are judged by their best reports. "at rest": trials of `side` that are training at the end do not
    count.
    """
    pair = pair_with_peer(problem, sides, side)
    ours, theirs = (
        np.array([[row.by_best_report if judged == "by best" else row.at_rest] for row in sides[name]])
        / (problem.worst - problem.best)
        for name in (side, PEER)
    )
    return Pair(ours, theirs if judged == "by best" else pair.theirs[:, -1:])


def print_problem(problem: Problem, sides: dict[str, list[Row]], corrected: dict[str, float]) -> None:
    """Print a line per side. `corrected` has the p-value of each side, corrected over all problems."""
    kind = "held out" if problem.held_out else "tuned on"
    print(f"{problem.name} ({kind}, {problem.delivered}, {len(sides[PEER])} seeds), regret: median, quartiles")
    shares = "".join(f"{share:>23.0%}" for share in SHARES)
    print(
        f"  {'':>11}{shares} {'ratio':>6} {'win/tie/lose':>12} {'time':>5} {'p Holm':>6} {'by best':>7} {'at rest':>7} "
        f"{'trials':>6} {'whole':>5} {'diverged':>8} {'lost':>5} {'ask':>6}"
    )
    for side, rows in sides.items():
        pair = pair_with_peer(problem, sides, side)
        moments = np.array([row.regrets for row in rows])[:, [round(share * POINTS) - 1 for share in SHARES]]
        quartiles = np.percentile(moments, (50, 25, 75), axis=0).T
        cells = "".join(f"{f'{middle:.4f} {low:.3f}-{high:.3f}':>23}" for middle, low, high in quartiles)
        by_best_report = statistics.median(row.by_best_report for row in rows)
        at_rest = statistics.median(row.at_rest for row in rows)
        asked = sum(row.decisions for row in rows) / sum(row.suggestions for row in rows)
        print(
            f"  {side:>11}{cells} {get_final_ratio(pair):>6.2f} {'/'.join(map(str, count_wins(pair))):>12} "
            f"{get_relative_time(pair):>5.2f} {corrected[side]:>6.3f} {by_best_report:>7.4f} {at_rest:>7.4f} "
            f"{statistics.fmean(row.trials for row in rows):>6.0f} {statistics.fmean(row.whole for row in rows):>5.0f} "
            f"{sum(row.diverged for row in rows) / sum(row.trials for row in rows):>8.0%} "
            f"{sum(row.lost for row in rows) / sum(row.spent for row in rows):>5.0%} {1000 * asked:>3.0f} ms"
        )
    print(flush=True)


def find_best_peer(sides: dict[str, list[Row]], peers: Sequence[str]) -> str:
    """Return the one of `peers` with the lowest final median, and the earlier one of equals."""
    return min(peers, key=lambda side: statistics.median(row.regrets[-1] for row in sides[side]))


def print_summary(problems: Sequence[Problem], outcomes: Outcomes, sides: Sequence[str], resamples: int) -> None:
    """Print each measure of each side over the problems of a kind, with its intervals."""
    print(
        f"against {PEER}, over problems; 95 % intervals by bootstrap over [seeds] and over [seeds and problems]\n"
        "final ratio: geometric mean of the ratios of final medians\n"
        "wins: mean share of seeds that end lower; a tie counts half\n"
        "time: median share of its time to its final median (inf: not within the budget)"
    )
    kinds = {
        "tuned on": [problem for problem in problems if not problem.held_out],
        "held out": [problem for problem in problems if problem.held_out],
        "all": problems,
    }
    for side in (side for side in sides if side != PEER):
        for kind, chosen in kinds.items():
            pairs = [pair_with_peer(problem, outcomes[problem.name], side) for problem in chosen]
            print_measures(f"{side:>11}, {kind}", pairs, list(MEASURES), resamples)
        for judged in ("by best", "at rest"):
            pairs = [pair_finals(problem, outcomes[problem.name], side, judged) for problem in problems]
            print_measures(f"{side:>11}, all, {judged}", pairs, ["final ratio", "wins"], resamples)
    peers = [side for side in sides if side not in OURS and side not in VARIANTS]
    print(f"against other sides, and against the best peer of each problem, of {', '.join(peers)}")
    for side in (side for side in sides if side in OURS):
        for peer in (peer for peer in sides if peer != side):
            pairs = [pair_with_peer(problem, outcomes[problem.name], side, peer) for problem in problems]
            print_measures(f"{side:>11}, all, {peer}", pairs, ["final ratio"], resamples)
            print(f"{'':>15}searches that end lower, equal and higher: {format_wins(pairs)}")
        for kind, chosen in kinds.items():
            found = [outcomes[problem.name] for problem in chosen]
            pairs = [
                pair_with_peer(problem, rows, side, find_best_peer(rows, peers))
                for problem, rows in zip(chosen, found, strict=True)
            ]
            print_measures(f"{side:>11}, {kind}, best peer", pairs, list(MEASURES), resamples)


def print_variants(problems: Sequence[Problem], outcomes: Outcomes, sides: Sequence[str], resamples: int) -> None:
    """Print how each variant differs from the default, search by search."""
    default = OURS[0]
    for side in (side for side in sides if side in VARIANTS and default in sides):
        pairs = [pair_with_peer(problem, outcomes[problem.name], side, default) for problem in problems]
        ratio = format_interval(bootstrap(SEARCHES, pairs, resamples))
        print(f"  {side} against {default}, ratio of single searches: {ratio}, lower/equal/higher {format_wins(pairs)}")


def print_choice(problems: Sequence[Problem], outcomes: Outcomes) -> None:
    """Print which of OURS is chosen on some problems, and how both compare with the recipe on the others."""
    names = np.array([problem.name for problem in problems])
    pairs = [[pair_with_peer(problem, outcomes[problem.name], side) for problem in problems] for side in OURS]
    ratios = np.array([[get_final_ratio(pair) for pair in of_side] for of_side in pairs])
    print(f"choice between {' and '.join(OURS)} by the final ratio on the problems that are not left out")
    for group in GROUPS:
        if 0 < (left := np.isin(names, group)).sum() < len(names):
            found = choose_side(ratios, ~left)
            on_these, on_others = (", ".join(f"{each:.2f}" for each in of) for of in found[1:])
            print(f"  {OURS[found.chosen]} ({on_these}) without {', '.join(names[left])} ({on_others} on them)")
    without = [name for name in names if OURS[choose_side(ratios, names != name).chosen] != OURS[0]]
    print(f"  {OURS[0]} without any single problem{' but ' * bool(without)}{', '.join(without)}")
    halves = choose_on_halves(ratios)
    relative = [each.on_others[0] / each.on_others[1] for each in halves]
    low, middle, high = np.percentile(relative, (2.5, 50, 97.5))
    print(
        f"  {OURS[0]} on {np.mean([each.chosen == 0 for each in halves]):.0%} of random halves; on the other halves, "
        f"its ratio is {middle:.2f} ({low:.2f} to {high:.2f}) times that of {OURS[1]}"
    )


def print_measures(title: str, pairs: Sequence[Pair], names: Sequence[str], resamples: int) -> None:
    """Print the measures of those `names` over problems in a line, if there is a problem."""
    if pairs:
        found = [f"{name} {format_interval(bootstrap(MEASURES[name], pairs, resamples))}" for name in names]
        lower = sum(get_final_ratio(pair) < 1 for pair in pairs)
        print(f"  {title}: {', '.join(found)}, ends lower on {lower} of {len(pairs)}", flush=True)


def format_wins(pairs: Sequence[Pair]) -> str:
    """Return the numbers of searches that end lower than, equal to and above those of the peer as text."""
    return "/".join(map(str, np.sum([count_wins(pair) for pair in pairs], axis=0)))


def format_interval(interval: Interval) -> str:
    """Return an estimate and its two intervals as text."""
    seeds, both = (f"[{low:.2f}, {high:.2f}]" for low, high in (interval.seeds, interval.both))
    return f"{interval.value:.2f} {seeds} {both}"


def report(problems: Sequence[Problem], outcomes: Outcomes, sides: Sequence[str], resamples: int = RESAMPLES) -> None:
    """Print the results of the searches."""
    revisions = Counter(row.revision for of_side in outcomes.values() for rows in of_side.values() for row in rows)
    told = ", ".join(f"{count} of revision {revision}" for revision, count in revisions.items())
    print(f"{GANGS} gangs, time for {TRAININGS} full trainings in each; searches: {told}")
    print(
        "by best: the final median if trials are judged by their best reports, whatever the side does\n"
        "at rest: the final median if trials that train in the end do not count\n"
    )
    corrected = {
        side: correct_by_holm([get_p_value(pair_with_peer(p, outcomes[p.name], side)) for p in problems])
        for side in sides
    }
    for number, problem in enumerate(problems):
        of_side = {side: outcomes[problem.name][side] for side in sides}
        print_problem(problem, of_side, {side: corrected[side][number] for side in sides})
    print_summary(problems, outcomes, sides, resamples)
    print_variants(problems, outcomes, sides, resamples)
    if len(problems) > 1 and set(OURS) <= set(sides):
        print_choice(problems, outcomes)


def leave_out_missing(sides: Sequence[str]) -> list[str]:
    """Return the sides that can be run. Print a line for each of the others."""
    missing = {side: package for side in sides if (package := find_missing_package(side))}
    for side, package in missing.items():
        print(f"{side} is left out, because {package} is not installed: pip install {package}", file=sys.stderr)
    return [side for side in sides if side not in missing]


def print_progress(line: str) -> None:
    """Print the progress of the searches."""
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--problems", default="", help="names, separated by commas; all by default")
    parser.add_argument("--sides", default=",".join(PUBLISHED), help=f"of {', '.join(ALL_SIDES)}")
    parser.add_argument("--runs", type=Path, default=RUNS, help="the Parquet file that the searches are kept in")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument(
        "--epoch-seconds", type=float, help="of a median epoch; suggestions then take the time that they really take"
    )
    parser.add_argument("--report", action="store_true", help="run nothing: report what the file has")
    parser.add_argument("--quick", action="store_true", help="two problems, two seeds: does it run")
    given = parser.parse_args()
    problems = list_problems()
    names = given.problems.split(",") if given.problems else [problem.name for problem in problems]
    if given.quick:
        names, given.seeds = ["hartmann3-terrible", "cliff"], 2
    if unknown := set(names) - {problem.name for problem in problems}:
        sys.exit(f"--problems must be among {', '.join(p.name for p in problems)}, but got {', '.join(unknown)}.")
    sides = [PEER, *(side for side in given.sides.split(",") if side != PEER)]
    if unknown := set(sides) - ALL_SIDES.keys():
        sys.exit(f"--sides must be among {', '.join(ALL_SIDES)}, but got {', '.join(unknown)}.")
    if not given.report:
        sides = leave_out_missing(sides)
    keys = list_keys(names, sides, given.seeds)
    if given.report:
        rows = [row for row in load_rows(given.runs) if row.key in set(keys)]
    else:
        try:
            rows = add_rows(given.runs, keys, given.processes, given.epoch_seconds, say=print_progress)
        except ValueError as error:
            sys.exit(str(error))
    outcomes = group_rows(rows)
    if lacking := [f"{name}/{side}" for name in names for side in sides if not outcomes.get(name, {}).get(side)]:
        sys.exit(f"{given.runs} must have a search of each problem and side, but has none of {', '.join(lacking)}.")
    report([problem for problem in problems if problem.name in names], outcomes, sides)


if __name__ == "__main__":
    main()
