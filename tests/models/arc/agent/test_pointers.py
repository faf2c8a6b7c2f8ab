"""Attention along rows and columns: what heads can say, and in which directions."""

import numpy as np
import pytest
import torch

from searchlight.models.arc.agent import GridAgent
from searchlight.models.arc.agent.pointers import CELLS, PLACES, Pointers, compute_hits, copy
from searchlight.models.arc.puzzles import Grid, Puzzle, TrainingPool, draw_canvases, measure_extents

SIDE = 7
DOWN, UP, RIGHT, LEFT = range(4)  # the order of directions: columns first


def pointers(place: int | None = None, cell: int | None = None, absent: float = -1.0) -> Pointers:
    """One head with one strong weight."""
    made = Pointers(heads=1)
    for part, index in (made.places, place), (made.cells, cell):
        torch.nn.init.zeros_(part)
        if index is not None:
            part.data[0, index] = 2.0
    made.absent.data[:] = torch.tensor([absent, 0.0, 0.0, 0.0])
    return made


def copies(head: Pointers, grid: Grid) -> list[Grid]:
    """What the head copies in each direction."""
    canvas = draw_canvases([grid], SIDE)
    copied = copy(*head(canvas, measure_extents(canvas)))
    height, width = grid.shape
    return [found[:height, :width].numpy() - 2 for found in copied[0].argmax(-1)]


@pytest.fixture
def grid() -> Grid:
    return np.random.default_rng(0).integers(0, 4, size=(5, 6), dtype=np.uint8)


def test_head_wraps_around_in_four_directions(grid: Grid) -> None:
    found = copies(pointers(place=4 + 2 * 4 + 1), grid)  # two steps ahead
    for direction, (shift, axis) in {DOWN: (-2, 0), UP: (2, 0), RIGHT: (-2, 1), LEFT: (2, 1)}.items():
        np.testing.assert_array_equal(found[direction], np.roll(grid, shift, axis))


def test_head_mirrors_along_each_axis(grid: Grid) -> None:
    found = copies(pointers(place=3), grid)
    for direction, axis in {DOWN: 0, UP: 0, RIGHT: 1, LEFT: 1}.items():
        np.testing.assert_array_equal(found[direction], np.flip(grid, axis))


def test_head_lets_colors_fall_to_each_side(grid: Grid) -> None:
    found = copies(pointers(cell=2, absent=0.5), grid)  # a cell with as many colors after it as places are left
    for direction, turns in {DOWN: 0, UP: 2, RIGHT: 3, LEFT: 1}.items():
        turned = np.rot90(grid, turns)
        fallen = np.take_along_axis(turned, np.argsort(turned != 0, axis=0, kind="stable"), axis=0)
        np.testing.assert_array_equal(found[direction], np.rot90(fallen, -turns))


def test_attention_stays_in_the_grid_and_hits_are_shares_of_it(grid: Grid) -> None:
    torch.manual_seed(0)
    canvases = draw_canvases([grid, grid[:2, :3]], SIDE)
    attention, lines = Pointers()(canvases, measure_extents(canvases))
    torch.testing.assert_close(attention.sum(4), torch.ones(2, 2, 2, 12, SIDE, SIDE))
    assert attention[1, 0, :, :, 2:SIDE].max() < 1e-6
    answers = draw_canvases([grid[::-1].copy(), grid[:2, :3]], SIDE)
    expected = copy(attention, lines).gather(-1, answers.long()[:, None, ..., None].expand(-1, 48, -1, -1, 1))[..., 0]
    torch.testing.assert_close(compute_hits(attention, lines, answers), expected)
    assert (Pointers().places.shape[1], Pointers().cells.shape[1]) == (PLACES, CELLS)


def test_hypothesis_that_fits_is_trusted_and_proposed(grid: Grid) -> None:
    random = np.random.default_rng(1)
    sources = [random.integers(0, 5, size=(5, 5), dtype=np.uint8) for _ in range(4)]
    pairs = tuple((source, np.roll(source, 1, 0)) for source in sources)
    torch.manual_seed(0)
    agent = GridAgent(width=16, layers=1)
    agent.pointers.places.data[3] = 0.0
    agent.pointers.places.data[3, 4 + 2 * 4] = 2.0  # the next one, wrapped around
    agent.pointers.cells.data[3] = agent.pointers.absent.data[3] = 0.0
    batch = TrainingPool([Puzzle("shift", pairs, ())], []).build_batch(
        torch.arange(4), torch.Generator().manual_seed(0)
    )
    reading = agent.read(batch.query, batch.demo_inputs, batch.demo_outputs, batch.demo_mask)
    first = reading.proposals[:, 0].argmax(-1)
    assert torch.equal(first, batch.target.flatten(1).long())
    assert (reading.trust[:, 0] - reading.trust[:, 1] > 3).all()
    assert reading.evidence.min() > -0.1
