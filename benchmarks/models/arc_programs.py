"""Count the test outputs of ARC puzzles that programs of one to three operations meet without learning.

All programs are executed for each puzzle and ranked by the hidden demonstrations. The two best distinct answers are the
attempts at a test. "fit" counts puzzles with a program that fits all demonstrations, "hidden_met" those with a program
that meets all hidden ones, and "solved" those with a met attempt for each test, which is ARC's own score. "beside" adds
pairs of operations on the inputs, "two" also one operation after another, and "all" also a third one. "gained" and
"lost" count tests that are met only with all of these, or only without. The CPU time is that of all. Puzzles are not
measured again if FOLDER has their results.

    python benchmarks/models/arc_programs.py FOLDER [--splits training evaluation]
"""

import sys
import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a clone need not be installed

from benchmarks.recording import Row, create_parser, load_or_measure, print_progress, print_result
from searchlight.models.arc.programs import DEPTH_1, OPERATIONS, RewardTable
from searchlight.models.arc.puzzles import LARGEST_SIDE, Puzzle, load_puzzles
from searchlight.models.arc.puzzles.datasets import SPLITS, Split

SMALL = 12  # the longest side of the puzzles that are counted apart
PIECE = 20  # puzzles that are measured at once


def main() -> None:
    parser = create_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--splits", nargs="+", choices=SPLITS, default=SPLITS)
    arguments = parser.parse_args()
    rows = []
    for split in arguments.splits:
        rows += measure(split, arguments.folder)
    about = f"{len(OPERATIONS)} operations with a readout; two attempts at each test, without learning"
    print_result({"enumeration": rows}, {"cpu_per_puzzle": "s"}, about)


def measure(split: Split, folder: Path) -> list[Row]:
    """Return what is met for puzzles of short sides, and for all."""
    puzzles = load_puzzles("arc-agi-1", split, LARGEST_SIDE)
    parts = (
        [puzzle for puzzle in puzzles if puzzle.side <= SMALL],
        [puzzle for puzzle in puzzles if puzzle.side > SMALL],
    )
    small, large = (
        add_up(
            load_or_measure(folder / f"{split}-{name}-{start}.json", partial(score, part[start : start + PIECE]))
            for start in range(0, len(part), PIECE)
        )
        for name, part in zip(("small", "large"), parts, strict=True)
    )
    sides = {SMALL: small, LARGEST_SIDE: add_up([small, large])}
    return [{"split": split, "max_side": side, **finish(row)} for side, row in sides.items()]


def add_up(rows: Iterable[Row]) -> Row:
    """Return the sums of all columns of rows."""
    listed = list(rows)
    return {name: sum(row[name] for row in listed) for name in listed[0]}


def score(puzzles: Sequence[Puzzle]) -> Row:
    """Count what the two best answers of programs of one operation meet, and those with combinations."""
    start = time.process_time()
    table = RewardTable.build(puzzles, with_combinations=True)
    seconds = time.process_time() - start
    print_progress(f"{len(puzzles)} puzzles: {seconds:.0f} s")
    single, all_programs = find_hits(table, [range(len(DEPTH_1))] * len(puzzles)), find_hits(table)
    beside, two = (
        find_hits(table, [list_of_at_most(steps, table, index) for index in range(len(puzzles))]) for steps in (1, 2)
    )
    return {
        "puzzles": len(puzzles),
        "fit": int(table.fits_exactly[:, : len(DEPTH_1)].any(1).sum()),
        "hidden_met": int(table.meets_hidden[:, : len(DEPTH_1)].any(1).sum()),
        "tests": len(single),
        "met": sum(single),
        "solved": count_solved(puzzles, single),
        "met_beside": sum(beside),
        "met_two": sum(two),
        "met_all": sum(all_programs),
        "gained": sum(more > one for more, one in zip(all_programs, single, strict=True)),
        "lost": sum(more < one for more, one in zip(all_programs, single, strict=True)),
        "solved_all": count_solved(puzzles, all_programs),
        "cpu_per_puzzle": seconds,
    }


def list_of_at_most(steps: int, table: RewardTable, puzzle: int) -> list[int]:
    """Return the programs of a puzzle that execute at most `steps` operations one after another."""
    results = (table.get_result(puzzle, index) for index in range(table.is_valid.shape[1]))
    return [index for index, result in enumerate(results) if len(result.program.operations) <= steps]


def count_solved(puzzles: Sequence[Puzzle], hits: Sequence[bool]) -> int:
    """Count the puzzles of which all tests are met, given these of all puzzles one after the other."""
    remaining = iter(hits)
    return sum(all([next(remaining) for _ in puzzle.tests]) for puzzle in puzzles)


def finish(row: Row) -> Row:
    """Return the row with the share of solved puzzles and the seconds a puzzle."""
    per_puzzle = {
        "pass2_task": row["solved_all"] / row["puzzles"],
        "cpu_per_puzzle": row["cpu_per_puzzle"] / row["puzzles"],
    }
    return row | per_puzzle


def find_hits(table: RewardTable, programs: Sequence[Sequence[int]] | None = None) -> list[bool]:
    """Return for each test whether one of the two best answers of its puzzle's programs, by default all, meets it."""
    hits = []
    for index, puzzle in enumerate(table.puzzles):
        pairs = zip(table.rank(index, programs and programs[index]), puzzle.tests, strict=True)
        hits += [any(np.array_equal(grid, target) for grid in grids) for grids, (_, target) in pairs]
    return hits


if __name__ == "__main__":
    main()
