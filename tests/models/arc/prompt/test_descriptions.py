"""What is said of a puzzle in words."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from searchlight.models.arc.prompt import describe_rule, format_grids
from tests.models.arc.grids import augmentations, grids_of

RULES = {
    "The grid is copied. Sizes stay.": lambda grid: grid,
    "The grid is mirrored. Sizes stay.": lambda grid: grid[:, ::-1],
    "The grid is mirrored along a diagonal.": lambda grid: grid.T,
    "The grid is turned by a quarter.": lambda grid: np.rot90(grid),
    "The grid is cropped to a part. Outputs always have 1 by 2 cells.": lambda grid: grid[:1, :2],
    "Colours are renamed. Sizes stay.": lambda grid: np.where(grid == 1, 2, grid),
    "Colours are renamed. Sizes stay. ": lambda grid: np.where(grid == 0, 3, grid),
    "Cells are moved. Sizes stay.": lambda grid: np.sort(grid, axis=0),
    "The grid is enlarged cell by cell. Outputs are 2.0 times larger.": lambda grid: grid.repeat(2, 0),
    "The grid is tiled. Outputs are 6.0 times larger.": lambda grid: np.tile(grid, (2, 3)),
    "The grid is framed by more cells. Outputs are": lambda grid: np.pad(grid, ((0, 2), (1, 0))),
    "The grid is tiled. Outputs are 2.0 times larger.": lambda grid: np.concatenate([grid, grid[::-1]]),
    "A small grid is composed. Outputs always have 1 by 3 cells.": lambda grid: np.full((3, 1), grid.max()),
}
grids = st.integers(0, 9).flatmap(lambda colors: grids_of(5, colors))  # with mirrors, tiles and crops by chance


@st.composite
def puzzles(draw):
    """Pairs by one of the rules, or of outputs that have nothing to do with their inputs; and a query."""
    inputs = draw(st.lists(grids, max_size=4))
    rule = draw(st.sampled_from([*RULES.values(), None]))
    pairs = [(grid, draw(grids) if rule is None else rule(grid).astype(np.uint8)) for grid in inputs]
    return pairs, draw(grids)


@settings(max_examples=100)
@given(puzzles(), augmentations, st.randoms())
def test_a_rule_reads_the_same_in_all_views_and_orders(puzzle, augmentation, random) -> None:
    demonstrations, query = puzzle
    text = describe_rule(demonstrations, query)
    assert 1 <= len(text.split()) <= 40
    assert text.isascii()
    seen = [(augmentation.grid(source), augmentation.grid(target)) for source, target in demonstrations]
    random.shuffle(seen)
    assert describe_rule(seen, augmentation.grid(query)) == text


@pytest.mark.parametrize("begins", RULES)
def test_each_kind_of_change_is_named(begins) -> None:
    random = np.random.default_rng(0)
    inputs = [random.integers(0, 4, size=shape, dtype=np.uint8) for shape in ((3, 4), (4, 3), (5, 4))]
    text = describe_rule([(grid, RULES[begins](grid).astype(np.uint8)) for grid in inputs], inputs[0])
    assert text.startswith(begins)


def test_what_the_demonstrations_show_is_counted() -> None:
    source = grid("01102")
    assert describe_rule([(source, grid("31130")), (source, grid("00002"))], source) == (
        "Colours are renamed. Sizes stay. 0 colours added, 1 removed, 50% changed, symmetric. "
        "2 objects become 2. The query has 1 by 5 cells, 3 colours, 2 objects."
    )


def test_grids_are_written_cell_by_cell_and_alone_described() -> None:
    assert format_grids([(grid("12", "34"), grid("12"))], grid("34")) == "query\n34\ninput\n12\n34\noutput\n12"
    query = grid("0", "0")
    assert describe_rule([], query) == "Nothing is shown. The query has 1 by 2 cells, 1 colour, 0 objects."
    assert format_grids([], query) == "query\n0\n0"


def grid(*rows: str) -> np.ndarray:
    return np.array([[int(cell) for cell in row] for row in rows], dtype=np.uint8)
