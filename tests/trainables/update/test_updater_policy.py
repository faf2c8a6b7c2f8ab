"""The policy of a prompt has an update of its own, beside that of the agent that it serves."""

import copy

import pytest
import torch
from torch import Tensor, nn

from models.arc.policy import PromptPolicy, advantages, policy_loss, sample
from tests.trainables.toy_models import every_precision
from trainables.precision import LossScale
from trainables.update import Updater

WIDTH, SAMPLES = 6, 8


class Toy:
    """An encoder makes prompts, an agent says how good they are, and a policy moves them.

    The agent and the encoder share an update; the policy has one of its own, with its own rate and its own clipping.
    """

    def __init__(self, precision: str = "fp32", reward_scale: float = 5.0, clip: float | None = None) -> None:
        torch.manual_seed(0)
        self.encoder, self.agent = nn.Linear(4, WIDTH), nn.Linear(WIDTH, 1)
        self.policy = PromptPolicy(WIDTH, features=3, hidden=16)
        self.reward_scale, self.broken = reward_scale, False
        main = torch.optim.SGD([*self.encoder.parameters(), *self.agent.parameters()], lr=0.05)
        self.main = Updater({"main": main}, precision, loss_scale=LossScale(1024.0))
        options = {"max_grad_norm": clip, "loss_scale": LossScale(64.0)}
        self.own = Updater({"policy": torch.optim.SGD(self.policy.parameters(), lr=0.01)}, precision, **options)

    def main_loss(self, inputs: Tensor) -> tuple[Tensor, int]:
        prompt = self.encoder(inputs)
        with torch.no_grad():
            moved = sample(self.policy(prompt, torch.zeros(len(prompt), 3)), 1)[:, 0]
        return self.agent(prompt + self.policy.squash(moved)).square().mean(), len(inputs)

    def policy_loss(self, inputs: Tensor) -> tuple[Tensor, int]:
        with torch.no_grad():
            prompt = self.encoder(inputs).float()
        found = self.policy(prompt, torch.zeros(len(prompt), 3))
        u = sample(found, SAMPLES, generator=torch.Generator().manual_seed(len(inputs)))
        value = self.agent(prompt[:, None] + self.policy.squash(u)).squeeze(-1).float()
        rewards = value.detach() / (0.0 if self.broken else 1.0)
        gained = advantages(rewards, found.value, self.reward_scale, normalize=False)
        terms = policy_loss(found, u, gained, rewards)
        pathwise = -value.mean()
        return terms.reinforce + pathwise + terms.value - 0.01 * terms.entropy + 0.1 * terms.kl, len(inputs)


def inputs(seed: int = 0, size: int = 5) -> Tensor:
    return torch.randn(size, 4, generator=torch.Generator().manual_seed(seed))


def values(module: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in module.parameters()]


def moved(module: nn.Module, before: list[Tensor]) -> list[bool]:
    return [not torch.equal(now, was) for now, was in zip(module.parameters(), before, strict=True)]


@every_precision
def test_one_update_moves_every_parameter_of_the_policy_and_no_other(precision):  # C65, C66
    toy = Toy(precision)
    policy, encoder, agent = values(toy.policy), values(toy.encoder), values(toy.agent)
    report = toy.own.update([inputs()], toy.policy_loss)
    assert report.outcome == "applied"
    assert all(moved(toy.policy, policy))
    assert not any(moved(toy.encoder, encoder) + moved(toy.agent, agent))
    assert all(parameter.grad is None for module in (toy.encoder, toy.agent) for parameter in module.parameters())


def test_the_update_of_the_agent_does_not_move_the_policy():  # C66
    toy = Toy()
    policy, encoder, agent = values(toy.policy), values(toy.encoder), values(toy.agent)
    toy.main.update([inputs()], toy.main_loss)
    assert not any(moved(toy.policy, policy))
    assert all(moved(toy.encoder, encoder) + moved(toy.agent, agent))


@every_precision
def test_both_updates_alternate_without_sharing_a_graph(precision):  # C67
    toy = Toy(precision)
    for step in range(5):
        window = [inputs(step), inputs(step + 10, size=3)]
        assert toy.main.update(window, toy.main_loss).outcome == "applied"
        assert toy.own.update(window, toy.policy_loss).outcome == "applied"
    assert toy.main.steps == toy.own.steps == 5


def test_a_spoilt_reward_discards_the_step_of_the_policy_alone():  # C74
    toy, calm = Toy("fp16"), Toy("fp16")
    toy.broken = True
    policy = values(toy.policy)
    assert toy.own.update([inputs()], toy.policy_loss).outcome == "skipped"
    assert not any(moved(toy.policy, policy))
    scale = toy.main.loss_scale
    assert scale is not None
    assert scale.value == 1024.0
    for one in (toy, calm):
        torch.manual_seed(1)
        assert one.main.update([inputs()], one.main_loss).outcome == "applied"
    assert not any(moved(toy.agent, values(calm.agent)))
    toy.broken = False
    assert toy.own.update([inputs()], toy.policy_loss).outcome == "applied"
    assert all(moved(toy.policy, policy))


def test_the_policy_is_clipped_on_its_own():  # C76
    free, clipped = Toy(), Toy(clip=0.1)
    before = values(clipped.policy)
    reports = [toy.own.update([inputs()], toy.policy_loss) for toy in (free, clipped)]
    assert reports[0].grad_norm == pytest.approx(reports[1].grad_norm, rel=1e-6)
    assert reports[1].grad_norm > 1
    steps = [now.detach() - was for now, was in zip(clipped.policy.parameters(), before, strict=True)]
    assert torch.stack([step.norm() for step in steps]).norm().item() == pytest.approx(0.01 * 0.1, rel=1e-3)


def test_the_loss_scale_of_the_policy_is_its_own():  # C76
    toy = Toy("fp16")
    own, main = toy.own.loss_scale, toy.main.loss_scale
    assert own is not None
    assert main is not None
    toy.broken = True
    toy.own.update([inputs()], toy.policy_loss)
    assert (own.value, main.value) == (32.0, 1024.0)
    toy.broken = False
    assert toy.own.update([inputs()], toy.policy_loss).loss_scale == 32.0
    assert toy.main.update([inputs()], toy.main_loss).loss_scale == 1024.0


@pytest.mark.parametrize("normalize", [False, True])
def test_an_update_does_not_depend_on_how_its_window_is_cut(normalize):
    torch.manual_seed(0)
    start = PromptPolicy(WIDTH, features=3, hidden=16)
    whole = [torch.randn(12, WIDTH), torch.rand(12, 3), torch.randn(12, SAMPLES, WIDTH), torch.rand(12, SAMPLES)]
    after = []
    for size in (12, 5, 1):
        policy = copy.deepcopy(start)

        def loss(batch: tuple[Tensor, ...], policy: PromptPolicy = policy) -> tuple[Tensor, int]:
            prompt, features, u, rewards = batch
            found = policy(prompt, features)
            terms = policy_loss(found, u, advantages(rewards, found.value, 5.0, normalize=normalize), rewards)
            return terms.reinforce + terms.value - 0.01 * terms.entropy + 0.1 * terms.kl, len(prompt)

        updater = Updater({"policy": torch.optim.SGD(policy.parameters(), lr=0.1)})
        updater.update(list(zip(*(part.split(size) for part in whole), strict=True)), loss)
        after.append(torch.cat([parameter.detach().flatten() for parameter in policy.parameters()]))
    torch.testing.assert_close(after[1], after[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(after[2], after[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("reward_scale", [2.0, -2.0])
def test_a_bandit_learns_what_is_rewarded_and_flees_it_if_the_scale_is_negative(reward_scale, normalize):  # C70
    torch.manual_seed(0)
    policy = PromptPolicy(1, features=3, hidden=8)
    generator = torch.Generator().manual_seed(0)
    state = torch.zeros(4, 1), torch.zeros(4, 3)

    def loss(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, int]:
        found = policy(*batch)
        u = sample(found, SAMPLES, generator=generator).detach()
        rewards = policy.squash(u).squeeze(-1).sign()
        gained = advantages(rewards, found.value, reward_scale, normalize=normalize)
        terms = policy_loss(found, u, gained, rewards)
        return terms.reinforce + 0.5 * terms.value, len(batch[0])

    updater = Updater({"policy": torch.optim.Adam(policy.parameters(), lr=3e-3)}, max_grad_norm=1.0)
    for _ in range(300):
        updater.update([state], loss)
    found = policy(*state)
    expected = 1.0 if reward_scale > 0 else -1.0
    assert (policy.squash(found.mean) * expected > 0.02).all()
    assert found.value.mean().item() == pytest.approx(expected, abs=0.3)
    drawn = policy.squash(sample(found, 1000, generator=generator))
    assert (drawn * expected > 0).float().mean() > 0.9
