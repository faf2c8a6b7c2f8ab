"""Test the policy of a prompt, which has an update of its own beside that of the agent that it serves."""

import pytest
import torch
from torch import Tensor, nn

from models.arc.policy import PromptPolicy, advantages, entropy, kl, reinforce, sample
from tests.trainables.toy_models import every_precision
from trainables.precision import LossScale
from trainables.update import Updater

WIDTH, SAMPLES = 6, 8


class Toy:
    """An encoder makes prompts, an agent says how good they are, and a policy moves them.

    The agent and the encoder share an update; the policy has one of its own, with its own rate and its own scale.
    """

    def __init__(self, precision: str) -> None:
        torch.manual_seed(0)
        self.served = nn.ModuleDict({"encoder": nn.Linear(4, WIDTH), "agent": nn.Linear(WIDTH, 1)})
        self.policy = PromptPolicy(WIDTH, features=3, actions=WIDTH, hidden=16)
        self.broken = False
        main = torch.optim.SGD(self.served.parameters(), lr=0.05)
        self.main = Updater({"main": main}, precision, loss_scale=LossScale(1024.0))
        own = torch.optim.SGD(self.policy.parameters(), lr=0.01)
        self.own = Updater({"policy": own}, precision, loss_scale=LossScale(64.0))

    def main_loss(self, inputs: Tensor) -> tuple[Tensor, int]:
        prompt = self.served["encoder"](inputs)
        with torch.no_grad():
            drawn = sample(self.policy(prompt, torch.zeros(len(prompt), 3)), 1)[:, 0]
        return self.served["agent"](prompt + self.policy.squash(drawn)).square().mean(), len(inputs)

    def policy_loss(self, inputs: Tensor) -> tuple[Tensor, int]:
        with torch.no_grad():
            prompt = self.served["encoder"](inputs).float()
        found = self.policy(prompt, torch.zeros(len(prompt), 3))
        u = sample(found, SAMPLES, generator=torch.Generator().manual_seed(len(inputs)))
        value = self.served["agent"](prompt[:, None] + self.policy.squash(u)).squeeze(-1).float()
        rewards = value.detach() / (0.0 if self.broken else 1.0)
        score = reinforce(found, u, advantages(rewards, 5.0))
        return (score - value.mean(1) - 0.01 * entropy(found) + 0.1 * kl(found)).mean(), len(inputs)


def inputs(seed: int = 0, size: int = 5) -> Tensor:
    return torch.randn(size, 4, generator=torch.Generator().manual_seed(seed))


def values(module: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in module.parameters()]


def moved(module: nn.Module, before: list[Tensor]) -> list[bool]:
    return [not torch.equal(now, was) for now, was in zip(module.parameters(), before, strict=True)]


@every_precision
def test_each_update_moves_its_own_parameters_alone(precision):  # C65, C66, C67
    toy = Toy(precision)
    for step in range(3):
        window = [inputs(step), inputs(step + 10, size=3)]
        policy, served = values(toy.policy), values(toy.served)
        assert toy.own.update(window, toy.policy_loss).outcome == "applied"
        assert all(moved(toy.policy, policy))
        assert not any(moved(toy.served, served))
        assert all(parameter.grad is None for parameter in toy.served.parameters())
        policy = values(toy.policy)
        assert toy.main.update(window, toy.main_loss).outcome == "applied"
        assert not any(moved(toy.policy, policy))
        assert all(moved(toy.served, served))


def test_spoilt_reward_discards_the_step_of_the_policy_alone():  # C74, C76, E50
    toy, calm = Toy("fp16"), Toy("fp16")
    toy.broken = True
    policy = values(toy.policy)
    assert toy.own.update([inputs()], toy.policy_loss).outcome == "skipped"
    assert not any(moved(toy.policy, policy))
    assert (toy.own.loss_scale.value, toy.main.loss_scale.value) == (32.0, 1024.0)
    for one in (toy, calm):
        torch.manual_seed(1)
        report = one.main.update([inputs()], one.main_loss)
        assert (report.outcome, report.loss_scale) == ("applied", 1024.0)
    assert not any(moved(toy.served, values(calm.served)))
    toy.broken = False
    report = toy.own.update([inputs()], toy.policy_loss)
    assert (report.outcome, report.loss_scale) == ("applied", 32.0)
    assert all(moved(toy.policy, policy))


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("reward_scale", [2.0, -2.0])
def test_bandit_follows_the_sign_of_the_reward_scale(reward_scale, normalize):  # C70
    policy = PromptPolicy(1, features=3, actions=1, hidden=8)
    generator = torch.Generator().manual_seed(0)
    state = torch.zeros(4, 1), torch.zeros(4, 3)

    def loss(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, int]:
        found = policy(*batch)
        u = sample(found, 64, generator=generator).detach()
        rewards = policy.squash(u).squeeze(-1).sign()
        gained = advantages(rewards, reward_scale, normalize=normalize)
        return reinforce(found, u, gained).mean(), len(batch[0])

    updater = Updater({"policy": torch.optim.Adam(policy.parameters(), lr=3e-2)}, max_grad_norm=1.0)
    for _ in range(40):
        updater.update([state], loss)
    found = policy(*state)
    expected = 1.0 if reward_scale > 0 else -1.0
    assert (policy.squash(found.mean) * expected > 0.02).all()
    drawn = policy.squash(sample(found, 1000, generator=generator))
    assert (drawn * expected > 0).float().mean() > 0.9
