"""A curriculum that changes the mixture."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from models.arc import Puzzle, TrainingPool
from models.arc.curriculum import Curriculum, mix
from models.arc.losses import cell_loss, layout_loss

bounded = settings(deadline=None, derandomize=True, max_examples=50)
ratios = st.floats(0.0, 1.0)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def levels(count: int) -> Tensor:
    return torch.linspace(0, 1, count)


@bounded
@given(ratios, ratios, st.floats(0.5, 50.0))
def test_the_ratio_goes_from_start_to_end_in_a_straight_line(start: float, end: float, warmup: float) -> None:  # C84
    curriculum = Curriculum(start, end, warmup)
    assert curriculum.ratio(0) == start
    assert curriculum.ratio(warmup) == curriculum.ratio(warmup + 7.5) == end
    assert curriculum.ratio(warmup / 2) == pytest.approx((start + end) / 2)
    path = [curriculum.ratio(warmup * part / 10) for part in range(11)]
    steps = [(after - before) * (1 if end >= start else -1) for before, after in pairwise(path)]
    assert min(steps) >= -1e-12


def test_without_a_warmup_the_end_is_there_at_once() -> None:  # C84
    assert Curriculum(0.6, 0.3, 0).ratio(0) == 0.3


def test_an_epoch_says_all() -> None:  # C84: after a resume too
    curriculum = Curriculum(0.6, 0.3, 8)
    first = [curriculum.draw(levels(50), 40, epoch, generator(epoch)).tolist() for epoch in range(6)]
    resumed = [Curriculum(0.6, 0.3, 8).draw(levels(50), 40, epoch, generator(epoch)).tolist() for epoch in range(3, 6)]
    assert first[3:] == resumed


@bounded
@given(ratios, st.integers(1, 40), st.integers(1, 150), st.floats(0.0, 10.0))
def test_a_draw_has_as_many_as_asked_and_its_uniform_share(
    ratio: float, count: int, samples: int, epoch: float
) -> None:
    drawn = Curriculum(ratio, ratio, 5).draw(levels(count), samples, epoch, generator())
    assert drawn.shape == (samples,)
    assert drawn.dtype == torch.int64
    uniform = drawn[: samples - round(ratio * samples)]
    often = uniform.bincount(minlength=count)
    assert often.max() - often.min() <= 1
    assert 0 <= drawn.min() <= drawn.max() < count


@pytest.mark.parametrize("samples", [7, 30, 45])
def test_a_ratio_of_zero_draws_what_a_plan_draws(puzzles: list[Puzzle], samples: int) -> None:
    pool = TrainingPool(puzzles, [])
    (planned,) = pool.plan(samples, samples, generator(3))  # one batch: as drawn, but for the order
    drawn = Curriculum(0, 0, 5).draw(levels(len(pool)), samples, 2, generator(3))
    assert sorted(planned.tolist()) == sorted(drawn.tolist())


def test_the_window_moves_from_easy_to_hard() -> None:
    curriculum = Curriculum(1, 1, 4)
    means = [levels(200)[curriculum.draw(levels(200), 4000, epoch, generator())].mean().item() for epoch in range(6)]
    assert means[0] < 0.2
    assert means[2] == pytest.approx(0.5, abs=0.02)
    assert means[4] > 0.8
    assert all(before < after for before, after in pairwise(means[:5]))
    assert means[5] == means[4]


def test_easy_levels_never_vanish() -> None:
    curriculum = Curriculum(0.6, 0.6, 4)
    for epoch in (0, 2, 4, 20):
        drawn = levels(100)[curriculum.draw(levels(100), 1000, epoch, generator())]
        assert (drawn < 0.1).float().mean() > 0.03
        assert (drawn > 0.9).float().mean() > 0.03


def test_levels_that_are_all_far_from_the_window_are_drawn_all_the_same() -> None:
    drawn = Curriculum(1, 1, 4).draw(torch.zeros(10), 1000, 4, generator())
    assert drawn.bincount(minlength=10).min() > 50


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((-0.1, 0.3, 5), "start must be between 0 and 1, but got -0.1"),
        ((0.1, 1.3, 5), "end must be between 0 and 1, but got 1.3"),
        ((0.1, 0.3, -1), "warmup must be at least 0 epochs and finite, but got -1"),
        ((0.1, 0.3, math.nan), "warmup must be at least 0 epochs and finite, but got nan"),
    ],
)
def test_numbers_out_of_range_are_refused(given: tuple[float, float, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Curriculum(*given)


def test_another_ratio_is_another_direction() -> None:  # C83
    logits = torch.randn(2, 3, 5, 5, 12, generator=generator())
    target = torch.randint(12, (3, 5, 5), generator=generator(), dtype=torch.uint8)

    def direction(ratio: float, factor: float = 1.0) -> Tensor:
        leaf = logits.clone().requires_grad_()
        (factor * mix(ratio, cell_loss(leaf, target)[0], layout_loss(leaf, target))).backward()
        assert leaf.grad is not None
        return leaf.grad / leaf.grad.norm()

    assert torch.dot(direction(0.6).flatten(), direction(0.3).flatten()) < 0.999
    torch.testing.assert_close(direction(0.3, factor=2.0), direction(0.3))  # a factor alone is none


def test_the_ends_of_the_mixture_are_the_losses() -> None:
    cell, layout = torch.tensor(2.0), torch.tensor(5.0)
    assert [mix(ratio, cell, layout).item() for ratio in (0.0, 0.5, 1.0)] == [2.0, 3.5, 5.0]
