import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.arc import Augmentation, load_puzzles
from models.arc.prompt import grids_text, rule_text


@st.composite
def grids(draw) -> np.ndarray:
    """Small grids of few colours, so that mirrors, tiles and crops come up by chance."""
    height, width, colours = draw(st.integers(1, 5)), draw(st.integers(1, 5)), draw(st.integers(1, 10))
    cells = draw(st.lists(st.integers(0, colours - 1), min_size=height * width, max_size=height * width))
    return np.array(cells, dtype=np.uint8).reshape(height, width)


RULES = [
    lambda grid: grid,
    lambda grid: grid[:, ::-1],
    lambda grid: grid.T,
    lambda grid: np.rot90(grid),
    lambda grid: grid[:1, :2],
    lambda grid: np.where(grid == 1, 2, grid),
    lambda grid: np.where(grid == 0, 3, grid),
    lambda grid: np.where(grid == 2, 0, grid),
    lambda grid: np.sort(grid, axis=0),
    lambda grid: grid.repeat(2, 0),
    lambda grid: np.tile(grid, (2, 3)),
    lambda grid: np.pad(grid, ((0, 2), (1, 0))),
    lambda grid: np.concatenate([grid, grid[::-1]]),
    lambda grid: np.full((3, 1), grid.max()),
]


@st.composite
def puzzles(draw):
    """Pairs by one of the rules, or of outputs that have nothing to do with their inputs; and a query."""
    inputs = draw(st.lists(grids(), max_size=4))
    rule = draw(st.sampled_from([*RULES, None]))
    pairs = [(grid, draw(grids()) if rule is None else rule(grid).astype(np.uint8)) for grid in inputs]
    return pairs, draw(grids())


augmentations = st.builds(Augmentation, st.integers(0, 7), st.permutations(range(1, 10)).map(lambda order: (0, *order)))


@settings(max_examples=300, deadline=None)
@given(puzzles(), augmentations, st.randoms())
def test_a_rule_reads_the_same_in_all_views_and_orders(puzzle, augmentation, random) -> None:
    demonstrations, query = puzzle
    seen = [(augmentation.grid(source), augmentation.grid(target)) for source, target in demonstrations]
    random.shuffle(seen)
    assert rule_text(seen, augmentation.grid(query)) == rule_text(demonstrations, query)


@settings(max_examples=100, deadline=None)
@given(puzzles())
def test_a_rule_is_told_in_forty_words_of_plain_letters(puzzle) -> None:
    text = rule_text(*puzzle)
    assert 1 <= len(text.split()) <= 40
    assert text.isascii()


@pytest.mark.parametrize(
    ("rule", "begins"),
    list(
        zip(
            RULES,
            [
                "The grid is copied. Sizes stay.",
                "The grid is mirrored. Sizes stay.",
                "The grid is mirrored along a diagonal.",
                "The grid is turned by a quarter.",
                "The grid is cropped to a part. Outputs always have 1 by 2 cells.",
                "Colours are renamed. Sizes stay.",
                "Colours are renamed. Sizes stay.",
                "Colours are renamed. Sizes stay.",
                "Cells are moved. Sizes stay.",
                "The grid is enlarged cell by cell. Outputs are 2.0 times larger.",
                "The grid is tiled. Outputs are 6.0 times larger.",
                "The grid is framed by more cells. Outputs are",
                "The grid is tiled. Outputs are 2.0 times larger.",
                "A small grid is composed. Outputs always have 1 by 3 cells.",
            ],
            strict=True,
        )
    ),
)
def test_each_kind_of_change_is_named(rule, begins) -> None:
    random = np.random.default_rng(0)
    inputs = [random.integers(0, 4, size=shape, dtype=np.uint8) for shape in ((3, 4), (4, 3), (5, 4))]
    assert rule_text([(grid, rule(grid).astype(np.uint8)) for grid in inputs], inputs[0]).startswith(begins)


def test_what_the_demonstrations_show_is_counted() -> None:
    source = np.array([[0, 1, 1, 0, 2]], dtype=np.uint8)
    target = np.array([[3, 1, 1, 3, 0]], dtype=np.uint8)
    other = np.array([[0, 0, 0, 0, 2]], dtype=np.uint8)
    assert rule_text([(source, target), (source, other)], source) == (
        "Colours are renamed. Sizes stay. 0 colours added, 1 removed, 50% changed, symmetric. "
        "2 objects become 2. The query has 1 by 5 cells, 3 colours, 2 objects."
    )


def test_real_puzzles_get_many_different_texts() -> None:
    texts = {rule_text(puzzle.demonstrations, puzzle.tests[0][0]) for puzzle in load_puzzles("arc-agi-1", "training")}
    assert len(texts) > 200


def test_grids_are_written_cell_by_cell() -> None:
    grid = np.array([[1, 2], [3, 4]], dtype=np.uint8)
    assert grids_text([(grid, grid[:1])], grid[1:]) == "query\n34\ninput\n12\n34\noutput\n12"


def test_without_demonstrations_the_query_is_described() -> None:
    query = np.zeros((2, 1), dtype=np.uint8)
    assert rule_text([], query) == "Nothing is shown. The query has 1 by 2 cells, 1 colour, 0 objects."
    assert grids_text([], query) == "query\n0\n0"
