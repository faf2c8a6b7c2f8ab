"""The symmetries of the square: rotations and reflections of grids."""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

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
