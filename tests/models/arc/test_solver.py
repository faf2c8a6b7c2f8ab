"""Agent, prompt encoder and policy together: who learns from which loss."""

import pytest
import torch

from models.arc import Batch, GridAgent, PromptPolicy, Puzzle, Solver, TrainingPool, Weights, cell_loss, policy
from models.arc.prompt import FEATURES, PromptEncoder
from models.arc.reward import rewards, total

DIM = 16
ALL = Weights(ambiguity=0.05, consistency=0.1, pathwise=1.0, information=0.05, value=0.5, entropy=0.01, kl=0.01)
NONE = Weights(ambiguity=0.0, consistency=0.0, pathwise=0.0, information=0.0, value=0.0, entropy=0.0, kl=0.0)


@pytest.fixture
def solver() -> Solver:
    torch.manual_seed(0)
    agent = GridAgent(width=16, layers=1, steps=2, prompt_dim=DIM)
    for layer in (agent.refiner.prompt, agent.refiner.core.down, agent.refiner.point):
        torch.nn.init.normal_(layer.weight, std=0.3)  # an agent that a prompt makes better or worse
    return Solver(agent, PromptEncoder(8, dim=DIM), PromptPolicy(DIM, len(FEATURES), hidden=16))


@pytest.fixture
def batch(puzzles: list[Puzzle]) -> Batch:
    generator = torch.Generator().manual_seed(0)
    found = TrainingPool(puzzles, []).batch(torch.arange(0, 30, 5), generator)
    return found._replace(text=torch.randn(len(found.query), 8, generator=generator))


def gradients(module: torch.nn.Module) -> dict[str, float]:
    return {name: 0.0 if p.grad is None else float(p.grad.norm()) for name, p in module.named_parameters()}


def test_the_agents_loss_trains_agent_and_encoder_alone(solver: Solver, batch: Batch) -> None:
    solver.agent_loss(batch, 0.3, 0.5, ALL)[0].backward()
    assert all(gradients(solver.agent).values())
    assert all(gradients(solver.encoder).values())
    assert all(p.grad is None for p in solver.policy.parameters())
    torch.optim.SGD([*solver.agent.parameters(), *solver.encoder.parameters()], lr=0.1).step()
    solver.policy_loss(batch, 2, 5.0, False, ALL)[0].backward()  # which shares no graph with it


def test_the_policys_loss_trains_the_policy_alone(solver: Solver, batch: Batch) -> None:
    solver.policy_loss(batch, 4, 5.0, False, ALL)[0].backward()
    assert all(gradients(solver.policy).values())
    assert all(p.grad is None for p in [*solver.agent.parameters(), *solver.encoder.parameters()])


@pytest.mark.parametrize(
    ("weight", "term", "sign"),
    [
        ("pathwise", "pathwise", 1),
        ("information", "information_gain", -1),
        ("value", "value_loss", 1),
        ("entropy", "entropy", -1),
        ("kl", "kl", 1),
    ],
)
def test_every_term_of_the_policys_loss_is_added(solver, batch, weight, term, sign) -> None:
    loss, terms = solver.policy_loss(batch, 4, 5.0, False, NONE._replace(**{weight: 0.7}))
    torch.testing.assert_close(loss, terms["reinforce"] + sign * 0.7 * terms[term])
    terms[term].backward()
    assert any(gradients(solver.policy).values())


@pytest.mark.parametrize("term", ["ambiguity", "consistency"])
def test_every_term_of_the_agents_loss_is_added(solver: Solver, batch: Batch, term: str) -> None:
    torch.manual_seed(1)
    with_term, _ = solver.agent_loss(batch, 0.0, 1.0, NONE._replace(**{term: 1.0}))
    torch.manual_seed(1)
    without, terms = solver.agent_loss(batch, 0.0, 1.0, NONE)
    assert all(value >= 0 for value in terms.values())
    assert with_term.item() == pytest.approx(without.item() + terms[term].item(), rel=1e-5)
    terms[term].backward()
    assert any(gradients(solver.agent).values())


def test_equal_rewards_leave_a_finite_loss(solver: Solver, batch: Batch) -> None:
    loss, terms = solver.policy_loss(batch._replace(target=batch.query), 1, 5.0, False, ALL)
    assert all(torch.isfinite(value) for value in (loss, *terms.values()))


@torch.no_grad()
def test_candidates_without_noise_answer_the_mean_prompt(solver: Solver, batch: Batch) -> None:
    solver.agent.eval()
    prompt, features = solver.prompt(batch)
    moved = prompt + solver.policy.squash(solver.policy(prompt, features).mean)
    expected = solver.agent(batch.query, batch.demo_inputs, batch.demo_outputs, batch.demo_mask, moved)
    torch.testing.assert_close(solver.candidates(batch, torch.zeros(1, DIM))[:, :, 0], expected)
    several = solver.candidates(batch, torch.randn(3, DIM))
    assert several.shape == (2, len(prompt), 3, *batch.query.shape[1:], 12)
    assert not torch.equal(several[:, :, 0], several[:, :, 1])


def test_without_encoder_or_policy_there_is_one_candidate(batch: Batch) -> None:
    solver = Solver(GridAgent(width=16, layers=1), None, None)
    assert solver.candidates(batch, torch.randn(3, DIM)).shape[2] == 1
    with pytest.raises(ValueError, match="policy"):
        solver.policy_loss(batch, 2, 1.0, False, ALL)


@torch.no_grad()
def test_the_policys_terms_are_means_over_its_samples(solver: Solver, batch: Batch) -> None:
    torch.manual_seed(1)
    _, terms = solver.policy_loss(batch, 3, 5.0, False, NONE)
    torch.manual_seed(1)
    prompt, features = solver.prompt(batch)
    losses, earned = [], []
    for action in policy.sample(solver.policy(prompt, features), 3).unbind(1):
        logits = solver.agent(*batch[:1], *batch[2:5], prompt + solver.policy.squash(action))
        losses.append(cell_loss(logits, batch.target)[0])
        earned.append(total(rewards(logits[-1], batch.target, batch.query)).mean())
    assert max(losses) - min(losses) > 1e-3
    torch.testing.assert_close(terms["pathwise"], torch.stack(losses).mean())
    torch.testing.assert_close(terms["reward"], torch.stack(earned).mean())
