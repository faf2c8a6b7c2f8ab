"""Candidate prompts, ranked on demonstrations that are held out, and what they answer."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from models.arc import GridAgent, PromptPolicy, Puzzle, Solver, attempts, prepare
from models.arc.evaluation import Exam, candidate_weights
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
    blind = candidate_weights(solver, made, NOISE, 0.0, CPU)
    torch.testing.assert_close(blind, torch.full((6, 3), 1 / 3))


@torch.no_grad()
def test_where_nothing_can_be_held_out_candidates_count_alike(solver: Solver, puzzles: list[Puzzle]) -> None:
    short = [replace(puzzle, demonstrations=puzzle.demonstrations[:1]) for puzzle in puzzles]
    made = exam(short)
    assert made.rehearsals is None
    weights = candidate_weights(solver, made, NOISE, 16.0, CPU)
    torch.testing.assert_close(weights, torch.full((6, 3), 1 / 3))
