"""What is said of a puzzle in words and in numbers."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from searchlight.models.arc.prompt import FEATURES, compute_puzzle_features, describe_rule, format_grids
from searchlight.models.arc.puzzles import draw_canvases
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


def features(demonstrations, query, side=9, shown=None) -> dict[str, float]:
    """The features of one episode; `shown` is how many of the demonstrations are used."""
    inputs = draw_canvases([source for source, _ in demonstrations], side)
    outputs = draw_canvases([target for _, target in demonstrations], side)
    mask = torch.arange(len(demonstrations)) < (len(demonstrations) if shown is None else shown)
    found = compute_puzzle_features(draw_canvases([query], side), inputs[None], outputs[None], mask[None])
    assert found.shape == (1, 15)
    assert found.dtype == torch.float32
    return dict(zip(FEATURES, found[0].tolist(), strict=True))


def grid(*rows: str) -> np.ndarray:
    return np.array([[int(cell) for cell in row] for row in rows], dtype=np.uint8)


def random_pairs(seed: int, count: int = 3):
    random = np.random.default_rng(seed)
    shapes = random.integers(1, 8, size=(count, 2, 2))
    return [tuple(random.integers(0, 10, size=shape, dtype=np.uint8) for shape in pair) for pair in shapes]


def test_a_recolored_puzzle_is_described_number_by_number() -> None:
    found = features([(grid("100", "100"), grid("200", "203"))], grid("11", "55", "00"))
    assert found == pytest.approx(
        {
            "size_change_ratio": 0.0,
            "size_preserved": 1.0,
            "pixel_change_ratio": 3 / 6,
            "color_preservation": 1 / 4,  # 0 of 0, 1, 2, 3
            "spatial_correlation": np.corrcoef([1, 0, 0, 1, 0, 0], [1, 0, 0, 1, 0, 1])[0, 1],
            "symmetry_change": (2 + 4) / 12 - (2 + 6) / 12,  # left to right and upside down
            "density_change": 1 / 6,
            "colors_added": 2 / 10,
            "colors_removed": 1 / 10,
            "input_color_count": 3 / 10,
            "output_color_count": 3 / 10,
            "input_height": 3 / 30,
            "input_width": 2 / 30,
            "output_height": 3 / 30,
            "output_width": 2 / 30,
        },
        abs=1e-6,
    )


def test_areas_are_compared_and_the_answer_size_is_guessed() -> None:
    found = features([(grid("12"), grid("1122", "1122")), (grid("3"), grid("33", "33"))], grid("123"))
    assert found["size_change_ratio"] == pytest.approx(math.log(4) / math.log(900))
    assert (found["size_preserved"], found["pixel_change_ratio"]) == (0.0, 1.0)
    assert (found["output_height"], found["output_width"]) == pytest.approx((2 / 30, 6 / 30))


def test_features_are_means_over_the_demonstrations() -> None:
    pairs = random_pairs(0)
    together = features(pairs, grid("1"))
    apart = [features([pair], grid("1")) for pair in pairs]
    for name in FEATURES[:9]:
        assert together[name] == pytest.approx(sum(one[name] for one in apart) / 3, abs=1e-6)


@pytest.mark.parametrize("shown", [0, 1, 2])
def test_hidden_demonstrations_and_other_episodes_do_not_count(shown) -> None:
    pairs, others, query = random_pairs(1), random_pairs(2), grid("10", "23")
    found = features(pairs, query, shown=shown)
    assert found == features(pairs[:shown] + others[shown:], query, shown=shown)
    if shown:
        assert found == pytest.approx(features(pairs[:shown], query))
    inputs, outputs = torch.randint(2, 12, (2, 5, 3, 6, 6), dtype=torch.uint8)
    mask = (torch.arange(3) < shown).expand(5, 3)
    together = compute_puzzle_features(inputs[:, 0], inputs, outputs, mask)
    alone = [
        compute_puzzle_features(i[None, 0], i[None], o[None], mask[:1]) for i, o in zip(inputs, outputs, strict=True)
    ]
    torch.testing.assert_close(together, torch.cat(alone))


def test_without_demonstrations_only_the_query_is_described() -> None:
    found = features(random_pairs(3), grid("10", "23", "44"), shown=0)
    sizes = {
        f"{side}_{name}": size / 30 for side in ("input", "output") for name, size in (("height", 3), ("width", 2))
    }
    assert {name: value for name, value in found.items() if value} == pytest.approx({"input_color_count": 0.5, **sizes})


@pytest.mark.parametrize("seed", range(6))
def test_features_are_at_most_one_on_any_canvas(seed) -> None:
    pairs = random_pairs(seed, count=4)
    if seed % 2:
        pairs = [(source, source.repeat(2, 0)[:, ::-1].copy()) for source, _ in pairs]
    query = pairs.pop()[0]
    found = features(pairs, query, side=31)
    assert all(-1 <= value <= 1 for value in found.values())
    assert found == pytest.approx(features(pairs, query, side=15), abs=1e-6)
