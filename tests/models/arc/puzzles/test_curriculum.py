"""The curriculum: which puzzles it draws, and its share over a run."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from searchlight.models.arc.puzzles import Curriculum

ratios = st.floats(0.0, 1.0)
bounded = settings(max_examples=50)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def spread_levels(count: int) -> torch.Tensor:
    return torch.linspace(0, 1, count)


@bounded
@given(ratios, st.integers(2, 20), ratios)
def test_share_falls_linearly_to_half(start, epochs, part):  # C84
    curriculum = Curriculum(start, epochs)
    assert curriculum.share(0) == start
    assert curriculum.share(epochs - 1) == curriculum.share(epochs + 7.5) == start / 2
    assert curriculum.share((epochs - 1) * part) == pytest.approx(start * (1 - part / 2), abs=1e-6)


@bounded
@given(ratios, st.integers(1, 40), st.integers(1, 150), st.floats(0.0, 10.0))
def test_draw_has_as_many_as_asked_and_its_uniform_share(start, count, samples, epoch):
    curriculum = Curriculum(start, 6)
    drawn = curriculum.draw(spread_levels(count), samples, epoch, generator())
    assert (drawn.shape, drawn.dtype) == ((samples,), torch.int64)
    often = drawn[: samples - round(curriculum.share(epoch) * samples)].bincount(minlength=count)
    assert often.max() - often.min() <= 1
    assert 0 <= drawn.min() <= drawn.max() < count


def test_easy_puzzles_are_drawn_most_at_first_and_hard_ones_last():
    curriculum, count, levels = Curriculum(0.9, 5), 20_000, spread_levels(200)
    drawn = [levels[curriculum.draw(levels, count, epoch, generator())] for epoch in range(5)]
    assert [round(part.mean().item(), 1) for part in drawn[::2]] == [0.2, 0.5, 0.7]
    assert min((part < 0.2).sum() for part in drawn) > 0.05 * count, "none disappears"
    far = curriculum.draw(torch.ones(10), 1000, 0, generator())  # from the window, all alike
    assert far.bincount(minlength=10).min() > 50


@pytest.mark.parametrize(("start", "epochs", "name"), [(1.5, 3, "start"), (-0.1, 3, "start"), (0.5, 0, "epochs")])
def test_number_out_of_range_is_refused(start, epochs, name):
    with pytest.raises(ValueError, match=f"{name} must be"):
        Curriculum(start, epochs)
