import numpy as np
import pytest

from searchlight.models.arc.puzzles import Puzzle


@pytest.fixture
def puzzles() -> list[Puzzle]:
    """Six puzzles of four rules (mirror, recolor, crop, enlarge), with three demonstrations and two tests each."""
    random = np.random.default_rng(0)
    rules = [
        lambda grid: grid[:, ::-1],
        lambda grid: np.where(grid == 3, 5, grid).astype(np.uint8),
        lambda grid: grid[:2, :2],
        lambda grid: grid.repeat(2, 0).repeat(2, 1),
    ]
    made = []
    for number in range(6):
        rule = rules[number % len(rules)]
        inputs = [random.integers(0, 10, size=random.integers(3, 6, size=2), dtype=np.uint8) for _ in range(5)]
        pairs = tuple((grid, np.ascontiguousarray(rule(grid))) for grid in inputs)
        made.append(Puzzle(f"{number:08x}", pairs[:3], pairs[3:]))
    return made
