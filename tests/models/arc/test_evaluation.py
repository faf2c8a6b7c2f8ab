"""Candidate prompts, ranked on demonstrations that are held out, and what they answer."""

from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest
import torch

from models.arc import PAD, GridAgent, PromptPolicy, Puzzle, Solver, attempts, free_energy, prepare
from models.arc.evaluation import EVALUATION_BATCH, Exam, candidate_weights
from models.arc.prompt import FEATURES, PromptEncoder

CPU = torch.device("cpu")
DIM = 16
NOISE = torch.randn(3, DIM, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def solver() -> Solver:
    torch.manual_seed(0)
    policy = PromptPolicy(DIM, len(FEATURES), hidden=16, scale=5.0)
    agent = GridAgent(width=16, layers=1, prompt_dim=DIM)
    torch.nn.init.normal_(agent.refiner.prompt.weight)  # what a prompt changes is to be seen untrained
    return Solver(agent.eval(), PromptEncoder(8, dim=DIM), policy)


def exam(puzzles: list[Puzzle], held_out: int = 1) -> Exam:
    made = prepare(puzzles, 2, held_out)
    tests = sum(len(puzzle.tests) for puzzle in puzzles)
    held = 0 if made.rehearsals is None else len(made.rehearsals)
    return made._replace(test_text=torch.ones(tests, 8), rehearsal_text=torch.ones(held, 8))


def energies(solver: Solver, made: Exam, noise: torch.Tensor) -> torch.Tensor:
    """The mean expected free energy of each puzzle's rehearsals under a single candidate."""
    assert made.rehearsals is not None
    assert made.rehearsal_text is not None
    found: list[list[float]] = [[] for _ in made.puzzles]
    for indices in made.rehearsals.plan(EVALUATION_BATCH):
        batch = made.rehearsals.batch(indices)._replace(text=made.rehearsal_text[indices])
        log_probs = solver.candidates(batch, noise)[:, :, 0].log_softmax(-1)
        wanted = free_energy.preferences(batch.target)
        energy = free_energy.expected_free_energy(log_probs, wanted, batch.target != PAD)
        for puzzle, one in zip(made.rehearsed[indices].tolist(), energy.tolist(), strict=True):
            found[puzzle].append(one)
    return torch.tensor([fmean(each) for each in found])


@torch.no_grad()
def test_there_are_two_distinct_attempts_at_each_test(solver: Solver, puzzles: list[Puzzle]) -> None:
    found = attempts(solver, exam(puzzles), NOISE, 16.0, CPU)
    assert len(found) == 12
    assert all(not np.array_equal(first, second) for first, second in found)


@torch.no_grad()
def test_other_answers_change_no_attempt(solver: Solver, puzzles: list[Puzzle]) -> None:  # C89
    def other(puzzle: Puzzle) -> Puzzle:
        return replace(puzzle, tests=tuple((source, 9 - target) for source, target in puzzle.tests))

    asked = attempts(solver, exam(puzzles), NOISE, 16.0, CPU)
    again = attempts(solver, exam([other(puzzle) for puzzle in puzzles]), NOISE, 16.0, CPU)
    assert [[grid.tolist() for grid in pair] for pair in asked] == [[grid.tolist() for grid in pair] for pair in again]


@torch.no_grad()
def test_the_candidate_that_expects_the_held_out_answers_counts_most(solver: Solver, puzzles: list[Puzzle]) -> None:
    made = exam(puzzles, held_out=3)
    weights = candidate_weights(solver, made, NOISE, 16.0, CPU)
    assert weights.shape == (6, 3)
    torch.testing.assert_close(weights.sum(1), torch.ones(6))
    assert weights.std() > 0.01
    alone = torch.stack([energies(solver, made, NOISE[index : index + 1]) for index in range(3)], dim=1)
    torch.testing.assert_close(weights, (-16.0 * alone).softmax(1), rtol=1e-3, atol=1e-4)
    blind = candidate_weights(solver, made, NOISE, 0.0, CPU)
    torch.testing.assert_close(blind, torch.full((6, 3), 1 / 3))


@torch.no_grad()
def test_a_sharp_choice_leaves_each_puzzle_to_its_best_candidate(solver: Solver, puzzles: list[Puzzle]) -> None:
    made = exam(puzzles)
    best = candidate_weights(solver, made, NOISE, 1e6, CPU).argmax(1)
    assert len(best.unique()) > 1
    found = attempts(solver, made, NOISE, 1e6, CPU)
    alone = [attempts(solver, made, NOISE[index : index + 1], 1e6, CPU) for index in range(3)]
    for test, puzzle in enumerate(made.tests.owner.tolist()):
        np.testing.assert_array_equal(found[test][0], alone[best[puzzle]][test][0])


@torch.no_grad()
def test_where_nothing_can_be_held_out_candidates_count_alike(solver: Solver, puzzles: list[Puzzle]) -> None:
    short = [replace(puzzle, demonstrations=puzzle.demonstrations[:1]) for puzzle in puzzles]
    made = exam(short)
    assert made.rehearsals is None
    weights = candidate_weights(solver, made, NOISE, 16.0, CPU)
    torch.testing.assert_close(weights, torch.full((6, 3), 1 / 3))
