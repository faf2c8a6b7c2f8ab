import numpy as np
import pytest
import torch

from models.arc import PAD, Batch, GridAgent, Puzzle, TestEpisodes, TrainingPool, to_canvas, to_grid
from models.arc.attempts import all_attempts, read_views
from models.arc.metrics import tally


def with_other_answers(puzzles: list[Puzzle]) -> list[Puzzle]:
    """The same puzzles, with answers of other colours and another shape."""
    return [
        Puzzle(p.id, p.demonstrations, tuple((source, (9 - target.T[:1])) for source, target in p.tests))
        for p in puzzles
    ]


def all_batches(pool: TrainingPool, seed: int) -> list[Batch]:
    generator = torch.Generator().manual_seed(seed)
    return [pool.batch(indices, generator) for indices in pool.plan(len(pool), 4, generator)]


def same(one: list[Batch], other: list[Batch]) -> bool:
    return len(one) == len(other) and all(
        torch.equal(a, b) for x, y in zip(one, other, strict=True) for a, b in zip(x[:5], y[:5], strict=True)
    )


def test_an_epoch_follows_from_the_generator(puzzles: list[Puzzle]) -> None:
    pool = TrainingPool(puzzles[:3], puzzles[3:])
    assert same(all_batches(pool, 1), all_batches(pool, 1))
    assert not same(all_batches(pool, 1), all_batches(pool, 2))


def test_a_plan_draws_every_pair_before_any_twice(puzzles: list[Puzzle]) -> None:
    pool = TrainingPool(puzzles, [])
    assert len(pool) == 30
    plan = pool.plan(45, 8, torch.Generator().manual_seed(0))
    assert sorted(len(indices) for indices in plan) == [5, 8, 8, 8, 8, 8]
    counts = torch.cat(plan).bincount(minlength=30)
    assert set(counts.tolist()) == {1, 2}


def test_an_episode_shows_other_pairs_of_the_same_puzzle_changed_alike(puzzles: list[Puzzle]) -> None:
    # The grids are random, so a rule holds in an augmented episode only if its pairs belong together.
    enlarge = puzzles[3]
    pool = TrainingPool([enlarge], [], max_demos=3)
    batch = pool.batch(torch.arange(5), torch.Generator().manual_seed(3))
    assert batch.demo_mask.shape == (5, 3)
    assert batch.demo_mask.all()
    for episode in range(5):
        query = to_grid(batch.query[episode].numpy())
        shown = [to_grid(canvas.numpy()) for canvas in batch.demo_inputs[episode]]
        assert not any(np.array_equal(query, grid) for grid in shown)
        np.testing.assert_array_equal(to_grid(batch.target[episode].numpy()), query.repeat(2, 0).repeat(2, 1))
        for grid, answer in zip(shown, batch.demo_outputs[episode], strict=True):
            np.testing.assert_array_equal(to_grid(answer.numpy()), grid.repeat(2, 0).repeat(2, 1))


def test_unused_slots_are_wiped(puzzles: list[Puzzle]) -> None:
    short = Puzzle("short", puzzles[0].demonstrations[:2], puzzles[0].tests)
    pool = TrainingPool([], [short, puzzles[1]])
    batch = pool.batch(torch.arange(5), torch.Generator().manual_seed(0))
    assert sorted(batch.demo_mask.sum(1).tolist()) == [1, 1, 2, 2, 2]
    assert (batch.demo_inputs[~batch.demo_mask] == PAD).all()
    assert (batch.demo_outputs[~batch.demo_mask] == PAD).all()


def test_canvases_leave_room_for_an_edge_and_no_more(puzzles: list[Puzzle]) -> None:
    pool = TrainingPool(puzzles, [])
    generator = torch.Generator().manual_seed(0)
    for indices in pool.plan(len(pool), 5, generator):
        batch = pool.batch(indices, generator)
        assert batch.query.dtype == torch.uint8
        sides = [max(to_grid(canvas.numpy()).shape) for canvas in batch.target]
        assert batch.target.shape[-1] > max(sides)
        assert batch.target.shape[-1] <= 11


def test_no_answer_of_an_evaluation_puzzle_is_trained_on(puzzles: list[Puzzle]) -> None:
    honest = TrainingPool(puzzles[:2], puzzles[2:])
    other = TrainingPool(puzzles[:2], with_other_answers(puzzles[2:]))
    assert len(honest) == 2 * 5 + 4 * 3
    assert same(all_batches(honest, 0), all_batches(other, 0))


def test_other_answers_change_nothing_but_the_score(puzzles: list[Puzzle]) -> None:
    torch.manual_seed(0)
    agent = GridAgent(width=8, layers=1).eval()
    predictions, sums = [], []
    for tested in (puzzles, with_other_answers(puzzles)):
        episodes = TestEpisodes(tested, views=2)
        views = [None] * len(episodes)
        for indices in episodes.plan(5):
            batch = episodes.batch(indices)
            with torch.inference_mode():
                logits = agent(batch.query, batch.demo_inputs, batch.demo_outputs, batch.demo_mask)[-1]
            read = read_views(logits, episodes.symmetry[indices], episodes.tables[indices])
            for index, view in zip(indices.tolist(), read, strict=True):
                views[index] = view
        attempts = all_attempts(views, 2)
        predictions.append(attempts)
        sums.append(tally(tested, attempts))
    for one, other in zip(*predictions, strict=True):
        np.testing.assert_array_equal(one[0], other[0])
        np.testing.assert_array_equal(one[1], other[1])
    assert sums[0] != sums[1]


def test_views_of_a_test_differ_and_the_first_is_the_puzzle_as_it_is(puzzles: list[Puzzle]) -> None:
    episodes = TestEpisodes(puzzles, views=3, max_demos=2)
    assert len(episodes) == 12 * 3
    assert episodes.owner.tolist() == [number for number in range(6) for _ in range(2)]
    batch = episodes.batch(torch.arange(len(episodes)))
    side = batch.query.shape[-1]
    for test in range(12):
        puzzle = puzzles[test // 2]
        source, target = puzzle.tests[test % 2]
        np.testing.assert_array_equal(batch.query[3 * test].numpy(), to_canvas(source, side))
        np.testing.assert_array_equal(batch.target[3 * test].numpy(), to_canvas(target, side))
        np.testing.assert_array_equal(
            batch.demo_outputs[3 * test, 1].numpy(), to_canvas(puzzle.demonstrations[1][1], side)
        )
        assert not torch.equal(batch.query[3 * test], batch.query[3 * test + 1])


def test_an_answer_larger_than_foreseen_is_cut(puzzles: list[Puzzle]) -> None:
    grid = np.ones((2, 2), dtype=np.uint8)
    surprise = Puzzle("surprise", ((grid, grid), (grid, grid)), ((grid, np.ones((7, 7), dtype=np.uint8)),))
    batch = TestEpisodes([surprise], views=1).batch(torch.tensor([0]))
    assert batch.target.shape == (1, 3, 3)


def test_test_episodes_of_similar_size_are_planned_together(puzzles: list[Puzzle]) -> None:
    episodes = TestEpisodes(puzzles, views=2)
    plan = episodes.plan(7)
    assert sorted(torch.cat(plan).tolist()) == list(range(len(episodes)))
    sides = [episodes.batch(indices).query.shape[-1] for indices in plan]
    assert sides == sorted(sides)


def test_bad_arguments_are_refused(puzzles: list[Puzzle]) -> None:
    with pytest.raises(ValueError, match="must contain a puzzle with two pairs"):
        TrainingPool([], [])
    with pytest.raises(ValueError, match="max_demos must be at least 1, but got 0"):
        TrainingPool(puzzles, [], max_demos=0)
    with pytest.raises(ValueError, match="views must be at least 1, but got 0"):
        TestEpisodes(puzzles, views=0)
