"""Operations that turn, reflect, shift, repeat or complete the whole grid."""

from typing import Any

import numpy as np

from searchlight.models.arc.programs.operation import Operation, Transform
from searchlight.models.arc.programs.operations.measures import layer
from searchlight.models.arc.puzzles import Grid


def mirror_left_right(grid: Grid) -> Grid:
    return grid[:, ::-1]


def mirror_top_bottom(grid: Grid) -> Grid:
    return grid[::-1]


def turn_half(grid: Grid) -> Grid:
    return grid[::-1, ::-1]


def turn_left(grid: Grid) -> Grid:
    return np.rot90(grid)


def turn_right(grid: Grid) -> Grid:
    return np.rot90(grid, 3)


def transpose(grid: Grid) -> Grid:
    return grid.T


def transpose_other(grid: Grid) -> Grid:
    return grid[::-1, ::-1].T


def join_four_turns(grid: Grid) -> Any:
    """Join a square grid and its quarter turns, each further clockwise, around the middle of a square twice as long."""
    if grid.shape[0] != grid.shape[1]:
        return None
    return np.block([[grid, turn_right(grid)], [turn_left(grid), turn_half(grid)]])


def symmetrize(*symmetries: Transform) -> Transform:
    """Return an operation that fills the background with what the symmetries put there, the first ones first."""

    def fill(grid: Grid) -> Any:
        images = [symmetry(grid) for symmetry in symmetries]
        return layer(grid, *images) if all(image.shape == grid.shape for image in images) else None

    return fill


QUARTERS = (turn_left, turn_half, turn_right)
MIRRORS = (mirror_left_right, mirror_top_bottom, turn_half)

OPERATIONS = (
    Operation("mirror_left_right", "mirror left-right", mirror_left_right),
    Operation("mirror_top_bottom", "mirror top-bottom", mirror_top_bottom),
    Operation("turn_half", "turn by half", turn_half),
    Operation("turn_left", "turn left by a quarter", turn_left),
    Operation("turn_right", "turn right by a quarter", turn_right),
    Operation("transpose", "mirror along the diagonal", transpose),
    Operation("transpose_other", "mirror along the other diagonal", transpose_other),
    Operation("shift_right", "shift right by a cell, around the edge", lambda grid: np.roll(grid, 1, 1)),
    Operation("shift_left", "shift left by a cell, around the edge", lambda grid: np.roll(grid, -1, 1)),
    Operation("shift_down", "shift down by a cell, around the edge", lambda grid: np.roll(grid, 1, 0)),
    Operation("shift_up", "shift up by a cell, around the edge", lambda grid: np.roll(grid, -1, 0)),
    Operation("repeat_right", "repeat to the right", lambda grid: np.hstack([grid, grid])),
    Operation("repeat_down", "repeat downward", lambda grid: np.vstack([grid, grid])),
    Operation("join_mirror_right", "join the mirror image on the right", lambda g: np.hstack([g, g[:, ::-1]])),
    Operation("join_mirror_left", "join the mirror image on the left", lambda g: np.hstack([g[:, ::-1], g])),
    Operation("join_mirror_below", "join the mirror image below", lambda g: np.vstack([g, g[::-1]])),
    Operation("join_mirror_above", "join the mirror image above", lambda g: np.vstack([g[::-1], g])),
    Operation("join_half_turn_below", "join the half turn below", lambda g: np.vstack([g, turn_half(g)])),
    Operation("join_half_turn_right", "join the half turn on the right", lambda g: np.hstack([g, turn_half(g)])),
    Operation("join_four_turns", "join the four quarter turns", join_four_turns),
    Operation("symmetrize_left_right", "make symmetric left-right", symmetrize(mirror_left_right)),
    Operation("symmetrize_top_bottom", "make symmetric top-bottom", symmetrize(mirror_top_bottom)),
    Operation("symmetrize_mirrors", "make symmetric left-right and top-bottom", symmetrize(*MIRRORS)),
    Operation("symmetrize_turns", "make symmetric under quarter turns", symmetrize(*QUARTERS)),
    Operation("symmetrize_diagonal", "make symmetric along the diagonal", symmetrize(transpose)),
    Operation(
        "symmetrize_all",
        "make symmetric under all turns and mirrors",
        symmetrize(*MIRRORS, transpose, transpose_other, turn_left, turn_right),
    ),
)
