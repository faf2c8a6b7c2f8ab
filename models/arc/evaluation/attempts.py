"""From predicted canvases to two ranked attempts per test output."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from searchlight.models.arc.puzzles import (
    BORDER,
    FIRST_COLOR,
    PAD,
    Grid,
    find_likeliest_sizes,
    invert_symmetry,
    transform,
)

DIGITS = 4  # of votes: the weights of a view's candidates sum to 1, give or take the last bits


@dataclass(frozen=True, eq=False)
class View:
    """The prediction of one view of a test, with its augmentation undone.

    Attributes:
        grid: The most likely grid of the most likely size, uint8 of shape (height, width).
        log_probs: The log-probabilities of the colors of its cells, float32 of shape (height, width, 10).
        weight: The weight of its vote.
    """

    grid: Grid
    log_probs: NDArray[np.float32]
    weight: float = 1.0


def read_views(logits: Tensor, symmetry: Tensor, tables: Tensor, weights: Tensor | None = None) -> list[View]:
    """Return the predicted grid of each episode, with its augmentation undone.

    Args:
        logits: The logits of the last refinement step, shape (episodes, S, S, 12).
        symmetry: The symmetry of each episode, int64 of shape (episodes,).
        tables: The permutation of symbols of each episode, uint8 of shape (episodes, 12).
        weights: The weight of each episode's vote, shape (episodes,). None: all weights are 1.
    """
    log_probs = logits.detach().float().cpu().log_softmax(-1)
    index = tables.cpu().long()[:, None, None, :].expand_as(log_probs)
    log_probs = log_probs.gather(-1, index)
    sizes = find_likeliest_sizes(
        log_probs[..., FIRST_COLOR:].logsumexp(-1), log_probs[..., BORDER], log_probs[..., PAD]
    )
    colors = log_probs[..., FIRST_COLOR:].log_softmax(-1).numpy()
    counts = [1.0] * len(colors) if weights is None else weights.tolist()
    views = []
    for one, (height, width), turn, weight in zip(colors, sizes.tolist(), symmetry.tolist(), counts, strict=True):
        cropped: NDArray[np.float32] = one[:height, :width]
        back = np.ascontiguousarray(transform(cropped, invert_symmetry(turn)))
        views.append(View(back.argmax(-1).astype(np.uint8), back, weight))
    return views


def choose_attempts(views: Sequence[View]) -> tuple[Grid, Grid]:
    """Return the two best distinct grids among the predictions of the views of one test.

    Each view votes for its grid, with its weight. The mean prediction of the views with the most common size gives a
    further grid. If no view has this grid, it gets one vote. Grids are ranked by votes, then the grid of the mean comes
    first, then by confidence (mean log-probability of the cells). If all views agree, the second attempt changes the
    least certain cell to its second most likely color.

    Args:
        views: The views, at least one.
    """
    sizes: dict[tuple[int, ...], float] = {}
    for view in views:
        sizes[view.grid.shape] = sizes.get(view.grid.shape, 0.0) + view.weight
    common = max(sizes, key=lambda shape: round(sizes[shape], DIGITS))
    agreeing = [view for view in views if view.grid.shape == common]
    mean = np.average([np.exp(view.log_probs) for view in agreeing], axis=0, weights=[view.weight for view in agreeing])
    joint = mean.argmax(-1).astype(np.uint8)

    groups: dict[tuple[int, int, bytes], list[View]] = {}
    for view in views:
        groups.setdefault(_get_key(view.grid), []).append(view)
    grids = {key: group[0].grid for key, group in groups.items()}
    ranks = {
        key: (
            round(sum(view.weight for view in group), DIGITS),
            key == _get_key(joint),
            max(float(view.log_probs.max(-1).mean()) for view in group),
        )
        for key, group in groups.items()
    }
    if _get_key(joint) not in ranks:
        grids[_get_key(joint)], ranks[_get_key(joint)] = joint, (1, True, 0.0)

    best = sorted(ranks, key=lambda key: ranks[key], reverse=True)
    first = grids[best[0]]
    return first, grids[best[1]] if len(best) > 1 else _find_runner_up(first, mean)


def choose_all_attempts(views: Sequence[View], per_test: int) -> list[tuple[Grid, Grid]]:
    """Return two attempts for each test, where `views[t * per_test + v]` is view v of test t."""
    starts = range(0, len(views), per_test)
    return [choose_attempts(views[start : start + per_test]) for start in starts]


def _get_key(grid: Grid) -> tuple[int, int, bytes]:
    return (*grid.shape, grid.tobytes())


def _find_runner_up(grid: Grid, probs: NDArray[np.float32]) -> Grid:
    others = probs.copy()
    np.put_along_axis(others, grid[..., None].astype(np.int64), -1.0, axis=-1)
    lead = probs.max(-1) - others.max(-1)
    row, column = np.unravel_index(lead.argmin(), grid.shape)
    changed = grid.copy()
    changed[row, column] = others[row, column].argmax()
    return changed
