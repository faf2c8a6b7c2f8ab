"""Compare programs of one and of two operations on ARC puzzles, without learning.

The first of two operations is one of a few, which are chosen on training puzzles that no program of one operation
solves: with each of them and any second operation, the largest value of a program. Of these, the greedy cover is
taken. The second operation is any of all. "gained" and "lost" count tests that only two, or only one operation meets.

    python benchmarks/models/arc_depth.py [--sample 24] [--first 12] [--max-side 12]
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a clone need not be installed

from benchmarks.models.arc_programs import find_hits
from benchmarks.recording import Row, create_parser, print_progress, print_result
from searchlight.models.arc.programs import DEPTH_1, OPERATIONS, Executor, Program, RewardTable
from searchlight.models.arc.puzzles import Puzzle, load_puzzles

Values = NDArray[np.float64]
PAIRED = 32  # puzzles of one table: its answers are in memory


def main() -> None:
    parser = create_parser(__doc__)
    parser.add_argument("--sample", type=int, default=24, help="training puzzles that operations are chosen on")
    parser.add_argument("--first", type=int, default=12, help="first operations")
    parser.add_argument("--max-side", type=int, default=12)
    arguments = parser.parse_args()
    training = load_puzzles("arc-agi-1", "training", arguments.max_side)
    unsolved = [puzzle for puzzle in training if not RewardTable.build([puzzle]).meets_hidden.any()]
    order = np.random.default_rng(0).permutation(len(unsolved))
    sample = [unsolved[index] for index in order[: arguments.sample]]
    gains = np.stack([measure_gains(puzzle) for puzzle in sample])
    first = choose_first(gains, arguments.first)
    print_progress(f"first operations: {', '.join(OPERATIONS[index].name for index in first)}")
    programs = (*DEPTH_1, *(Program((one, two)) for one in first for two in range(len(OPERATIONS))))
    others = [puzzle for puzzle in training if puzzle not in sample]
    evaluation = load_puzzles("arc-agi-1", "evaluation", arguments.max_side)
    rows = [
        {"split": split, **compare(puzzles, programs)}
        for split, puzzles in (("training, not chosen on", others), ("evaluation", evaluation))
    ]
    chosen = [
        {"operation": OPERATIONS[index].name, "puzzles_improved": int((gains[:, index] > 0).sum())} for index in first
    ]
    about = (
        f"{len(sample)} training puzzles to choose {len(first)} first operations; sides of up to {arguments.max_side}"
    )
    print_result({"depth": rows, "first_operations": chosen}, {"cpu_1": "s a puzzle", "cpu_2": "s a puzzle"}, about)


def measure_gains(puzzle: Puzzle) -> Values:
    """Return by how much two operations have a larger value than one, for each first one, shape (operations,)."""
    start = time.process_time()
    executor = Executor(Puzzle(puzzle.id, puzzle.demonstrations, ()))  # no answers are needed
    best = max(executor.execute(program).value for program in DEPTH_1)
    gains = np.zeros(len(OPERATIONS))
    known: dict[bytes, float] = {}  # gains by the grids after the first operation
    for first in range(len(OPERATIONS)):
        if not executor.execute(Program((first,))).is_valid:
            continue
        grids = executor.trace(Program((first,)))[1]
        key = b"".join(bytes(grid.shape) + grid.tobytes() for grid in grids if grid is not None)
        if key not in known:
            pairs = (Program((first, second)) for second in range(len(OPERATIONS)))
            known[key] = max(0.0, max(executor.execute(pair).value for pair in pairs) - best)
        gains[first] = known[key]
    print_progress(f"{puzzle.id}: {time.process_time() - start:.1f} s, largest gain {gains.max():.2f}")
    return gains


def choose_first(gains: Values, number: int) -> list[int]:
    """Choose operations one by one, each the one that adds most to the sum of the puzzles' largest gains."""
    covered, chosen = np.zeros(len(gains)), list[int]()
    for _ in range(number):
        added = (np.maximum(gains, covered[:, None]) - covered[:, None]).sum(0)
        added[chosen] = -1
        chosen.append(int(added.argmax()))
        covered = np.maximum(covered, gains[:, chosen[-1]])
    return chosen


def compare(puzzles: Sequence[Puzzle], programs: Sequence[Program]) -> Row:
    """Count the tests that are met by programs of one operation, and by all."""
    hits: dict[int, list[bool]] = {1: [], 2: []}
    seconds = {1: 0.0, 2: 0.0}
    for start in range(0, len(puzzles), PAIRED):
        part = puzzles[start : start + PAIRED]
        for depth, tried in ((1, DEPTH_1), (2, programs)):
            began = time.process_time()
            table = RewardTable.build(part, tried)
            seconds[depth] += time.process_time() - began
            hits[depth] += find_hits(table)
        print_progress(f"{start + len(part)} of {len(puzzles)} puzzles")
    one, two = np.array(hits[1]), np.array(hits[2])
    return {
        "puzzles": len(puzzles),
        "tests": len(one),
        "met_1": int(one.sum()),
        "met_2": int(two.sum()),
        "gained": int((two & ~one).sum()),
        "lost": int((one & ~two).sum()),
        "cpu_1": seconds[1] / len(puzzles),
        "cpu_2": seconds[2] / len(puzzles),
    }


if __name__ == "__main__":
    main()
