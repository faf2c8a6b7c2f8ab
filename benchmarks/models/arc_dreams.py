"""Measure what the policy of the task `arc` gains from more training puzzles than there are.

Each training puzzle gives some more, in one of three ways:

- "dreams": its inputs with the outputs of a random operation that applies to them, and in half of the cases with other
  colors. So a program that solves the puzzle is known.
- "hindsight": the same with operations that a trained policy chooses for the puzzle, as in CodeIt (arXiv 2402.04858).
- "symmetries": the puzzle turned or mirrored, with other colors.

The preset is trained on the training puzzles alone, and on these and the new ones, with as many updates. The columns
are those of `arc_policy.py`. What was trained is kept in FOLDER.

    python benchmarks/models/arc_dreams.py FOLDER [--seeds 5] [--each 1]
"""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a clone need not be installed

from benchmarks.models.arc_policy import PRESET, Measured, describe, train, train_one
from benchmarks.recording import create_parser, print_progress, print_result
from searchlight.models.arc.programs import OPERATIONS, Executor, Program
from searchlight.models.arc.puzzles import COLORS, Grid, Pair, Puzzle
from searchlight.trainables.context import Context

WAYS = ("dreams", "hindsight", "symmetries")
DRAWN = 20  # operations, of which the first one that applies is taken
MAX_SIDE = 12
Make = Callable[[Puzzle, np.random.Generator], Sequence[Pair] | None]


def main() -> None:
    parser = create_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--each", type=int, default=1, help="new puzzles of each training puzzle")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    context, preset = Context(), yaml.safe_load(PRESET.read_text())["set"]
    task = train_one(preset, 0, context)
    with torch.no_grad():
        log_probs = task.modules["policy"](task.training.statistics, None, task.training.is_valid)
    names, probs = [puzzle.id for puzzle in task.training.puzzles], log_probs.double().softmax(1).numpy()
    learned = dict(zip(names, probs, strict=True))
    ways: dict[str, Make] = {
        "dreams": lambda puzzle, random: dream(puzzle, random, np.full(len(OPERATIONS), 1 / len(OPERATIONS))),
        "hindsight": lambda puzzle, random: dream(puzzle, random, learned[puzzle.id]),
        "symmetries": move,
    }
    runs = {"training puzzles": train(preset, arguments.seeds, context, arguments.folder)}
    for name in arguments.ways:
        data = write_puzzles(arguments.folder.absolute() / name, task.training.puzzles, ways[name], arguments.each)
        config = preset | {"data": str(data), "evaluation_data": "arc-agi-1", "leak": "allow"}
        runs[f"and {name}"] = train(config, arguments.seeds, context, arguments.folder)
    measured = {name: Measured(task.judged, task.asked, orders) for name, orders in runs.items()}
    rows = [describe(name, both, measured["training puzzles"]) for name, both in measured.items()]
    about = f"{len(task.training.puzzles)} training puzzles, {arguments.each} new ones of each, {arguments.seeds} seeds"
    print_result({"dreams": rows}, about=about)


def write_puzzles(folder: Path, puzzles: Sequence[Puzzle], make: Make, each: int) -> Path:
    """Write training puzzles and new ones of each in the layout of ARC-AGI's repository. Return the folder."""
    random = np.random.default_rng(0)
    (folder / "training").mkdir(parents=True, exist_ok=True)
    for puzzle in puzzles:
        made = [(puzzle.id, puzzle.demonstrations, puzzle.tests)]
        for number in range(each):
            pairs, shown = make(puzzle, random), len(puzzle.demonstrations)
            if pairs is not None:
                made.append((f"{puzzle.id}-{number}", tuple(pairs[:shown]), tuple(pairs[shown:])))
        for name, demonstrations, tests in made:
            content = {"train": list(map(to_json, demonstrations)), "test": list(map(to_json, tests))}
            (folder / "training" / f"{name}.json").write_text(json.dumps(content))
    print_progress(f"{folder.name}: {len(list((folder / 'training').iterdir()))} training puzzles")
    return folder


def to_json(pair: Pair) -> dict[str, Any]:
    return {"input": pair[0].tolist(), "output": pair[1].tolist()}


def dream(puzzle: Puzzle, random: np.random.Generator, probabilities: NDArray[np.float64]) -> list[Pair] | None:
    """Return the pairs of a puzzle with the outputs of an operation, or None if the drawn ones do not apply."""
    executor = Executor(puzzle)
    for index in random.choice(len(OPERATIONS), size=DRAWN, p=probabilities):
        program = Program((int(index),))
        if not executor.execute(program).is_valid:
            continue
        grids = executor.trace(program)[1]
        known = [grid for grid in grids if grid is not None]
        if len(known) == len(grids) and max(map(max, (grid.shape for grid in known))) <= MAX_SIDE:
            colors = draw_colors(random) if random.random() < 0.5 else np.arange(COLORS, dtype=np.uint8)
            return [(source, colors[grid]) for (source, _), grid in zip(puzzle.pairs, known, strict=True)]
    return None


def move(puzzle: Puzzle, random: np.random.Generator) -> list[Pair]:
    """Return the pairs of a puzzle turned or mirrored, with other colors."""
    turns, mirrored, colors = int(random.integers(4)), bool(random.integers(2)), draw_colors(random)

    def change(grid: Grid) -> Grid:
        turned = np.rot90(grid.T if mirrored else grid, turns)
        return np.ascontiguousarray(colors[turned])

    return [(change(source), change(target)) for source, target in puzzle.pairs]


def draw_colors(random: np.random.Generator) -> NDArray[np.uint8]:
    """Return a permutation of the colors that keeps the background."""
    return np.concatenate([[0], 1 + random.permutation(COLORS - 1)]).astype(np.uint8)


if __name__ == "__main__":
    main()
