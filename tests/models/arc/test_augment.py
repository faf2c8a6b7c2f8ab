import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from models.arc import FIRST_COLOUR, SYMBOLS, Augmentation, Puzzle
from models.arc.augment import inverse_symmetry, random_renamings, rename, transform

grids = arrays(np.uint8, st.tuples(st.integers(1, 12), st.integers(1, 12)), elements=st.integers(0, 9))
augmentations = st.builds(
    lambda symmetry, rest: Augmentation(symmetry, (0, *rest)),
    st.integers(0, 7),
    st.permutations(range(1, 10)),
)


@given(grids, augmentations)
def test_the_inverse_undoes_an_augmentation(grid: np.ndarray, augmentation: Augmentation) -> None:
    np.testing.assert_array_equal(augmentation.inverse().grid(augmentation.grid(grid)), grid)
    np.testing.assert_array_equal(augmentation.grid(augmentation.inverse().grid(grid)), grid)


@given(grids, st.integers(0, 7))
def test_a_symmetry_keeps_all_cells(grid: np.ndarray, symmetry: int) -> None:
    turned = transform(grid, symmetry)
    assert turned.shape in (grid.shape, grid.shape[::-1])
    assert np.bincount(turned.ravel(), minlength=10).tolist() == np.bincount(grid.ravel(), minlength=10).tolist()
    np.testing.assert_array_equal(transform(turned, inverse_symmetry(symmetry)), grid)


def test_the_eight_symmetries_differ() -> None:
    grid = np.arange(6, dtype=np.uint8).reshape(2, 3)
    assert len({(turned.shape, turned.tobytes()) for turned in (transform(grid, s) for s in range(8))}) == 8


@given(augmentations)
def test_all_grids_of_a_puzzle_are_augmented_alike(augmentation: Augmentation) -> None:
    grids = [np.full((2, 3), colour, dtype=np.uint8) for colour in range(4)]
    puzzle = Puzzle("a", ((grids[0], grids[1]),), ((grids[2], grids[3]),))
    changed = augmentation.puzzle(puzzle)
    assert changed.id == "a"
    for pair, original in zip(changed.pairs, puzzle.pairs, strict=True):
        for new, old in zip(pair, original, strict=True):
            np.testing.assert_array_equal(new, augmentation.grid(old))
    assert changed.demonstrations[0][0].max() == 0


def test_wrong_augmentations_are_refused() -> None:
    with pytest.raises(ValueError, match=r"symmetry must lie in 0\.\.7, but got 8"):
        Augmentation(8)
    with pytest.raises(ValueError, match="colours must be a permutation"):
        Augmentation(0, (1, 0, 2, 3, 4, 5, 6, 7, 8, 9))


@given(st.integers(0, 2**31))
def test_renamings_are_permutations_that_keep_what_is_no_colour(seed: int) -> None:
    tables = random_renamings(5, torch.Generator().manual_seed(seed))
    assert tables.shape == (5, SYMBOLS)
    assert tables.dtype == torch.uint8
    assert torch.equal(tables.sort(dim=1).values, torch.arange(SYMBOLS, dtype=torch.uint8).expand(5, -1))
    assert (tables[:, : FIRST_COLOUR + 1] == torch.arange(FIRST_COLOUR + 1)).all()


def test_each_episode_is_renamed_by_its_own_table() -> None:
    generator = torch.Generator().manual_seed(0)
    tables = random_renamings(3, generator)
    canvases = torch.randint(SYMBOLS, (3, 2, 4, 4), generator=generator, dtype=torch.uint8)
    renamed = rename(canvases, tables)
    for episode in range(3):
        assert torch.equal(renamed[episode], tables[episode][canvases[episode].long()])
