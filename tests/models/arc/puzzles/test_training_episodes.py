"""Episodes of training and of tests, and the curriculum that chooses them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from searchlight.models.arc.puzzles import PAD, Curriculum, Puzzle, TestEpisodes, TrainingPool, read_grid
from searchlight.models.arc.puzzles.canvas import draw_canvas


def with_other_answers(puzzles: list[Puzzle]) -> list[Puzzle]:
    """The same puzzles, with answers of other colors and another shape."""
    return [replace(p, tests=tuple((source, 9 - target.T[:1]) for source, target in p.tests)) for p in puzzles]


def all_batches(pool: TrainingPool, seed: int) -> list[list]:
    generator = torch.Generator().manual_seed(seed)
    batches = [pool.build_batch(indices, generator) for indices in pool.plan(len(pool), 4, generator)]
    return [part.tolist() for batch in batches for part in batch[:5]]


def test_an_epoch_follows_from_its_generator_without_answers(puzzles: list[Puzzle]) -> None:
    pool = TrainingPool(puzzles[:2], puzzles[2:])
    assert len(pool) == 2 * 5 + 4 * 3
    assert all_batches(pool, 1) == all_batches(pool, 1)
    assert all_batches(pool, 1) != all_batches(pool, 2)
    other = TrainingPool(puzzles[:2], with_other_answers(puzzles[2:]))
    assert all_batches(pool, 1) == all_batches(other, 1)


def test_a_plan_draws_every_pair_on_canvases_with_an_edge(puzzles: list[Puzzle]) -> None:
    pool, generator = TrainingPool(puzzles, []), torch.Generator().manual_seed(0)
    assert len(pool) == 30
    plan = pool.plan(45, 8, generator)
    assert sorted(len(indices) for indices in plan) == [5, 8, 8, 8, 8, 8]
    assert set(torch.cat(plan).bincount(minlength=30).tolist()) == {1, 2}
    for indices in plan:
        batch = pool.build_batch(indices, generator)
        assert batch.query.dtype == torch.uint8
        assert max(max(read_grid(canvas.numpy()).shape) for canvas in batch.target) < batch.target.shape[-1] <= 11


def test_an_episode_shows_other_pairs_of_its_puzzle(puzzles: list[Puzzle]) -> None:
    # The grids are random, so a rule holds in an augmented episode only if its pairs belong together.
    def enlarged(canvas: torch.Tensor, answer: torch.Tensor) -> np.ndarray:
        grid = read_grid(canvas.numpy())
        np.testing.assert_array_equal(read_grid(answer.numpy()), grid.repeat(2, 0).repeat(2, 1))
        return grid

    batch = TrainingPool([puzzles[3]], [], max_demos=3).build_batch(torch.arange(5), torch.Generator().manual_seed(3))
    assert batch.demo_mask.shape == (5, 3)
    assert batch.demo_mask.all()
    for query, target, inputs, outputs in zip(*batch[:4], strict=True):
        asked = enlarged(query, target)
        assert not any(np.array_equal(asked, enlarged(*pair)) for pair in zip(inputs, outputs, strict=True))


def test_unused_slots_are_wiped(puzzles: list[Puzzle]) -> None:
    short = Puzzle("short", puzzles[0].demonstrations[:2], puzzles[0].tests)
    pool = TrainingPool([], [short, puzzles[1]])
    batch = pool.build_batch(torch.arange(5), torch.Generator().manual_seed(0))
    assert sorted(batch.demo_mask.sum(1).tolist()) == [1, 1, 2, 2, 2]
    assert (batch.demo_inputs[~batch.demo_mask] == PAD).all()
    assert (batch.demo_outputs[~batch.demo_mask] == PAD).all()


def test_views_of_a_test_differ_and_the_first_is_unchanged(puzzles: list[Puzzle]) -> None:
    episodes = TestEpisodes(puzzles, views=3, max_demos=2)
    assert len(episodes) == 12 * 3
    assert episodes.owner.tolist() == [number for number in range(6) for _ in range(2)]
    batch = episodes.build_batch(torch.arange(len(episodes)))
    side = batch.query.shape[-1]
    for test in range(12):
        puzzle = puzzles[test // 2]
        expected = [*puzzle.tests[test % 2], puzzle.demonstrations[1][1]]
        found = [batch.query[3 * test], batch.target[3 * test], batch.demo_outputs[3 * test, 1]]
        for canvas, grid in zip(found, expected, strict=True):
            np.testing.assert_array_equal(canvas.numpy(), draw_canvas(grid, side))
        assert not torch.equal(batch.query[3 * test], batch.query[3 * test + 1])


def test_test_episodes_of_similar_size_are_planned_together(puzzles: list[Puzzle]) -> None:
    episodes = TestEpisodes(puzzles, views=2)
    plan = episodes.plan(7)
    assert sorted(torch.cat(plan).tolist()) == list(range(len(episodes)))
    sides = [episodes.build_batch(indices).query.shape[-1] for indices in plan]
    assert sides == sorted(sides)
    grid = np.ones((2, 2), dtype=np.uint8)
    surprise = Puzzle("surprise", ((grid, grid), (grid, grid)), ((grid, np.ones((7, 7), dtype=np.uint8)),))
    assert TestEpisodes([surprise], views=1).build_batch(torch.tensor([0])).target.shape == (1, 3, 3)  # cut off


bounded = settings(max_examples=50)
ratios = st.floats(0.0, 1.0)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def spread_levels(count: int) -> Tensor:
    return torch.linspace(0, 1, count)


@bounded
@given(ratios, st.integers(2, 50), st.floats(0.0, 1.0))
def test_share_of_the_window_falls_to_none_over_the_run(start, epochs, part) -> None:
    curriculum = Curriculum(start, epochs)
    assert curriculum.share(0) == start
    assert curriculum.share(epochs - 1) == curriculum.share(epochs + 7.5) == 0
    assert curriculum.share((epochs - 1) * part) == pytest.approx(start * (1 - part), abs=1e-6)
    assert Curriculum(start, 1).share(0) == 0


@bounded
@given(ratios, st.integers(1, 40), st.integers(1, 150), st.floats(0.0, 10.0))
def test_a_draw_has_as_many_as_asked_and_its_uniform_share(start, count, samples, epoch) -> None:
    curriculum = Curriculum(start, 6)
    drawn = curriculum.draw(spread_levels(count), samples, epoch, generator())
    assert (drawn.shape, drawn.dtype) == ((samples,), torch.int64)
    often = drawn[: samples - round(curriculum.share(epoch) * samples)].bincount(minlength=count)
    assert often.max() - often.min() <= 1
    assert 0 <= drawn.min() <= drawn.max() < count


def test_easy_puzzles_are_the_most_first_and_as_many_as_others_last() -> None:
    curriculum, count = Curriculum(0.9, 5), 20_000
    drawn = [spread_levels(200)[curriculum.draw(spread_levels(200), count, epoch, generator())] for epoch in range(5)]
    easy = [(part < 0.2).float().mean().item() for part in drawn]
    assert easy[0] > 0.5
    assert easy == sorted(easy[:3], reverse=True) + easy[3:], "fewer of them, until the window has left them"
    assert easy[4] == pytest.approx(0.2, abs=0.01)
    assert drawn[2].mean().item() == pytest.approx(0.5, abs=0.02)
    far = curriculum.draw(torch.ones(10), 1000, 0, generator())  # from the window, all alike
    assert far.bincount(minlength=10).min() > 50


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((-0.1, 3), "start must be between 0 and 1, but got -0.1"),
        ((1.3, 3), "start must be between 0 and 1, but got 1.3"),
        ((0.1, 0), "epochs must be at least 1, but got 0"),
    ],
)
def test_numbers_out_of_range_are_refused(given: tuple[float, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Curriculum(*given)
