import numpy as np
import pytest
import torch

from searchlight.models.arc.puzzles import draw_canvases, guess_outputs, guess_sizes, measure_agreement, read_grid

SIDE = 9


def canvases(*shapes: tuple[int, int]) -> torch.Tensor:
    return draw_canvases([np.ones(shape, dtype=np.uint8) for shape in shapes], SIDE)[None]


@pytest.mark.parametrize(
    ("inputs", "outputs", "query", "expected"),
    [
        ([(2, 3), (4, 1)], [(2, 3), (4, 1)], (5, 2), [5, 2]),  # kept
        ([(2, 3), (4, 1)], [(4, 6), (8, 2)], (3, 2), [6, 4]),  # doubled
        ([(2, 3), (4, 1)], [(3, 3), (3, 3)], (5, 2), [3, 3]),  # always 3x3
        ([(2, 3), (4, 1)], [(3, 5), (5, 3)], (5, 2), [6, 4]),  # one row and two columns more
        ([(2, 3), (4, 1)], [(3, 2), (1, 4)], (5, 2), [2, 5]),  # turned
        ([(2, 3), (4, 1)], [(1, 1), (3, 6)], (5, 2), [4, 2]),  # heights one less; no rule for widths
        ([(8, 8), (8, 8)], [(9, 9), (9, 9)], (9, 9), [9, 9]),  # never larger than the canvas
    ],
)
def test_the_size_follows_the_rule_of_the_demonstrations(inputs, outputs, query, expected) -> None:
    sizes = guess_sizes(canvases(query, *inputs), canvases(*outputs), torch.ones(1, 2, dtype=torch.bool))
    assert sizes[0, 0].tolist() == expected


def test_masked_or_empty_canvases_do_not_set_the_size() -> None:
    inputs, outputs = canvases((5, 2), (2, 3), (4, 1)), canvases((4, 6), (7, 7))
    assert guess_sizes(inputs, outputs, torch.tensor([[True, False]]))[0, 0].tolist() == [9, 4]
    assert guess_sizes(inputs, outputs, torch.tensor([[False, False]]))[0, 0].tolist() == [5, 2]
    empty = torch.zeros(1, 2, 4, 4, dtype=torch.uint8)
    sizes = guess_sizes(empty, empty[:, :1], torch.ones(1, 1, dtype=torch.bool))
    assert guess_outputs(empty, sizes).shape == (1, 2, 13, 4, 4)


def guessed(grid: np.ndarray, size: tuple[int, int]) -> list[np.ndarray]:
    outputs = guess_outputs(draw_canvases([grid], SIDE)[None], torch.tensor([[size]]))
    return [read_grid(canvas.numpy().astype(np.uint8)) for canvas in outputs[0, 0]]


def test_guesses_of_the_same_size() -> None:
    grid = np.arange(9, dtype=np.uint8).reshape(3, 3)
    found = guessed(grid, (3, 3))
    for index, expected in enumerate([grid, grid[:, ::-1], grid[::-1], grid[::-1, ::-1]]):
        np.testing.assert_array_equal(found[index], expected)
    turned = [grid.T, np.rot90(grid, -1), np.rot90(grid), grid.T[::-1, ::-1]]
    assert sorted(map(bytes, map(np.ravel, found[4:8]))) == sorted(map(bytes, map(np.ravel, turned)))
    for other in found[8:]:
        np.testing.assert_array_equal(other, grid)
    assert len(found) == 13


def test_guesses_of_another_size() -> None:
    grid = np.array([[1, 2], [3, 4]], dtype=np.uint8)
    found = guessed(grid, (4, 4))
    np.testing.assert_array_equal(found[8], np.tile(grid, (2, 2)))
    np.testing.assert_array_equal(found[9], grid.repeat(2, 0).repeat(2, 1))
    np.testing.assert_array_equal(found[11], np.pad(grid, ((0, 2), (0, 2)), mode="symmetric"))
    np.testing.assert_array_equal(found[0], np.pad(grid, ((0, 2), (0, 2))))
    large = np.arange(16, dtype=np.uint8).reshape(4, 4) % 10
    found = guessed(large, (2, 2))
    np.testing.assert_array_equal(found[0], large[:2, :2])
    np.testing.assert_array_equal(found[10], large[::2, ::2])
    np.testing.assert_array_equal(found[12], large[2:, 2:])


def test_agreement_is_the_share_of_matching_colors() -> None:
    truth = draw_canvases([np.array([[1, 2], [3, 4]], dtype=np.uint8)], 4)[None]
    half = draw_canvases([np.array([[1, 2], [4, 3]], dtype=np.uint8)], 4)
    wider = draw_canvases([np.array([[1, 2, 0], [3, 4, 0]], dtype=np.uint8)], 4)
    guesses = torch.stack([truth[0], half, wider], dim=1).long()[None]
    found = measure_agreement(guesses, truth, torch.ones(1, 1, dtype=torch.bool))
    torch.testing.assert_close(found, torch.tensor([[1.0, 0.5, 4 / 6]]))
    assert measure_agreement(guesses, truth, torch.zeros(1, 1, dtype=torch.bool)).tolist() == [[0.0, 0.0, 0.0]]
