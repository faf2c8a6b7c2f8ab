"""From predictions to two attempts per test output, and from attempts to the metrics."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.arc.augment import inverse_symmetry, transform
from models.arc.canvas import BORDER, FIRST_COLOUR, PAD, likeliest_sizes
from models.arc.puzzles import Grid, Puzzle


@dataclass(frozen=True, eq=False)
class View:
    """What one view of a test predicts, turned and renamed back to the puzzle as it is.

    Attributes:
        grid: The most likely grid of the most likely size, uint8 of shape (height, width).
        log_probs: Log-probabilities of the colours at its cells, float32 of shape (height, width, 10).
    """

    grid: Grid
    log_probs: NDArray[np.float32]


def read_views(logits: Tensor, symmetry: Tensor, tables: Tensor) -> list[View]:
    """Read predictions off canvases and undo each episode's augmentation.

    Args:
        logits: Of the last refinement step, shape (episodes, S, S, 12).
        symmetry: The symmetry that each episode was turned by, int64 of shape (episodes,).
        tables: The table that its symbols were renamed by, uint8 of shape (episodes, 12).
    """
    log_probs = logits.detach().float().cpu().log_softmax(-1)
    index = tables.cpu().long()[:, None, None, :].expand_as(log_probs)
    log_probs = log_probs.gather(-1, index)
    sizes = likeliest_sizes(
        log_probs[..., FIRST_COLOUR:].logsumexp(-1), log_probs[..., BORDER], log_probs[..., PAD]
    )
    colours = log_probs[..., FIRST_COLOUR:].log_softmax(-1).numpy()
    views = []
    for one, (height, width), turn in zip(colours, sizes.tolist(), symmetry.tolist(), strict=True):
        back = np.ascontiguousarray(transform(one[:height, :width], inverse_symmetry(turn)))
        views.append(View(back.argmax(-1).astype(np.uint8), back))
    return views


def two_attempts(views: Sequence[View]) -> tuple[Grid, Grid]:
    """Rank what the views of one test predict, and take two distinct grids.

    Each view votes for its grid. Where the views of the most common size disagree, the grid that is most likely
    under their mean joins with one vote. Grids are ranked by votes, then by being that common grid, then by
    confidence (mean log-probability of the cells). If all agree, the second attempt changes the least certain
    cell to its next likely colour.

    Args:
        views: At least one.
    """
    shapes = [view.grid.shape for view in views]
    common_shape = max(shapes, key=lambda shape: (shapes.count(shape), -shapes.index(shape)))
    mean = np.mean([view.log_probs for view in views if view.grid.shape == common_shape], axis=0)
    common = mean.argmax(-1).astype(np.uint8)
    ballots = [(view.grid, float(view.log_probs.max(-1).mean())) for view in views]
    ranked: dict[tuple[tuple[int, ...], bytes], list[float]] = {}
    grids: dict[tuple[tuple[int, ...], bytes], Grid] = {}
    key = (common.shape, common.tobytes())
    ranked[key], grids[key] = [1.0, 1.0, -np.inf], common
    for grid, confidence in ballots:
        key = (grid.shape, grid.tobytes())
        grids[key] = grid
        entry = ranked.setdefault(key, [0.0, 0.0, -np.inf])
        entry[0] += 1
        entry[2] = max(entry[2], confidence)
    best = sorted(ranked, key=lambda name: ranked[name], reverse=True)[:2]
    if len(best) == 2:
        return grids[best[0]], grids[best[1]]
    return common, _runner_up(common, mean)


def _runner_up(grid: Grid, log_probs: NDArray[np.float32]) -> Grid:
    two_best = np.sort(log_probs, axis=-1)[..., -2:]
    row, column = np.unravel_index(np.argmin(two_best[..., 1] - two_best[..., 0]), grid.shape)
    other = grid.copy()
    other[row, column] = np.argsort(log_probs[row, column])[-2]
    return other


def cell_accuracy(prediction: Grid, truth: Grid) -> float:
    """Matching cells in the overlap, divided by the larger of the two areas; nothing is resized."""
    height, width = np.minimum(prediction.shape, truth.shape)
    matching = (prediction[:height, :width] == truth[:height, :width]).sum()
    return float(matching) / max(prediction.size, truth.size)


def tally(puzzles: Iterable[Puzzle], attempts: Sequence[tuple[Grid, Grid]]) -> dict[str, float]:
    """Score attempts as sums and counts, which may be added over processes.

    Args:
        puzzles: The puzzles tested, each with all its tests.
        attempts: Two ranked attempts for each test, in the order of the puzzles and their tests.

    Returns:
        Sums; `metrics` makes metrics of them.

    Raises:
        ValueError: The number of attempts is not the number of tests.
    """
    puzzles = list(puzzles)
    expected = sum(len(puzzle.tests) for puzzle in puzzles)
    if len(attempts) != expected:
        raise ValueError(
            f"attempts must have one entry per test, but got {len(attempts)} for {expected} tests. "
            "Score whole puzzles."
        )
    sums = dict.fromkeys(SUMS, 0.0)
    remaining = iter(attempts)
    for puzzle in puzzles:
        hits = 0
        for source, truth in puzzle.tests:
            first, second = next(remaining)
            accuracy, identity = cell_accuracy(first, truth), cell_accuracy(source, truth)
            hits += any(np.array_equal(attempt, truth) for attempt in (first, second))
            sums["outputs"] += 1
            sums["cell_acc"] += accuracy
            sums["identity_acc"] += identity
            sums["size_hits"] += first.shape == truth.shape
            if puzzle.keeps_shape:
                sums["same_shape_outputs"] += 1
                sums["cell_acc_same_shape"] += accuracy
                sums["identity_acc_same_shape"] += identity
            if source.shape == truth.shape:
                changed = source != truth
                sums["changed_cells"] += int(changed.sum())
                if first.shape == truth.shape:
                    sums["changed_cell_hits"] += int((changed & (first == truth)).sum())
        sums["puzzles"] += 1
        sums["output_hits"] += hits
        sums["puzzle_hits"] += hits == len(puzzle.tests)
    return sums


SUMS = (
    "puzzles",
    "puzzle_hits",
    "outputs",
    "output_hits",
    "size_hits",
    "cell_acc",
    "identity_acc",
    "same_shape_outputs",
    "cell_acc_same_shape",
    "identity_acc_same_shape",
    "changed_cells",
    "changed_cell_hits",
)


def metrics(sums: dict[str, float]) -> dict[str, float]:
    """Turn (added) sums into metrics; a share of nothing is 0.

    Returns:
        pass2_task: Share of puzzles all of whose test outputs are hit by one of two attempts (the official score).
        pass2_output: Share of test outputs hit by one of two attempts.
        size_acc: Share of first attempts of the right height and width.
        cell_acc: `cell_accuracy` of first attempts, mean over outputs.
        identity_acc: The same for answering with the input.
        cell_lift: What was gained over that, as a share of what could be: (acc - identity) / (1 - identity).
        cell_acc_same_shape, cell_lift_same_shape: The same over puzzles that keep the shape of their inputs.
        changed_cell_acc: Share of right cells among those that the answer changes, where it keeps the shape.
    """

    def share(part: str, whole: str) -> float:
        return sums[part] / sums[whole] if sums[whole] else 0.0

    def lift(accuracy: float, identity: float) -> float:
        return (accuracy - identity) / (1.0 - identity) if identity < 1.0 else 0.0

    accuracy, identity = share("cell_acc", "outputs"), share("identity_acc", "outputs")
    same_accuracy = share("cell_acc_same_shape", "same_shape_outputs")
    same_identity = share("identity_acc_same_shape", "same_shape_outputs")
    return {
        "pass2_task": share("puzzle_hits", "puzzles"),
        "pass2_output": share("output_hits", "outputs"),
        "size_acc": share("size_hits", "outputs"),
        "cell_acc": accuracy,
        "identity_acc": identity,
        "cell_lift": lift(accuracy, identity),
        "cell_acc_same_shape": same_accuracy,
        "cell_lift_same_shape": lift(same_accuracy, same_identity),
        "changed_cell_acc": share("changed_cell_hits", "changed_cells"),
    }


def evaluate_views(puzzles: Sequence[Puzzle], views: Sequence[View], per_test: int) -> dict[str, float]:
    """Attempts and sums in one go: `views[t * per_test + v]` is view v of test t."""
    grouped = [views[start : start + per_test] for start in range(0, len(views), per_test)]
    return tally(puzzles, [two_attempts(group) for group in grouped])
