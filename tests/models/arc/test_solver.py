"""Agent, prompt encoder and policy together: who learns from which loss."""

import pytest
import torch

from models.arc import Batch, GridAgent, PromptPolicy, Puzzle, Solver, TrainingPool, Weights
from models.arc.prompt import FEATURES, PromptEncoder

DIM = 16
ALL = Weights(ambiguity=0.05, consistency=0.1, pathwise=1.0, information=0.05, value=0.5, entropy=0.01, kl=0.01)
NONE = Weights(ambiguity=0.0, consistency=0.0, pathwise=0.0, information=0.0, value=0.0, entropy=0.0, kl=0.0)


@pytest.fixture
def solver() -> Solver:
    torch.manual_seed(0)
    agent = GridAgent(width=16, layers=1, steps=2, prompt_dim=DIM)
    return Solver(agent, PromptEncoder(8, dim=DIM), PromptPolicy(DIM, len(FEATURES), hidden=16))


@pytest.fixture
def batch(puzzles: list[Puzzle]) -> Batch:
    generator = torch.Generator().manual_seed(0)
    found = TrainingPool(puzzles, []).batch(torch.arange(0, 30, 5), generator)
    return found._replace(text=torch.randn(len(found.query), 8, generator=generator))


def gradients(module: torch.nn.Module) -> dict[str, float]:
    return {name: 0.0 if p.grad is None else float(p.grad.norm()) for name, p in module.named_parameters()}


def test_agent_and_encoder_learn_from_the_agents_loss_and_the_policy_does_not(solver: Solver, batch: Batch) -> None:
    loss, _ = solver.agent_loss(batch, 0.3, 0.5, ALL)
    loss.backward()
    assert solver.encoder is not None
    assert solver.policy is not None
    assert all(gradients(solver.agent).values())
    assert all(gradients(solver.encoder).values())
    assert all(p.grad is None for p in solver.policy.parameters())


def test_mean_sigma_and_value_learn_from_the_policys_loss_and_nothing_else_does(  # C65, C66
    solver: Solver, batch: Batch
) -> None:
    loss, _ = solver.policy_loss(batch, 4, 5.0, False, ALL)
    loss.backward()
    assert solver.encoder is not None
    assert solver.policy is not None
    assert all(gradients(solver.policy).values())
    assert all(p.grad is None for p in [*solver.agent.parameters(), *solver.encoder.parameters()])


def test_the_policys_loss_comes_after_the_agents_update_and_shares_no_graph_with_it(  # C67
    solver: Solver, batch: Batch
) -> None:
    assert solver.encoder is not None
    optimizer = torch.optim.SGD([*solver.agent.parameters(), *solver.encoder.parameters()], lr=0.1)
    solver.agent_loss(batch, 0.0, 1.0, ALL)[0].backward()
    optimizer.step()
    solver.policy_loss(batch, 2, 5.0, False, ALL)[0].backward()


@pytest.mark.parametrize("term", ["pathwise", "information", "value", "entropy", "kl"])
def test_every_term_of_the_policys_loss_moves_the_policy(solver: Solver, batch: Batch, term: str) -> None:
    assert solver.policy is not None
    solver.policy_loss(batch, 4, 0.0, False, NONE._replace(**{term: 1.0}))[0].backward()
    assert any(gradients(solver.policy).values())


@pytest.mark.parametrize("term", ["ambiguity", "consistency"])
def test_every_term_of_the_agents_loss_is_at_least_0_and_moves_the_agent(
    solver: Solver, batch: Batch, term: str
) -> None:
    torch.manual_seed(1)
    with_term, _ = solver.agent_loss(batch, 0.0, 1.0, NONE._replace(**{term: 1.0}))
    torch.manual_seed(1)
    without, terms = solver.agent_loss(batch, 0.0, 1.0, NONE)
    assert all(value >= 0 for value in terms.values())
    assert with_term.item() == pytest.approx(without.item() + terms[term].item(), rel=1e-5)
    terms[term].backward()
    assert any(gradients(solver.agent).values())


def test_a_batch_of_rewards_that_are_all_alike_leaves_a_finite_loss(solver: Solver, batch: Batch) -> None:  # C73
    same = batch._replace(target=batch.query)
    loss, terms = solver.policy_loss(same, 1, 5.0, False, ALL)
    assert torch.isfinite(loss)
    assert all(torch.isfinite(value) for value in terms.values())


def test_prompts_do_not_depend_on_the_answer(solver: Solver, batch: Batch) -> None:  # C89
    prompt, features = solver.prompt(batch)
    other, same = solver.prompt(batch._replace(target=batch.target.flip(0)))
    assert torch.equal(features, same)
    assert prompt is not None
    assert other is not None
    assert torch.equal(prompt, other)


def test_candidates_without_noise_are_the_mean_prompt_answered(solver: Solver, batch: Batch) -> None:
    assert solver.policy is not None
    solver.agent.eval()
    with torch.no_grad():
        prompt, features = solver.prompt(batch)
        moved = prompt + solver.policy.squash(solver.policy(prompt, features).mean)
        expected = solver.agent(batch.query, batch.demo_inputs, batch.demo_outputs, batch.demo_mask, moved)
        logits = solver.candidates(batch, torch.zeros(1, DIM))
        noise = torch.randn(3, DIM, generator=torch.Generator().manual_seed(0))
        several = solver.candidates(batch, noise)
    torch.testing.assert_close(logits[:, :, 0], expected)
    assert several.shape == (2, len(prompt), 3, *batch.query.shape[1:], 12)
    assert not torch.equal(several[:, :, 0], several[:, :, 1])


def test_without_encoder_or_policy_there_is_one_candidate(batch: Batch) -> None:
    torch.manual_seed(0)
    solver = Solver(GridAgent(width=16, layers=1), None, None)
    assert solver.candidates(batch, torch.randn(3, DIM)).shape[2] == 1
    with pytest.raises(ValueError, match="policy"):
        solver.policy_loss(batch, 2, 1.0, False, ALL)


@pytest.mark.parametrize(("pathwise", "reward_scale"), [(1.0, 0.0), (0.0, 5.0)])
def test_the_policy_learns_prompts_that_answer_better_from_either_of_its_gradients(
    solver: Solver, batch: Batch, pathwise: float, reward_scale: float
) -> None:
    assert solver.policy is not None
    for layer in (solver.agent.refiner.prompt, solver.agent.refiner.core.down, solver.agent.refiner.point):
        torch.nn.init.normal_(layer.weight, std=0.3)  # an agent that a prompt makes better or worse
    solver.policy.scale = 1.0
    optimizer = torch.optim.Adam(solver.policy.parameters(), lr=0.01)
    seen = []
    for _ in range(80):
        optimizer.zero_grad()
        loss, terms = solver.policy_loss(batch, 8, reward_scale, False, NONE._replace(pathwise=pathwise, value=0.5))
        loss.backward()
        optimizer.step()
        seen.append(terms)
    first, last = (
        {name: sum(t[name].item() for t in part) / 20 for name in seen[0]} for part in (seen[:20], seen[-20:])
    )
    if pathwise:
        assert last["pathwise"] < 0.8 * first["pathwise"]
    else:
        assert last["reward"] > first["reward"] + 0.05
    assert last["value_loss"] < first["value_loss"]
