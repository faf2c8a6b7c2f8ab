"""Agent, prompt encoder and policy together: who learns from which loss."""

import pytest
import torch

from searchlight.models.arc.agent import PROPOSALS, GridAgent, compute_cell_loss
from searchlight.models.arc.policy import PromptPolicy, compute_rewards, sum_rewards
from searchlight.models.arc.policy import prompt_policy as policy
from searchlight.models.arc.prompt import FEATURES, PromptEncoder
from searchlight.models.arc.puzzles import Batch, Puzzle, TrainingPool
from searchlight.models.arc.solver import Solver, Weights

DIM = 16
ALL = Weights(size=0.3, ambiguity=0.05, consistency=0.1, pathwise=1.0, information=0.05, entropy=0.01, kl=0.01)
NONE = Weights(size=0.0, ambiguity=0.0, consistency=0.0, pathwise=0.0, information=0.0, entropy=0.0, kl=0.0)


@pytest.fixture
def solver() -> Solver:
    torch.manual_seed(0)
    agent = GridAgent(width=16, layers=1, steps=2, prompt_dim=DIM)
    for layer in (agent.refiner.prompt, agent.refiner.core.down, agent.refiner.point):
        torch.nn.init.normal_(layer.weight, std=0.3)  # an agent that a prompt makes better or worse
    return Solver(agent, PromptEncoder(8, dim=DIM), PromptPolicy(DIM, len(FEATURES) + PROPOSALS, PROPOSALS, hidden=16))


@pytest.fixture
def batch(puzzles: list[Puzzle]) -> Batch:
    generator = torch.Generator().manual_seed(0)
    found = TrainingPool(puzzles, []).build_batch(torch.arange(0, 30, 5), generator)
    return found._replace(text=torch.randn(len(found.query), 8, generator=generator))


def gradients(module: torch.nn.Module) -> dict[str, float]:
    return {name: 0.0 if p.grad is None else float(p.grad.norm()) for name, p in module.named_parameters()}


def test_the_agents_loss_trains_agent_and_encoder_alone(solver: Solver, batch: Batch) -> None:
    solver.compute_agent_loss(batch, 0.5, ALL)[0].backward()
    assert all(gradients(solver.agent).values())
    assert all(gradients(solver.encoder).values())
    assert all(p.grad is None for p in solver.policy.parameters())
    torch.optim.SGD([*solver.agent.parameters(), *solver.encoder.parameters()], lr=0.01).step()
    solver.compute_policy_loss(batch, 2, 5.0, False, ALL)[0].backward()  # which shares no graph with it


def test_the_policys_loss_trains_the_policy_alone(solver: Solver, batch: Batch) -> None:
    solver.compute_policy_loss(batch, 4, 5.0, False, ALL)[0].backward()
    assert all(gradients(solver.policy).values())
    assert all(p.grad is None for p in [*solver.agent.parameters(), *solver.encoder.parameters()])


@pytest.mark.parametrize(
    ("weight", "term", "sign"),
    [("pathwise", "pathwise", 1), ("information", "information_gain", -1), ("entropy", "entropy", -1), ("kl", "kl", 1)],
)
def test_every_term_of_the_policys_loss_is_added(solver, batch, weight, term, sign) -> None:
    for part in solver.policy.parameters():
        torch.nn.init.normal_(part, std=0.3)  # at the start the KL is 0
    loss, terms = solver.compute_policy_loss(batch, 4, 0.0, False, NONE._replace(**{weight: 0.7}))
    torch.testing.assert_close(loss.detach(), terms["reinforce"] + sign * 0.7 * terms[term])
    loss.backward()
    assert any(gradients(solver.policy).values())


def test_no_term_scales_another_down(solver: Solver, batch: Batch) -> None:
    def gradient(reward_scale: float, pathwise: float) -> torch.Tensor:
        torch.manual_seed(3)
        solver.policy.zero_grad()
        solver.compute_policy_loss(batch, 4, reward_scale, False, NONE._replace(pathwise=pathwise))[0].backward()
        return torch.cat([p.grad.flatten() for p in solver.policy.parameters()])

    score, pathwise = gradient(1e6, 0.0), gradient(0.0, 1.0)
    assert pathwise.norm() > 0
    torch.testing.assert_close(gradient(1e6, 1.0), score + pathwise, rtol=1e-3, atol=1e-6)
    assert score.norm() < 20, "however large the rewards"


@pytest.mark.parametrize("term", ["ambiguity", "consistency"])
def test_every_term_of_the_agents_loss_is_added(solver: Solver, batch: Batch, term: str) -> None:
    torch.manual_seed(1)
    with_term, _ = solver.compute_agent_loss(batch, 1.0, NONE._replace(**{term: 1.0}))
    torch.manual_seed(1)
    without, terms = solver.compute_agent_loss(batch, 1.0, NONE)
    assert all(value >= 0 for value in terms.values())
    assert with_term.item() == pytest.approx(without.item() + terms[term].item(), rel=1e-5)
    terms[term].backward()
    assert any(gradients(solver.agent).values())


@torch.no_grad()
def test_candidates_differ_by_their_trust_in_hypotheses(solver: Solver, batch: Batch) -> None:
    solver.agent.eval()
    prompt, features = solver.encode_prompt(batch)
    reading = solver.read(batch)
    change = solver.policy.squash(solver.get_distribution(prompt, features, reading).mean)
    expected = solver.agent.refiner(reading, prompt, change)
    torch.testing.assert_close(solver.answer_candidates(batch, torch.zeros(1, PROPOSALS))[:, :, 0], expected)
    several = solver.answer_candidates(batch, torch.randn(3, PROPOSALS))
    assert several.shape == (2, len(prompt), 3, *batch.query.shape[1:], 12)
    assert not torch.equal(several[:, :, 0], several[:, :, 1])


def test_sizes_count_in_their_own_term_alone(solver: Solver, batch: Batch) -> None:
    solver.agent.refiner.steps = 1  # a later step sees the sizes of the one before
    solver.compute_agent_loss(batch, 1.0, NONE)[0].backward()
    layout = solver.agent.refiner.symbol_bias.grad[:2]
    assert not layout.any(), "colors alone"
    solver.compute_agent_loss(batch, 1.0, NONE._replace(size=1.0))[0].backward()
    assert layout.all()


def test_without_encoder_or_policy_there_is_one_candidate(batch: Batch) -> None:
    solver = Solver(GridAgent(width=16, layers=1), None, None)
    assert solver.answer_candidates(batch, torch.randn(3, PROPOSALS)).shape[2] == 1
    with pytest.raises(ValueError, match="policy"):
        solver.compute_policy_loss(batch, 2, 1.0, False, ALL)


def test_policys_terms_are_means_over_its_samples(solver: Solver, batch: Batch) -> None:
    torch.manual_seed(1)
    _, terms = solver.compute_policy_loss(batch, 3, 5.0, False, NONE)
    torch.manual_seed(1)
    losses, earned = [], []
    with torch.no_grad():
        prompt, features = solver.encode_prompt(batch)
        reading = solver.read(batch)
        for action in policy.sample(solver.get_distribution(prompt, features, reading), 3).unbind(1):
            logits = solver.agent.refiner(reading, prompt, solver.policy.squash(action))
            losses.append(compute_cell_loss(logits, batch.target)[0])
            earned.append(sum_rewards(compute_rewards(logits[-1], batch.target, batch.query)))
    torch.testing.assert_close(terms["pathwise"], torch.stack(losses).mean())
    torch.testing.assert_close(terms["reward"], torch.stack(earned).mean())
    assert terms["reward_spread"] == policy.has_spread(torch.stack(earned, 1)).float().mean()
