"""From tests to two attempts at each: candidate prompts, ranked on held-out demonstrations, vote in several views."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from models.arc import free_energy
from models.arc.attempts import View, all_attempts, read_views
from models.arc.canvas import PAD
from models.arc.episodes import TestEpisodes, rehearsals
from models.arc.puzzles import Grid, Puzzle
from models.arc.solver import Solver

EVALUATION_BATCH = 16  # larger ones leave the cache of a CPU and are slower
TEST_DEMOS = 4


class Exam(NamedTuple):
    """What is asked of a solver: the tests of puzzles, and before them demonstrations that are held out.

    Attributes:
        puzzles: Whose tests these are.
        tests: In several views each.
        rehearsals: Of the same puzzles; None where there is none to hold out.
        rehearsed: Index of each rehearsal's puzzle, int64.
        test_text: What a language model has to say of each test, a row per test.
        rehearsal_text: A row per rehearsal.
    """

    puzzles: Sequence[Puzzle]
    tests: TestEpisodes
    rehearsals: TestEpisodes | None
    rehearsed: Tensor
    test_text: Tensor | None = None
    rehearsal_text: Tensor | None = None


def prepare(puzzles: Sequence[Puzzle], views: int, held_out: int) -> Exam:
    """An exam in `views` views of each test, with up to `held_out` demonstrations of each puzzle to rehearse on."""
    held = [(number, part) for number, puzzle in enumerate(puzzles) for part in rehearsals(puzzle, held_out)]
    return Exam(
        puzzles,
        TestEpisodes(puzzles, views=views, max_demos=TEST_DEMOS),
        TestEpisodes([part for _, part in held], views=1, max_demos=TEST_DEMOS) if held else None,
        torch.tensor([number for number, _ in held], dtype=torch.int64),
    )


def attempts(
    solver: Solver, exam: Exam, noise: Tensor, precision: float, device: torch.device
) -> list[tuple[Grid, Grid]]:
    """Two ranked attempts at each test.

    Every view of a test is answered under each candidate prompt, and votes with the weight that the candidate has in
    its puzzle.

    Args:
        solver: In evaluation mode, without autograd.
        exam: To sit.
        noise: Of the K candidate prompts, see `Solver.candidates`.
        precision: Of their choice, see `candidate_weights`.
        device: Of the solver.
    """
    chosen = candidate_weights(solver, exam, noise, precision, device)
    tests, count = exam.tests, chosen.shape[1]
    views: dict[int, list[View]] = {}
    for indices in tests.plan(EVALUATION_BATCH):
        text = None if exam.test_text is None else exam.test_text[indices // tests.views]
        batch = tests.batch(indices)._replace(text=text).to(device)
        logits = solver.candidates(batch, noise)[-1].flatten(0, 1)
        weights = chosen[tests.owner[indices // tests.views]].flatten()
        turned, renamed = (part[indices].repeat_interleave(count, 0) for part in (tests.symmetry, tests.tables))
        read = read_views(logits, turned, renamed, weights)
        views |= {index: read[place * count :][:count] for place, index in enumerate(indices.tolist())}
    return all_attempts([view for index in sorted(views) for view in views[index]], tests.views * count)


def candidate_weights(solver: Solver, exam: Exam, noise: Tensor, precision: float, device: torch.device) -> Tensor:
    """What each candidate prompt counts in each puzzle: softmax(-precision * G), G its expected free energy.

    G is that of the puzzle's rehearsals, with the held-out outputs as what is preferred, and the refinement steps as
    hidden states. All candidates count alike where nothing could be held out.

    Returns:
        float32 of shape (puzzles, K), rows that sum to 1; K is 1 without a policy.
    """
    count = 1 if solver.policy is None else len(noise)
    energy = torch.zeros(len(exam.puzzles), count)
    if exam.rehearsals is None or count == 1:
        return energy.softmax(1)
    number = torch.bincount(exam.rehearsed, minlength=len(energy)).clamp(min=1)
    for indices in exam.rehearsals.plan(EVALUATION_BATCH):
        text = None if exam.rehearsal_text is None else exam.rehearsal_text[indices]
        batch = exam.rehearsals.batch(indices)._replace(text=text).to(device)
        logits = solver.candidates(batch, noise)
        target = batch.target.repeat_interleave(count, 0)
        preferred = free_energy.preferences(target)
        # The grid and its edge alone: how much lies outside depends on what else is in the batch.
        found = free_energy.expected_free_energy(logits.flatten(1, 2).log_softmax(-1), preferred, target != PAD)
        energy.index_add_(0, exam.rehearsed[indices], found.view(-1, count).float().cpu())
    return free_energy.posterior(energy / number[:, None], precision)
