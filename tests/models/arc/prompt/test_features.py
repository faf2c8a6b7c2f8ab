import math

import numpy as np
import pytest
import torch

from models.arc.canvas import to_canvases
from models.arc.prompt import FEATURES, puzzle_features


def features(demonstrations, query, side=9, shown=None) -> dict[str, float]:
    """The features of one episode; `shown` is how many of the demonstrations are used."""
    inputs = to_canvases([source for source, _ in demonstrations], side)
    outputs = to_canvases([target for _, target in demonstrations], side)
    mask = torch.arange(len(demonstrations)) < (len(demonstrations) if shown is None else shown)
    found = puzzle_features(to_canvases([query], side), inputs[None], outputs[None], mask[None])
    assert found.shape == (1, 15)
    assert found.dtype == torch.float32
    return dict(zip(FEATURES, found[0].tolist(), strict=True))


def grid(*rows: str) -> np.ndarray:
    return np.array([[int(cell) for cell in row] for row in rows], dtype=np.uint8)


def random_pairs(seed: int, count: int = 3):
    random = np.random.default_rng(seed)
    shapes = random.integers(1, 8, size=(count, 2, 2))
    return [tuple(random.integers(0, 10, size=shape, dtype=np.uint8) for shape in pair) for pair in shapes]


def test_a_recoloured_puzzle_is_described_number_by_number() -> None:
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


def test_areas_are_compared_and_the_size_of_the_answer_is_guessed() -> None:
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
def test_demonstrations_that_are_not_shown_have_no_influence(shown) -> None:
    pairs, others = random_pairs(1), random_pairs(2)
    query = grid("10", "23")
    assert features(pairs, query, shown=shown) == features(pairs[:shown] + others[shown:], query, shown=shown)
    if shown:
        assert features(pairs, query, shown=shown) == pytest.approx(features(pairs[:shown], query))


def test_without_demonstrations_only_the_query_speaks() -> None:
    found = features(random_pairs(3), grid("10", "23", "44"), shown=0)
    spoken = {name: value for name, value in found.items() if value}
    assert spoken == pytest.approx(
        {
            "input_color_count": 5 / 10,
            "input_height": 3 / 30,
            "input_width": 2 / 30,
            "output_height": 3 / 30,
            "output_width": 2 / 30,
        }
    )


@pytest.mark.parametrize("seed", range(20))
def test_features_lie_in_minus_one_to_one_and_do_not_depend_on_the_canvas(seed) -> None:
    pairs = random_pairs(seed, count=4)
    pairs = [
        (source, source.repeat(2, 0)[:, ::-1].copy()) if seed % 2 else (source, target) for source, target in pairs
    ]
    query = pairs.pop()[0]
    found = features(pairs, query, side=31)
    assert all(-1 <= value <= 1 for value in found.values())
    assert found == pytest.approx(features(pairs, query, side=15), abs=1e-6)


def test_episodes_of_a_batch_do_not_mix() -> None:
    random = torch.Generator().manual_seed(0)
    inputs, outputs = torch.randint(2, 12, (2, 5, 3, 6, 6), generator=random, dtype=torch.uint8)
    mask = torch.rand(5, 3, generator=random) < 0.7
    together = puzzle_features(inputs[:, 0], inputs, outputs, mask)
    for index in range(5):
        one = slice(index, index + 1)
        torch.testing.assert_close(together[one], puzzle_features(inputs[one, 0], inputs[one], outputs[one], mask[one]))
