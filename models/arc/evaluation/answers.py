"""The evaluation: candidates, weighted by held-out demonstrations, vote in several views for two attempts per test."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from searchlight.models.arc.agent import free_energy
from searchlight.models.arc.evaluation.attempts import View, choose_all_attempts, read_views
from searchlight.models.arc.puzzles import PAD, Grid, Puzzle, TestEpisodes, hold_out_demonstrations
from searchlight.models.arc.solver import Solver

EVALUATION_BATCH = 16  # larger ones leave the cache of a CPU and are slower
TEST_DEMOS = 4


class EvaluationSet(NamedTuple):
    """The tests of puzzles, and the held-out demonstrations of the same puzzles, the rehearsals.

    Attributes:
        puzzles: The puzzles.
        tests: The tests, each in several views.
        rehearsals: The held-out demonstrations, or None if no puzzle has one to hold out.
        rehearsed: The index of each rehearsal's puzzle, int64.
        test_text: The text input of the prompt encoder for each test, one row per test.
        rehearsal_text: The same for each rehearsal, one row per rehearsal.
    """

    puzzles: Sequence[Puzzle]
    tests: TestEpisodes
    rehearsals: TestEpisodes | None
    rehearsed: Tensor
    test_text: Tensor | None = None
    rehearsal_text: Tensor | None = None


def prepare_evaluation(puzzles: Sequence[Puzzle], views: int, held_out: int) -> EvaluationSet:
    """Return an exam with `views` views of each test, and up to `held_out` rehearsals of each puzzle."""
    held = [
        (number, part) for number, puzzle in enumerate(puzzles) for part in hold_out_demonstrations(puzzle, held_out)
    ]
    return EvaluationSet(
        puzzles,
        TestEpisodes(puzzles, views=views, max_demos=TEST_DEMOS),
        TestEpisodes([part for _, part in held], views=1, max_demos=TEST_DEMOS) if held else None,
        torch.tensor([number for number, _ in held], dtype=torch.int64),
    )


class Answers(NamedTuple):
    """The answers of a solver to an exam.

    Attributes:
        attempts: Two ranked grids for each test.
        tests: The likelihood of the right answer of each test, float32 in 0..1 of shape (tests,). It is the geometric
            mean of the probability of the right symbols of the grid and its edge, over cells, views and candidates.
        rehearsals: The same likelihood of each rehearsal, shape (rehearsals,).
    """

    attempts: list[tuple[Grid, Grid]]
    tests: Tensor
    rehearsals: Tensor


def answer_tests(
    solver: Solver, evaluation_set: EvaluationSet, noise: Tensor, precision: float, device: torch.device
) -> Answers:
    """Answer each test.

    Each view of a test is answered under each candidate. Each answer votes with the weight of its candidate in the
    puzzle. The attempts do not depend on the right answers.

    Args:
        solver: The solver, in evaluation mode and without autograd.
        exam: The exam.
        noise: The noise of the K candidates, see `Solver.candidates`.
        precision: The precision of the weights, see `weigh_candidates`.
        device: The device of the solver.
    """
    chosen, rehearsed = weigh_candidates(solver, evaluation_set, noise, precision, device)
    tests, count = evaluation_set.tests, chosen.shape[1]
    views: dict[int, list[View]] = {}
    likelihood = torch.zeros(len(tests.owner))

    for indices in tests.plan(EVALUATION_BATCH):
        asked = indices // tests.views
        text = None if evaluation_set.test_text is None else evaluation_set.test_text[asked]
        batch = tests.build_batch(indices)._replace(text=text).to(device)
        logits = solver.answer_candidates(batch, noise)[-1]
        weights = chosen[tests.owner[asked]]
        turned, renamed = (part[indices].repeat_interleave(count, 0) for part in (tests.symmetry, tests.tables))
        read = read_views(logits.flatten(0, 1), turned, renamed, weights.flatten())
        views |= {index: read[place * count :][:count] for place, index in enumerate(indices.tolist())}
        found = (compute_log_likelihood(logits, batch.target).cpu() * weights).sum(1) / tests.views
        likelihood.index_add_(0, asked, found)

    likelihood = likelihood.exp() * tests.fits
    return Answers(
        choose_all_attempts([view for index in sorted(views) for view in views[index]], tests.views * count),
        likelihood,
        rehearsed,
    )


def weigh_candidates(
    solver: Solver, evaluation_set: EvaluationSet, noise: Tensor, precision: float, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Compute the weights of the candidates of each puzzle, softmax(-precision * G).

    G is the expected free energy in the puzzle's rehearsals. The held-out outputs are the preferred outcomes, and the
    refinement steps are the hidden states. Without rehearsals, all candidates of a puzzle have equal weights.

    Args:
        solver: The solver, in evaluation mode and without autograd.
        exam: The exam.
        noise: The noise of the K candidates, see `Solver.candidates`.
        precision: The factor of G. A larger one gives more weight to the best candidate.
        device: The device of the solver.

    Returns:
        The weights, float32 of shape (puzzles, K) with rows that sum to 1, where K is 1 without a policy. And the
        likelihood of each rehearsal's answer with equal weights, shape (rehearsals,).
    """
    count = 1 if solver.policy is None else len(noise)
    energy = torch.zeros(len(evaluation_set.puzzles), count)
    if evaluation_set.rehearsals is None:
        return energy.softmax(1), torch.zeros(0)
    likelihood = torch.zeros(len(evaluation_set.rehearsals))
    number = torch.bincount(evaluation_set.rehearsed, minlength=len(energy)).clamp(min=1)
    for indices in evaluation_set.rehearsals.plan(EVALUATION_BATCH):
        text = None if evaluation_set.rehearsal_text is None else evaluation_set.rehearsal_text[indices]
        batch = evaluation_set.rehearsals.build_batch(indices)._replace(text=text).to(device)
        logits = solver.answer_candidates(batch, noise)
        likelihood[indices] = compute_log_likelihood(logits[-1], batch.target).mean(1).cpu()
        target = batch.target.repeat_interleave(count, 0)
        preferred = free_energy.compute_preferences(target)
        # The grid and its edge alone: how much lies outside depends on what else is in the batch.
        found = free_energy.compute_expected_free_energy(logits.flatten(1, 2).log_softmax(-1), preferred, target != PAD)
        energy.index_add_(0, evaluation_set.rehearsed[indices], found.view(-1, count).float().cpu())
    return free_energy.compute_posterior(
        energy / number[:, None], precision
    ), likelihood.exp() * evaluation_set.rehearsals.fits


def compute_log_likelihood(logits: Tensor, target: Tensor) -> Tensor:
    """Compute the mean log-probability of the right symbols of a grid and its edge.

    Args:
        logits: The logits of the last refinement step, shape (B, K, S, S, 12).
        target: The right symbols, shape (B, S, S).

    Returns:
        The means over cells, float32 of shape (B, K).
    """
    shown = (target != PAD)[:, None]
    index = target.long()[:, None, ..., None].expand(*logits.shape[:-1], 1)
    right = logits.float().log_softmax(-1).gather(-1, index)[..., 0] * shown
    return right.sum((-2, -1)) / shown.sum((-2, -1))
