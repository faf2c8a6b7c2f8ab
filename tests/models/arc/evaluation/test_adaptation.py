"""Gradient steps on a puzzle's demonstrations, before its tests are answered."""

import dataclasses

import pytest
import torch

from searchlight.models.arc.agent import GridAgent
from searchlight.models.arc.evaluation import Adaptation, answer_tests, build_demonstration_pools, prepare_evaluation
from searchlight.models.arc.prompt import PromptEncoder
from searchlight.models.arc.puzzles import Puzzle
from searchlight.models.arc.solver import Solver, Weights

WEIGHTS = Weights(size=0.2, ambiguity=0.0, consistency=0.1, pathwise=0.0, information=0.0, entropy=0.0, kl=0.0)
CPU = torch.device("cpu")


@pytest.fixture
def solver() -> Solver:
    torch.manual_seed(0)
    solver = Solver(GridAgent(width=8, layers=1, prompt_dim=4), PromptEncoder(8, dim=4), None)
    solver.agent.eval()
    return solver


def adaptation_to(puzzles: list[Puzzle], steps: int = 4) -> Adaptation:
    pools = build_demonstration_pools(puzzles, 3)
    texts = [None if pool is None else torch.ones(len(pool), 8) for pool in pools]
    return Adaptation(pools, texts, steps, 1e-2, 0.5, WEIGHTS)


@torch.no_grad()
def answer(solver: Solver, puzzles: list[Puzzle], adaptation: Adaptation | None):
    evaluation_set = prepare_evaluation(puzzles, 1, 1)
    evaluation_set = evaluation_set._replace(
        test_text=torch.ones(len(evaluation_set.tests.owner), 8), rehearsal_text=torch.ones(len(puzzles), 8)
    )
    return answer_tests(solver, evaluation_set, torch.zeros(1, 8), 0.0, CPU, adaptation)


def test_adapted_answers_are_likelier_and_rehearsals_stay(solver: Solver, puzzles: list[Puzzle]) -> None:
    before = {name: part.clone() for name, part in solver.agent.state_dict().items()}
    plain, adapted = (answer(solver, puzzles[:3], given) for given in (None, adaptation_to(puzzles[:3])))
    assert adapted.tests.mean() > plain.tests.mean() + 0.01
    assert torch.equal(adapted.rehearsals, plain.rehearsals), "what they hold out would be learned from"
    assert all(torch.equal(part, before[name]) for name, part in solver.agent.state_dict().items())
    assert all(part.grad is None for module in (solver.agent, solver.encoder) for part in module.parameters())


def test_adapted_answers_depend_on_their_own_puzzle_alone(solver: Solver, puzzles: list[Puzzle]) -> None:
    together = answer(solver, puzzles[:3], adaptation_to(puzzles[:3]))
    alone = answer(solver, puzzles[1:2], adaptation_to(puzzles[1:2]))
    torch.testing.assert_close(alone.tests, together.tests[2:4])


def test_agent_does_not_adapt_to_a_single_demonstration(solver: Solver, puzzles: list[Puzzle]) -> None:
    single = dataclasses.replace(puzzles[0], demonstrations=puzzles[0].demonstrations[:1])
    assert adaptation_to([single]).adapt(solver, 0, CPU) is solver
