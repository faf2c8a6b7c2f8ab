"""Compare Searchlight with Ray's documented recipe, random search and TPE at equal time.

Time is simulated: gangs train curves that are known in closed form or were recorded. The real searchers and schedulers
decide what to train. A side is judged by what it delivers: see `delivered` in benchmarks/search/problems/problems.py.

    python benchmarks/search/search_quality.py [--seeds 19] [--problems cliff,digits] [--sides ray,random]

Each search is stored in --runs, and searches in that file are not run again. So the same command resumes an interrupted
run. --report runs nothing, and reports the seeds that all sides have.
"""

import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a clone need not be installed

from benchmarks.recording import RESULTS, Table, create_parser, print_progress, print_result
from benchmarks.search.comparison import (
    MEASURES,
    RESAMPLES,
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
from benchmarks.search.peers import find_missing_package, require_hash_seed
from benchmarks.search.problems.problems import Problem
from benchmarks.search.problems.recorded import list_problems
from benchmarks.search.runs import ALL_SIDES, GANGS, POINTS, TRAININGS, Row, add_rows, list_keys, load_rows

PEER = "ray"
RUNS = RESULTS / "search_quality.parquet"
SEEDS = 19  # the recorded ones, so that nothing needs to run without options
OURS = ("hyperband", "asha")
SEARCHLIGHT = (*OURS, "hyperband-even", "median", "asha-stop")  # the sides that are compared with each other side
PUBLISHED = ("hyperband", "hyperband-even", "ray", "random", "optuna-hyperband")  # recorded on all problems
# The problems of each row are left out together when the choice of OURS is checked.
GROUPS = (
    ("hartmann3-good", "hartmann6-bad", "hartmann6-good", "hartmann3-terrible"),
    ("cliff", "crossing", "curriculum", "finetune", "annealed"),
    ("digits", "liquid", "noisy", "conv", "deep"),
    ("linear", "gru", "friedman", "autoencoder"),
    ("lm", "attention", "diabetes", "features"),
)
SHARES = (0.1, 0.25, 0.5, 1.0)  # of the budget, at which regrets are printed

ABOUT = (
    f"{GANGS} gangs, time for {TRAININGS} full trainings in each. Regrets have medians and quartiles. "
    "final_ratio: geometric mean of the ratios of final medians to those of the peer. single_ratio: that of the "
    "ratios of single searches, paired by seed. wins: mean share of seeds that end lower; a tie counts half. time: "
    "median share of the peer's time to its final median (inf: not within the budget). by_best: if trials are judged "
    "by their best reports. at_rest: without the trials that train in the end. "
    "Intervals: 95 %, by bootstrap over seeds, and over both seeds and problems."
)
UNITS = {"diverged": "%", "lost": "%", "ask": "ms", "chosen_on_halves": "%"}

Figures = dict[str, Any]
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


def pair_finals(problem: Problem, sides: dict[str, list[Row]], side: str, judged: str, peer: str = PEER) -> Pair:
    """Return the final regrets of `side` and of `peer` as `pair_with_peer` does, with another criterion.

    "by best": both are judged by their best reports. "at rest": trials of `side` that are training at the end do not
    count.
    """
    pair = pair_with_peer(problem, sides, side, peer)
    ours, theirs = (
        np.array([[row.by_best_report if judged == "by best" else row.at_rest] for row in sides[name]])
        / (problem.worst - problem.best)
        for name in (side, peer)
    )
    return Pair(ours, theirs if judged == "by best" else pair.theirs[:, -1:])


def describe_problem(problem: Problem, sides: dict[str, list[Row]], corrected: dict[str, float]) -> list[Figures]:
    """Return a row per side. `corrected` has the p-value of each side, corrected over all problems."""
    described = []
    for side, rows in sides.items():
        pair = pair_with_peer(problem, sides, side)
        moments = np.array([row.regrets for row in rows])[:, [round(share * POINTS) - 1 for share in SHARES]]
        regrets = {}
        for share, quartiles in zip(SHARES, np.percentile(moments, (50, 25, 75), axis=0).T.tolist(), strict=True):
            regrets |= dict(zip((f"regret_{share:.0%}{end}" for end in ("", "_low", "_high")), quartiles, strict=True))
        described.append(
            {
                "problem": problem.name,
                "kind": "held out" if problem.held_out else "tuned on",
                "delivered": problem.delivered,
                "seeds": len(rows),
                "side": side,
                **regrets,
                "ratio": float(get_final_ratio(pair)),
                **name_wins([pair]),
                "time": float(get_relative_time(pair)),
                "p_holm": corrected[side],
                "by_best": statistics.median(row.by_best_report for row in rows),
                "at_rest": statistics.median(row.at_rest for row in rows),
                "trials": round(statistics.fmean(row.trials for row in rows)),
                "whole": round(statistics.fmean(row.whole for row in rows)),
                "diverged": 100 * sum(row.diverged for row in rows) / sum(row.trials for row in rows),
                "lost": 100 * sum(row.lost for row in rows) / sum(row.spent for row in rows),
                "ask": 1000 * sum(row.decisions for row in rows) / sum(row.suggestions for row in rows),
            }
        )
    return described


def find_best_peer(sides: dict[str, list[Row]], peers: Sequence[str]) -> str:
    """Return the one of `peers` with the lowest final median, and the earlier one of equals."""
    return min(peers, key=lambda side: statistics.median(row.regrets[-1] for row in sides[side]))


def summarize(
    problems: Sequence[Problem], outcomes: Outcomes, sides: Sequence[str], resamples: int
) -> Iterator[Figures]:
    """Yield the measures of each side over the problems of a kind, with their intervals."""
    kinds = {
        "tuned on": [problem for problem in problems if not problem.held_out],
        "held out": [problem for problem in problems if problem.held_out],
        "all": problems,
    }

    def measure(side: str, kind: str, against: str, pairs: Sequence[Pair], names: Sequence[str]) -> Iterator[Figures]:
        if pairs:  # there may be no problem of a kind
            row: Figures = {"side": side, "problems": kind, "against": against}
            for name in names:
                row |= name_interval(name, bootstrap(MEASURES[name], pairs, resamples))
            lower = sum(bool(get_final_ratio(pair) < 1) for pair in pairs)
            yield row | {"ends_lower_on": lower, "of": len(pairs), **name_wins(pairs)}

    for side in (side for side in sides if side != PEER):
        for kind, chosen in kinds.items():
            pairs = [pair_with_peer(problem, outcomes[problem.name], side) for problem in chosen]
            yield from measure(side, kind, PEER, pairs, list(MEASURES))
        for judged in ("by best", "at rest"):
            pairs = [pair_finals(problem, outcomes[problem.name], side, judged) for problem in problems]
            yield from measure(side, "all", f"{PEER}, {judged}", pairs, ["final_ratio", "wins"])
    peers = [side for side in sides if side not in SEARCHLIGHT]
    for side in (side for side in sides if side in SEARCHLIGHT):
        for peer in (peer for peer in sides if peer not in (side, PEER)):
            for kind, chosen in kinds.items():
                pairs = [pair_with_peer(problem, outcomes[problem.name], side, peer) for problem in chosen]
                yield from measure(side, kind, peer, pairs, ["final_ratio", "single_ratio"])
            pairs = [pair_finals(problem, outcomes[problem.name], side, "by best", peer) for problem in problems]
            yield from measure(side, "all", f"{peer}, by best", pairs, ["final_ratio"])
        for kind, chosen in kinds.items():
            found = [(problem, outcomes[problem.name]) for problem in chosen]
            pairs = [pair_with_peer(problem, rows, side, find_best_peer(rows, peers)) for problem, rows in found]
            yield from measure(side, kind, "best peer", pairs, list(MEASURES))


def check_choice(problems: Sequence[Problem], outcomes: Outcomes) -> dict[str, Table]:
    """Return which of OURS is chosen on some problems, and how both compare with the recipe on the others."""
    names = np.array([problem.name for problem in problems])
    pairs = [[pair_with_peer(problem, outcomes[problem.name], side) for problem in problems] for side in OURS]
    ratios = np.array([[get_final_ratio(pair) for pair in of_side] for of_side in pairs])
    groups = []
    for group in GROUPS:
        if 0 < (left := np.isin(names, group)).sum() < len(names):
            found = choose_side(ratios, ~left)
            row: Figures = {"left_out": ", ".join(names[left]), "chosen": OURS[found.chosen]}
            for side, on_these, on_others in zip(OURS, found.on_these, found.on_others, strict=True):
                row |= {f"{side}_on_these": float(on_these), f"{side}_on_left_out": float(on_others)}
            groups.append(row)
    without = [str(name) for name in names if OURS[choose_side(ratios, names != name).chosen] != OURS[0]]
    halves = choose_on_halves(ratios)
    relative = [each.on_others[0] / each.on_others[1] for each in halves]
    low, middle, high = np.percentile(relative, (2.5, 50, 97.5)).tolist()
    choice = {
        "default": OURS[0],
        "not_chosen_without": ", ".join(without),
        "chosen_on_halves": 100 * float(np.mean([each.chosen == 0 for each in halves])),
        "ratio_on_other_halves": middle,
        "ratio_on_other_halves_low": low,
        "ratio_on_other_halves_high": high,
    }
    return {"choices": groups, "choice": choice}


def name_wins(pairs: Sequence[Pair]) -> Figures:
    """Return the numbers of searches that end lower than, equal to and above those of the peer."""
    counts = np.sum([count_wins(pair) for pair in pairs], axis=0).tolist()
    return dict(zip(("lower", "equal", "higher"), counts, strict=True))


def name_interval(name: str, interval: Interval) -> Figures:
    """Return an estimate with its intervals over seeds, and over seeds and problems."""
    ends = ("", "_seeds_low", "_seeds_high", "_both_low", "_both_high")
    return dict(zip((f"{name}{end}" for end in ends), (interval.value, *interval.seeds, *interval.both), strict=True))


def describe(
    problems: Sequence[Problem], outcomes: Outcomes, sides: Sequence[str], resamples: int = RESAMPLES
) -> dict[str, Table]:
    """Return the figures of the searches."""
    revisions = Counter(row.revision for of_side in outcomes.values() for rows in of_side.values() for row in rows)
    corrected = {
        side: correct_by_holm([get_p_value(pair_with_peer(p, outcomes[p.name], side)) for p in problems])
        for side in sides
    }
    rows: list[Figures] = []
    for number, problem in enumerate(problems):
        of_side = {side: outcomes[problem.name][side] for side in sides}
        rows += describe_problem(problem, of_side, {side: corrected[side][number] for side in sides})
    figures: dict[str, Table] = {
        "revisions": [{"revision": revision, "searches": count} for revision, count in revisions.items()],
        "problems": rows,
        "measures": list(summarize(problems, outcomes, sides, resamples)),
    }
    if len(problems) > 1 and set(OURS) <= set(sides):
        figures |= check_choice(problems, outcomes)
    return figures


def leave_out_missing(sides: Sequence[str]) -> list[str]:
    """Return the sides that can be run. Print a line for each of the others to standard error."""
    missing = {side: package for side in sides if (package := find_missing_package(side))}
    for side, package in missing.items():
        print_progress(f"{side} is left out, because {package} is not installed: pip install {package}")
    return [side for side in sides if side not in missing]


def main() -> None:
    parser = create_parser(__doc__)
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
        require_hash_seed(sides)
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
    figures = describe([problem for problem in problems if problem.name in names], outcomes, sides)
    print_result(figures, UNITS, ABOUT, digits=6)


if __name__ == "__main__":
    main()
