"""Views, candidate prompts and what they answer."""

from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from searchlight.models.arc.agent import PROPOSALS, GridAgent, free_energy
from searchlight.models.arc.evaluation import EvaluationSet, answer_tests, prepare_evaluation
from searchlight.models.arc.evaluation.answers import EVALUATION_BATCH, compute_log_likelihood, weigh_candidates
from searchlight.models.arc.evaluation.attempts import View, choose_all_attempts, choose_attempts, read_views
from searchlight.models.arc.policy import PromptPolicy
from searchlight.models.arc.prompt import FEATURES, PromptEncoder
from searchlight.models.arc.puzzles import FIRST_COLOR, PAD, SYMBOLS, Puzzle
from searchlight.models.arc.puzzles.canvas import draw_canvas
from searchlight.models.arc.solver import Solver
from tests.models.arc.grids import Augmentation


def view(rows: list[list[int]], certainty: float = 0.9, second: int = 0) -> View:
    """A view that gives its colors `certainty`, and the color `second` most of the rest."""
    grid = np.array(rows, dtype=np.uint8)
    shares = np.full((*grid.shape, 10), (1 - certainty) / 100)
    shares[..., second] = (1 - certainty) * 0.9
    np.put_along_axis(shares, grid[..., None].astype(int), certainty, axis=-1)
    return View(grid, np.log(shares).astype(np.float32))


@pytest.mark.parametrize("symmetry", range(8))
def test_reading_a_view_undoes_its_augmentation(symmetry: int) -> None:
    grid = np.array([[1, 2, 3], [4, 5, 6]], dtype=np.uint8)
    augmentation = Augmentation(symmetry, (0, 3, 1, 2, 9, 8, 7, 6, 5, 4))
    canvas = torch.from_numpy(draw_canvas(augmentation.grid(grid), 5))[None]
    logits = 8 * torch.nn.functional.one_hot(canvas.long(), SYMBOLS).float()
    table = torch.arange(SYMBOLS, dtype=torch.uint8)
    table[FIRST_COLOR:] = torch.tensor(augmentation.colors, dtype=torch.uint8) + FIRST_COLOR
    (read,) = read_views(logits, torch.tensor([symmetry]), table[None])
    np.testing.assert_array_equal(read.grid, grid)
    assert read.log_probs.shape == (2, 3, 10)
    np.testing.assert_allclose(np.exp(read.log_probs).sum(-1), 1, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_log_probabilities_are_computed_in_float32(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    logits = (20 * torch.randn(1, 5, 5, SYMBOLS)).to(dtype)
    table = torch.arange(SYMBOLS, dtype=torch.uint8)[None]
    with torch.autocast("cpu", dtype=dtype):
        (half,) = read_views(logits, torch.tensor([0]), table)
    (full,) = read_views(logits.float(), torch.tensor([0]), table)
    assert half.log_probs.dtype == np.float32
    np.testing.assert_array_equal(half.log_probs, full.log_probs)


@pytest.mark.parametrize(
    ("views", "expected"),
    [
        ([view([[1, 1]], 0.99), view([[2, 2, 2]], 0.6), view([[2, 2, 2]], 0.6)], ([[2, 2, 2]], [[1, 1]])),
        ([view([[1, 1, 4]], 0.9), view([[1, 5, 1]], 0.8), view([[6, 1, 1]], 0.7)], ([[1, 1, 1]], [[1, 1, 4]])),
        # The first of the sizes, which occur once each.
        ([view([[1], [1]], 0.6), view([[2, 2]], 0.7), view([[3, 3, 3]], 0.9)], ([[1], [1]], [[3, 3, 3]])),
        ([View(np.zeros((2, 2), np.uint8), np.full((2, 2, 10), np.log(0.1)))], ([[0, 0], [0, 0]], [[1, 0], [0, 0]])),
    ],
    ids=["most votes", "mean of cells", "confidence", "equal probabilities"],
)
def test_attempts_are_ranked_by_votes_then_by_confidence(views: list[View], expected: tuple) -> None:
    assert tuple(grid.tolist() for grid in choose_attempts(views)) == expected


@pytest.mark.parametrize("rounded", [1 / 3 - 1e-8, 1 / 3 + 1e-8])
def test_three_equal_answers_to_a_view_have_one_vote(rounded: float) -> None:
    views = [view([[1, 1, 4]], 0.9), view([[1, 5, 1]], 0.8), view([[6, 1, 1]], 0.7)]
    thrice = [replace(one, weight=rounded) for one in views for _ in range(3)]
    assert [grid.tolist() for grid in choose_attempts(thrice)] == [grid.tolist() for grid in choose_attempts(views)]


def test_unanimous_views_vary_the_least_certain_cell() -> None:
    unsure = view([[1, 2, 3]], 0.9, second=7)
    unsure.log_probs[0, 1] = np.log(np.full(10, 0.01))
    unsure.log_probs[0, 1, 2], unsure.log_probs[0, 1, 8] = np.log(0.5), np.log(0.4)
    first, second = choose_attempts([unsure, unsure])
    assert first.tolist() == [[1, 2, 3]]
    assert second.tolist() == [[1, 8, 3]]


@settings(max_examples=30)
@given(st.integers(0, 1000), st.integers(1, 4))
def test_attempts_are_distinct_whatever_the_views(seed: int, count: int) -> None:
    random, views = np.random.default_rng(seed), []
    for _ in range(count):
        log_probs = np.log(random.dirichlet(np.ones(10) * 0.2, size=tuple(random.integers(1, 3, size=2))))
        views.append(View(log_probs.argmax(-1).astype(np.uint8), log_probs.astype(np.float32)))
    assert not np.array_equal(*choose_attempts(views))


def test_logits_that_are_not_finite_can_be_read() -> None:
    logits = torch.full((2, 5, 5, SYMBOLS), torch.nan)
    tables = torch.arange(SYMBOLS, dtype=torch.uint8).expand(2, -1)
    for attempt in choose_attempts(read_views(logits, torch.tensor([0, 3]), tables)):
        assert attempt.size >= 1
        assert attempt.max() <= 9


def test_views_are_grouped_by_test() -> None:
    attempts = choose_all_attempts([view([[1]]), view([[1]]), view([[2]]), view([[2]])], per_test=2)
    assert [first.tolist() for first, _ in attempts] == [[[1]], [[2]]]


CPU = torch.device("cpu")
DIM = 16
NOISE = torch.randn(3, PROPOSALS, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def solver() -> Solver:
    torch.manual_seed(0)
    policy = PromptPolicy(DIM, len(FEATURES) + PROPOSALS, PROPOSALS, hidden=16, scale=20.0, initial_sigma=1.5)
    agent = GridAgent(width=16, layers=1, prompt_dim=DIM)
    return Solver(agent.eval(), PromptEncoder(8, dim=DIM), policy)


def evaluation_set(puzzles: list[Puzzle], held_out: int = 1) -> EvaluationSet:
    made = prepare_evaluation(puzzles, 2, held_out)
    tests = sum(len(puzzle.tests) for puzzle in puzzles)
    held = 0 if made.rehearsals is None else len(made.rehearsals)
    return made._replace(test_text=torch.ones(tests, 8), rehearsal_text=torch.ones(held, 8))


def energies(solver: Solver, made: EvaluationSet, noise: torch.Tensor) -> torch.Tensor:
    """The mean expected free energy of each puzzle's rehearsals under a single candidate."""
    found: list[list[float]] = [[] for _ in made.puzzles]
    for indices in made.rehearsals.plan(EVALUATION_BATCH):
        batch = made.rehearsals.build_batch(indices)._replace(text=made.rehearsal_text[indices])
        log_probs = solver.answer_candidates(batch, noise)[:, :, 0].log_softmax(-1)
        wanted = free_energy.compute_preferences(batch.target)
        energy = free_energy.compute_expected_free_energy(log_probs, wanted, batch.target != PAD)
        for puzzle, one in zip(made.rehearsed[indices].tolist(), energy.tolist(), strict=True):
            found[puzzle].append(one)
    return torch.tensor([fmean(each) for each in found])


@torch.no_grad()
def test_attempts_are_two_and_do_not_depend_on_the_answers(solver: Solver, puzzles: list[Puzzle]) -> None:
    other = [
        replace(puzzle, tests=tuple((source, 9 - target) for source, target in puzzle.tests)) for puzzle in puzzles
    ]
    asked, again = (
        answer_tests(solver, evaluation_set(given), NOISE, 16.0, CPU).attempts for given in (puzzles, other)
    )
    assert len(asked) == 12
    assert all(not np.array_equal(first, second) for first, second in asked)
    assert [[grid.tolist() for grid in pair] for pair in asked] == [[grid.tolist() for grid in pair] for pair in again]


@torch.no_grad()
def test_candidates_count_by_their_energy_on_held_out_pairs(solver: Solver, puzzles: list[Puzzle]) -> None:
    made = evaluation_set(puzzles, held_out=3)
    weights = weigh_candidates(solver, made, NOISE, 16.0, CPU)[0]
    assert weights.std() > 0.01
    alone = torch.stack([energies(solver, made, NOISE[index : index + 1]) for index in range(3)], dim=1)
    torch.testing.assert_close(weights, (-16.0 * alone).softmax(1), rtol=1e-3, atol=1e-4)
    alike = torch.full((6, 3), 1 / 3)
    torch.testing.assert_close(weigh_candidates(solver, made, NOISE, 0.0, CPU)[0], alike)
    short = evaluation_set([replace(puzzle, demonstrations=puzzle.demonstrations[:1]) for puzzle in puzzles])
    assert short.rehearsals is None
    torch.testing.assert_close(weigh_candidates(solver, short, NOISE, 16.0, CPU)[0], alike)


@torch.no_grad()
def test_a_sharp_choice_takes_the_best_candidate(solver: Solver, puzzles: list[Puzzle]) -> None:
    made = evaluation_set(puzzles)
    best = weigh_candidates(solver, made, NOISE, 1e6, CPU)[0].argmax(1)
    assert len(best.unique()) > 1
    found = answer_tests(solver, made, NOISE, 1e6, CPU).attempts
    alone = [answer_tests(solver, made, NOISE[index : index + 1], 1e6, CPU).attempts for index in range(3)]
    for test, puzzle in enumerate(made.tests.owner.tolist()):
        np.testing.assert_array_equal(found[test][0], alone[best[puzzle]][test][0])


def test_likelihood_is_the_mean_over_the_grid_and_its_edge() -> None:
    target = torch.from_numpy(draw_canvas(np.array([[1, 2]], dtype=np.uint8), 4))[None]
    right = torch.nn.functional.one_hot(target.long(), SYMBOLS).float()
    shares = 0.7 * right + 0.3 * (1 - right) / (SYMBOLS - 1)
    shares[target == PAD] = 1 / SYMBOLS  # as unsure as can be of what is outside
    found = compute_log_likelihood(shares.log()[:, None], target)
    torch.testing.assert_close(found, torch.tensor([[0.7]]).log())


@torch.no_grad()
def test_answer_that_the_canvas_cannot_hold_has_no_likelihood(solver: Solver) -> None:
    grid, large = np.ones((2, 2), dtype=np.uint8), np.ones((7, 7), dtype=np.uint8)
    surprise = Puzzle("surprise", ((grid, grid), (grid, grid)), ((grid, large), (grid, grid)))
    found = answer_tests(solver, evaluation_set([surprise]), NOISE, 16.0, CPU)
    assert found.tests[0] == 0
    assert 0 < found.tests[1] <= 1
    assert found.rehearsals.shape == (1,)
