"""An estimate of a puzzle's difficulty from its demonstrations, for the order of a curriculum and not for a score.

It does not depend on answers, so that evaluation puzzles can be ordered, too.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from searchlight.models.arc.puzzles.puzzle import COLORS, LARGEST_SIDE, Puzzle, count_objects

MANY_OBJECTS = 100


def estimate_difficulty(puzzle: Puzzle) -> float:
    """Estimate the difficulty of a puzzle, the mean of five numbers in 0..1.

    - the cells of the larger grid of a demonstration, on a logarithmic scale of which 1 is 30 by 30;
    - the colors of all demonstrations, of 10;
    - the objects in a demonstration's input, on a logarithmic scale of which 1 is 100 and more. An object is a group
      of cells of one color, not of color 0, that are connected by their edges;
    - the share of the cells that change; 1 where the grid changes its shape;
    - the share of the demonstrations that change the grid's shape.

    The first, the third and the fourth are means over the demonstrations.
    """
    return _estimate_difficulties([puzzle])[0]


def rank_difficulties(puzzles: Sequence[Puzzle]) -> Tensor:
    """Return the ranks of puzzles by difficulty, scaled to 0..1.

    Puzzles with a level of their source are ranked by it among each other. The other puzzles are ranked by
    `estimate_difficulty` among each other.

    Returns:
        float32 of shape (puzzles,), 0 for the easiest puzzle and 1 for the hardest. Ties share the mean of their ranks.
    """
    known = np.array([puzzle.level is not None for puzzle in puzzles], dtype=bool)
    placed = np.zeros(len(puzzles))
    placed[known] = _rank_values([puzzle.level for puzzle in puzzles if puzzle.level is not None])
    placed[~known] = _rank_values(_estimate_difficulties([puzzle for puzzle in puzzles if puzzle.level is None]))
    return torch.from_numpy(placed).float()


def _rank_values(values: Sequence[float]) -> NDArray[np.float64]:
    """Return ranks, scaled to 0..1. Ties share the mean of their ranks. A single value has the rank 0.5."""
    if len(values) < 2:
        return np.full(len(values), 0.5)
    _, which, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    middle = counts.cumsum() - (counts + 1) / 2
    places: NDArray[np.float64] = middle[which] / (len(values) - 1)
    return places


def _estimate_difficulties(puzzles: Sequence[Puzzle]) -> list[float]:
    found = []
    for puzzle in puzzles:
        pairs = puzzle.demonstrations
        colors = np.bincount(np.concatenate([grid.ravel() for pair in pairs for grid in pair]), minlength=COLORS)
        reshaped = [source.shape != target.shape for source, target in pairs]
        changed = [
            1.0 if other else float((source != target).mean())
            for (source, target), other in zip(pairs, reshaped, strict=True)
        ]
        area = [math.log(max(source.size, target.size)) / math.log(LARGEST_SIDE**2) for source, target in pairs]
        count = [min(1.0, math.log1p(count_objects(source)) / math.log1p(MANY_OBJECTS)) for source, _ in pairs]
        shown = float(np.count_nonzero(colors)) / COLORS
        found.append((sum(area) + sum(changed) + sum(count) + sum(reshaped)) / (5 * len(pairs)) + shown / 5)
    return found
