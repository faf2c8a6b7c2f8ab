"""The symmetries of puzzles: rotations and reflections of grids, and permutations of colors.

They do not change the rule of a puzzle if all its grids are changed in the same way. Color 0 is not permuted, because
it is the background in most puzzles.
"""

from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from searchlight.models.arc.puzzles.canvas import FIRST_COLOR, SYMBOLS
from searchlight.models.arc.puzzles.puzzle import COLORS

SYMMETRIES = 8

Cell = TypeVar("Cell", bound=np.generic)


def transform(grid: NDArray[Cell], symmetry: int) -> NDArray[Cell]:
    """Rotate or reflect a grid by one of the 8 symmetries of the square.

    Args:
        grid: The grid, shape (height, width). Further axes are kept.
        symmetry: 0..3 quarter turns counter-clockwise; 4..7 the same turns, then a reflection along the
            diagonal.
    """
    turned = np.rot90(grid, symmetry % 4)
    return turned.swapaxes(0, 1) if symmetry >= 4 else turned


def invert_symmetry(symmetry: int) -> int:
    """Return the symmetry that undoes `symmetry`. A reflection undoes itself."""
    return symmetry if symmetry >= 4 else -symmetry % 4


def draw_renamings(count: int, generator: torch.Generator) -> Tensor:
    """Draw tables that rename symbols at random: PAD, BORDER and color 0 stay, colors 1..9 are permuted.

    Returns:
        uint8 of shape (count, 12): entry [i, s] is the new symbol of s.
    """
    tables = torch.arange(SYMBOLS, dtype=torch.uint8).repeat(count, 1)
    order = torch.rand(count, COLORS - 1, generator=generator).argsort(dim=1)
    tables[:, FIRST_COLOR + 1 :] = (order + FIRST_COLOR + 1).to(torch.uint8)
    return tables


def rename(canvases: Tensor, tables: Tensor) -> Tensor:
    """Rename the symbols of each episode's canvases by its own table.

    Args:
        canvases: uint8 symbols, shape (episodes, ...).
        tables: uint8, shape (episodes, 12), see `draw_renamings`.

    Returns:
        uint8, same shape as `canvases`.
    """
    flat = canvases.reshape(canvases.shape[0], -1).long()
    return tables.gather(1, flat).reshape(canvases.shape)
