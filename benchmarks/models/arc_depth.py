"""Compare programs of one, two and three operations on small ARC puzzles, without learning.

Programs of two operations, one after the other, are executed for puzzles that no program of one operation meets on all
hidden demonstrations. The others gain nothing, because no value is larger. They begin with a few operations:

- "list": the same for all puzzles, a greedy cover of the gains in value on some training puzzles, of which all
  programs of two operations are executed.
- "largest values": those of the puzzle's own largest values after one operation.
- "random": drawn for each puzzle.

Programs of three operations begin with the puzzle's best programs of two whose first has one of the largest values,
of which those with the same answers count as one. They are executed where none of these, and no single operation,
meets all hidden demonstrations.

Each row takes the answers of one operation and of pairs, too. Answers are ranked by their value on hidden
demonstrations. "gained" and "lost" count tests that are met only with more operations, or only without. Puzzles are not
measured again if FOLDER has their results.

    python benchmarks/models/arc_depth.py FOLDER [--sample 24] [--others 48] [--first 12] [--max-side 12]
"""

import hashlib
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a clone need not be installed

from benchmarks.recording import Row, create_parser, load_or_measure, print_progress, print_result
from searchlight.models.arc.programs import DEPTH_1, OPERATIONS, Executor, Program, ProgramResult
from searchlight.models.arc.programs.combinations import find_combinations
from searchlight.models.arc.puzzles import Puzzle, load_puzzles
from searchlight.models.arc.puzzles.datasets import SPLITS

KEPT = 4  # distinct answers of each first operation
TRIED = 12  # programs of each first operation whose answers are asked for, the best first
Values = NDArray[np.float64]
Answer = Mapping[str, Any]  # value, program, a digest and a hit for each test
ALL_MET = 1.0  # a larger value is that of a program that meets all hidden demonstrations


def main() -> None:
    parser = create_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sample", type=int, default=24, help="training puzzles that the list is chosen on")
    parser.add_argument("--others", type=int, default=48, help="other training puzzles")
    parser.add_argument("--first", type=int, default=12, help="first operations of each choice")
    parser.add_argument("--max-side", type=int, default=12)
    arguments = parser.parse_args()
    training, evaluation = (load_puzzles("arc-agi-1", split, arguments.max_side) for split in SPLITS)
    order = np.random.default_rng(0).permutation(len(training))
    unsolved = [training[index] for index in order if not is_met(training[index])][: arguments.sample]
    chosen_on = [measure_kept(arguments.folder / "all", puzzle, None, arguments.first) for puzzle in unsolved]
    cover = choose_cover(np.stack([get_gains(row) for row in chosen_on]), arguments.first)
    print_progress(f"list: {', '.join(OPERATIONS[index].name for index in cover)}")
    used = {puzzle.id for puzzle in unsolved}
    others = [training[index] for index in order if training[index].id not in used][: arguments.others]
    rows = [{"split": "training, chosen on", **row} for row in compare(chosen_on, cover, True)]
    for split, puzzles in (("training, others", others), ("evaluation", evaluation)):
        known = [measure_kept(arguments.folder / "few", puzzle, cover, arguments.first) for puzzle in puzzles]
        rows += [{"split": split, **row} for row in compare(known, cover, False)]
    about = f"sides of up to {arguments.max_side}; {arguments.first} first operations, if not all"
    first = [{"operation": OPERATIONS[index].name} for index in cover]
    print_result({"depth": rows, "list": first}, {"cpu": "s a puzzle"}, about)


def is_met(puzzle: Puzzle) -> bool:
    """Return whether a program of one operation meets all hidden demonstrations."""
    executor = Executor(Puzzle(puzzle.id, puzzle.demonstrations, ()))  # no answers are needed
    return any(executor.execute(program).hidden_share == 1 for program in DEPTH_1)


def measure_kept(folder: Path, puzzle: Puzzle, cover: Sequence[int] | None, number: int) -> Row:
    """Return what `measure` does, from the folder if it is there."""
    return load_or_measure(folder / f"{puzzle.id}.json", lambda: measure(puzzle, cover, number))


def measure(puzzle: Puzzle, cover: Sequence[int] | None, number: int) -> Row:
    """Execute programs of one operation, pairs, and programs of two operations. Keep the best answers of each.

    Args:
        puzzle: The puzzle.
        cover: First operations, beside `number` of the largest values and as many random ones. None: all operations.
        number: See `cover`.
    """
    executor, times = Executor(puzzle), [time.process_time()]
    single = [executor.execute(program) for program in DEPTH_1]
    times.append(time.process_time())
    pairs = find_combinations(executor, single, first_steps=0)
    times.append(time.process_time())
    valid = [index for index in range(len(OPERATIONS)) if single[index].is_valid]
    largest = sorted(valid, key=lambda index: -single[index].value)[:number]
    drawn = np.random.default_rng(int(puzzle.id, 16)).permutation(valid)[:number].tolist()
    tried = [] if is_met(puzzle) else valid if cover is None else [*dict.fromkeys([*cover, *largest, *drawn])]
    double = {str(first): extend(executor, (first,)) for first in tried if first in valid}
    times.append(time.process_time())
    prefixes = choose_prefixes([answer for first in largest for answer in double.get(str(first), [])], number)
    triple = [extend(executor, prefix) for prefix in prefixes]
    times.append(time.process_time())
    print_progress(f"{puzzle.id}: {', '.join(f'{part:.2f} s' for part in np.diff(times))}")
    return {
        "tests": len(puzzle.tests),
        "values": [result.value for result in single],
        "single": keep_best(puzzle, single),
        "pairs": keep_best(puzzle, pairs),
        "double": double,
        "triple": [answer for answers in triple for answer in answers],
        "prefixes": len(prefixes),
        "choices": {"all": tried, "largest values": largest, "random": drawn},
        "cpu": np.diff(times).tolist(),
    }


def choose_prefixes(answers: Iterable[Answer], number: int) -> list[Sequence[int]]:
    """Return the programs of the best distinct answers, or none if the best one meets all hidden demonstrations."""
    distinct: dict[str, Answer] = {}
    for answer in sorted(answers, key=lambda answer: -answer["value"]):
        distinct.setdefault(str(answer["digests"]), answer)
    best = [*distinct.values()][:number]
    return [answer["program"] for answer in best] if best and best[0]["value"] <= ALL_MET else []


def extend(executor: Executor, prefix: Sequence[int]) -> list[Answer]:
    """Return the best answers of all programs that have one operation after those of `prefix`."""
    programs = [Program((*prefix, last)) for last in range(len(OPERATIONS))]
    values = np.array([executor.rate(program) for program in programs])
    best = [programs[index] for index in np.argsort(-values, kind="stable")[:TRIED] if values[index] > 0]
    return keep_best(executor.puzzle, [executor.execute(program) for program in best])


def keep_best(puzzle: Puzzle, results: Iterable[ProgramResult]) -> list[Answer]:
    """Return the results of the largest values that have distinct answers."""
    kept: dict[str, Answer] = {}
    for result in sorted(results, key=lambda result: -result.value):
        digests = [None if grid is None else digest(grid) for grid in result.answers]
        if any(digests) and len(kept) < KEPT and str(digests) not in kept:
            hits = [
                bool(np.array_equal(grid, target))
                for grid, (_, target) in zip(result.answers, puzzle.tests, strict=True)
            ]
            executed = result.program.executed
            kept[str(digests)] = {"value": result.value, "program": executed, "digests": digests, "hits": hits}
    return list(kept.values())


def digest(grid: NDArray[np.uint8]) -> str:
    return hashlib.sha256(bytes(grid.shape) + grid.tobytes()).hexdigest()[:12]


def get_gains(row: Row) -> Values:
    """Return by how much programs of two operations have a larger value, by first operation, shape (operations,)."""
    known = max([*row["values"], *(answer["value"] for answer in row["pairs"])])
    gains = np.zeros(len(OPERATIONS))
    for first, answers in row["double"].items():
        gains[int(first)] = max([0.0, *(answer["value"] - known for answer in answers)])
    return gains


def choose_cover(gains: Values, number: int) -> list[int]:
    """Choose operations one by one, each the one that adds most to the sum of the puzzles' largest gains."""
    covered, chosen = np.zeros(len(gains)), list[int]()
    for _ in range(number):
        added = (np.maximum(gains, covered[:, None]) - covered[:, None]).sum(0)
        added[chosen] = -1
        chosen.append(int(added.argmax()))
        covered = np.maximum(covered, gains[:, chosen[-1]])
    return chosen


def compare(rows: Sequence[Row], cover: Sequence[int], with_all: bool) -> list[Row]:
    """Count the tests that are met with each choice of first operations."""
    one, pairs = (np.concatenate([meet(row, kinds) for row in rows]) for kinds in (["single"], ["single", "pairs"]))
    times = np.mean([row["cpu"] for row in rows], axis=0)
    tried = np.mean([len(row["double"]) for row in rows])
    found = [count("one operation", one, one, 0, times[0]), count("and pairs", pairs, one, 0, times[:2].sum())]
    for name in ("random", "list", "largest values", *(["all"] if with_all else [])):
        chosen = [cover if name == "list" else row["choices"][name] for row in rows]
        hits = [meet(row, ["single", "pairs"], first) for row, first in zip(rows, chosen, strict=True)]
        executed = np.mean(
            [len(row["double"].keys() & map(str, first)) for row, first in zip(rows, chosen, strict=True)]
        )
        cpu = times[:2].sum() + times[2] * executed / max(tried, 1)
        found.append(count(f"and two: {name}", np.concatenate(hits), pairs, float(executed) * len(OPERATIONS), cpu))
        if name == "largest values":
            hits = [meet(row, ["single", "pairs", "triple"], first) for row, first in zip(rows, chosen, strict=True)]
            executed = float(executed + np.mean([row["prefixes"] for row in rows])) * len(OPERATIONS)
            found.append(count("and three", np.concatenate(hits), pairs, executed, cpu + times[3]))
    return [{"puzzles": len(rows), "tests": len(one), **row} for row in found]


def count(name: str, hits: NDArray[np.bool_], before: NDArray[np.bool_], executed: float, cpu: float) -> Row:
    """Return a row about the tests that are met. `executed` are the programs of two or three operations a puzzle."""
    return {
        "programs": name,
        "met": int(hits.sum()),
        "gained": int((hits & ~before).sum()),
        "lost": int((before & ~hits).sum()),
        "executed": executed,
        "cpu": cpu,
    }


def meet(row: Row, kinds: Sequence[str], first: Sequence[int] = ()) -> NDArray[np.bool_]:
    """Return which tests of a puzzle the two best distinct answers meet."""
    answers = [answer for kind in kinds for answer in row[kind]]
    answers += [answer for index in first for answer in row["double"].get(str(index), [])]
    answers.sort(key=lambda answer: (-answer["value"], len(answer["program"])))
    hits = []
    for test in range(row["tests"]):
        distinct = {answer["digests"][test]: answer["hits"][test] for answer in reversed(answers)}
        ranked = dict.fromkeys(answer["digests"][test] for answer in answers if answer["digests"][test])
        hits.append(any(distinct[each] for each in list(ranked)[:2]))
    return np.array(hits)


if __name__ == "__main__":
    main()
