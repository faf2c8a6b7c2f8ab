"""Operations that move colors along rows, columns and diagonals: rays, gravity, and lines between two cells."""

from typing import Any

import numpy as np

from searchlight.models.arc.programs.operation import Operation, Transform
from searchlight.models.arc.programs.operations.measures import layer
from searchlight.models.arc.puzzles import Grid

Direction = tuple[int, int]  # the step from a cell to the next, in rows and columns

RIGHT, LEFT, DOWN, UP = (0, 1), (0, -1), (1, 0), (-1, 0)
DIAGONALS = ((1, 1), (-1, -1), (1, -1), (-1, 1))


def cast_rays(grid: Grid, direction: Direction) -> Grid:
    """Continue each colored cell in a direction, through background, up to the next colored cell or the edge."""
    backward = slice(None, None, -1 if sum(direction) < 0 else 1)
    axis = 1 if direction[1] else 0
    turn = (backward, slice(None)) if axis == 0 else (slice(None), backward)
    ahead = grid[turn]
    places = np.arange(ahead.shape[axis]).reshape((-1, 1) if axis == 0 else (1, -1))
    latest = np.maximum.accumulate(np.where(ahead > 0, places, 0), axis=axis)
    cast: Grid = np.take_along_axis(ahead, latest, axis)[turn]
    return cast


def cast_diagonal(grid: Grid, direction: Direction) -> Grid:
    """Continue each colored cell in a diagonal direction up to the edge. At each cell the nearest source counts."""
    cast = grid.copy()
    down, right = direction
    for row in range(grid.shape[0])[::down]:
        before = row - down
        if not 0 <= before < grid.shape[0]:
            continue
        moved = np.zeros_like(grid[row])
        if right > 0:
            moved[1:] = cast[before, :-1]
        else:
            moved[:-1] = cast[before, 1:]
        cast[row] = np.where(cast[row] > 0, cast[row], moved)
    return cast


def connect(grid: Grid, across: bool) -> Any:
    """Fill the background between two neighbors of one color in each row, if `across`, or in each column."""
    first, second = (cast_rays(grid, one) for one in ((RIGHT, LEFT) if across else (DOWN, UP)))
    return layer(grid, np.where(first == second, first, 0))


def mark_between(grid: Grid) -> Any:
    """Mark background between colored cells of its row with 1, of its column with 2, of both with 3."""
    right, left, down, up = (cast_rays(grid, direction) > 0 for direction in (RIGHT, LEFT, DOWN, UP))
    return np.where(grid > 0, 0, (right & left) + 2 * (down & up))


def drop_cells(grid: Grid, direction: Direction) -> Any:
    """Let colored cells fall to the edge in a direction. They keep their order."""
    axis = 1 if direction[1] else 0
    order = np.argsort((grid > 0) if sum(direction) > 0 else (grid == 0), axis=axis, kind="stable")
    return np.take_along_axis(grid, order, axis)


def cast_to(*directions: Direction) -> Transform:
    """Return an operation that casts rays in directions; where they meet, the first direction counts."""
    return lambda grid: layer(*(cast_rays(grid, direction) for direction in directions))


def cast_diagonals(*directions: Direction) -> Transform:
    """Return an operation that casts diagonal rays; where they meet, the first direction counts."""
    return lambda grid: layer(*(cast_diagonal(grid, direction) for direction in directions))


def fall_to(direction: Direction) -> Transform:
    """Return an operation that lets colored cells fall in a direction."""
    return lambda grid: drop_cells(grid, direction)


OPERATIONS = (
    Operation("rays_right", "cast rays to the right", cast_to(RIGHT)),
    Operation("rays_left", "cast rays to the left", cast_to(LEFT)),
    Operation("rays_down", "cast rays downward", cast_to(DOWN)),
    Operation("rays_up", "cast rays upward", cast_to(UP)),
    Operation("rays_across", "cast rays to the right, then to the left", cast_to(RIGHT, LEFT)),
    Operation("rays_along", "cast rays downward, then upward", cast_to(DOWN, UP)),
    Operation("rays_cross", "cast rays right, left, down and up", cast_to(RIGHT, LEFT, DOWN, UP)),
    Operation("diagonal_down_right", "cast diagonal rays down to the right", cast_diagonals((1, 1))),
    Operation("diagonal_up_left", "cast diagonal rays up to the left", cast_diagonals((-1, -1))),
    Operation("diagonal_down_left", "cast diagonal rays down to the left", cast_diagonals((1, -1))),
    Operation("diagonal_up_right", "cast diagonal rays up to the right", cast_diagonals((-1, 1))),
    Operation("diagonal_all", "cast diagonal rays in all four directions", cast_diagonals(*DIAGONALS)),
    Operation("connect_across", "connect neighbors of one color in each row", lambda grid: connect(grid, True)),
    Operation("connect_along", "connect neighbors of one color in each column", lambda grid: connect(grid, False)),
    Operation(
        "connect_both",
        "connect neighbors of one color in each column, then in each row",
        lambda grid: layer(connect(grid, False), connect(grid, True)),
    ),
    Operation("mark_between", "mark background between colored cells", mark_between),
    Operation("fall_down", "let colored cells fall down", fall_to(DOWN)),
    Operation("fall_up", "let colored cells fall up", fall_to(UP)),
    Operation("fall_right", "let colored cells fall to the right", fall_to(RIGHT)),
    Operation("fall_left", "let colored cells fall to the left", fall_to(LEFT)),
)
