"""One step of a program: a function from a grid to a grid, with words for it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from searchlight.models.arc.puzzles import LARGEST_SIDE, Grid

# An array of colors of any integer type, or None where the operation does not apply.
Transform = Callable[[Grid], Any]
Fit = Callable[[Sequence[Grid], Sequence[Grid]], Transform | None]


@dataclass(frozen=True)
class Operation:
    """One step of a program. It has either `apply` or `fit`.

    Attributes:
        name: A short name, unique among operations.
        description: The step in words, unique among operations, for example "crop to the largest object".
        apply: The function of one grid.
        fit: A function that reads sizes from the demonstrations' inputs and outputs, and returns the function of one
            grid. It returns None if the demonstrations do not agree.
    """

    name: str
    description: str
    apply: Transform | None = None
    fit: Fit | None = None

    def transform(self, grids: Sequence[Grid | None], outputs: Sequence[Grid]) -> tuple[Grid | None, ...] | None:
        """Apply the operation to the grids of a puzzle.

        Args:
            grids: Those of the demonstrations, in the order of `outputs`, then those of the tests.
            outputs: The demonstrations' outputs. Only operations with `fit` read them.

        Returns:
            New grids, uint8 and contiguous, or None if the operation does not apply to a demonstration. A test's grid
            is None if the operation does not apply to it.
        """
        shown = [grid for grid in grids[: len(outputs)] if grid is not None]
        function = self.apply if self.fit is None else self.fit(shown, outputs)
        if function is None:
            return None
        changed: list[Grid | None] = []
        for index, grid in enumerate(grids):
            changed.append(None if grid is None else _check(function(grid)))
            if changed[-1] is None and index < len(outputs):
                return None
        return tuple(changed)


def _check(grid: Any) -> Grid | None:
    """Return an operation's result as a grid, or None if it is none: without cells, or with a side over 30."""
    if grid is None or not 1 <= min(grid.shape) <= max(grid.shape) <= LARGEST_SIDE:
        return None
    return np.ascontiguousarray(grid, dtype=np.uint8)
