"""Draw grids, and the symmetries and renamings of them."""

from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from hypothesis.strategies import SearchStrategy

from searchlight.models.arc.puzzles import Grid, Puzzle, transform


class Augmentation(NamedTuple):
    """A symmetry of the square, and the new name of each color."""

    symmetry: int
    colors: tuple[int, ...]

    def grid(self, grid: Grid) -> Grid:
        return np.ascontiguousarray(transform(np.array(self.colors, dtype=np.uint8)[grid], self.symmetry))

    def puzzle(self, puzzle: Puzzle) -> Puzzle:
        parts = (puzzle.demonstrations, puzzle.tests)
        return Puzzle(puzzle.id, *(tuple((self.grid(a), self.grid(b)) for a, b in pairs) for pairs in parts))


def grids_of(max_side: int, max_color: int = 9) -> SearchStrategy[np.ndarray]:
    shapes = array_shapes(min_dims=2, max_dims=2, max_side=max_side)
    return arrays(np.uint8, shapes, elements=st.integers(0, max_color))


grids = grids_of(12)
augmentations = st.builds(Augmentation, st.integers(0, 7), st.permutations(range(1, 10)).map(lambda order: (0, *order)))
