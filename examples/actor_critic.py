"""An actor-critic with clipped policy updates (PPO) and a reward scale, which are searched together.

The reward scale changes the targets of the critic, but not the normalized advantages: the search shows its effect.
Actor and critic have one optimizer each. A window in which one of them has a NaN is skipped for both.

    searchlight run examples/actor_critic.py:ActorCritic --trials 20
"""

import torch

from searchlight import Task, TaskConfig, searchable


class ActorCriticConfig(TaskConfig):
    actor_lr: float = searchable(1e-3, low=1e-4, high=1e-1, log=True)
    critic_lr: float = searchable(1e-3, low=1e-4, high=1e-1, log=True)
    reward_scale: float = searchable(1.0, low=0.01, high=10.0, log=True)
    clip: float = 0.2
    walkers: int = 64  # environments that run side by side
    steps: int = 32  # of an episode


def mlp(outputs):
    return torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.Tanh(), torch.nn.Linear(32, outputs))


class ActorCritic(Task[ActorCriticConfig]):
    """A walker has a position and a speed. It pushes left or right, and earns -|position| at each step."""

    objective, mode = "val/return", "max"

    def build(self):
        self.modules = {"actor": mlp(2), "critic": mlp(1)}
        self.optimizers = {
            "actor": torch.optim.Adam(self.modules["actor"].parameters(), self.config.actor_lr),
            "critic": torch.optim.Adam(self.modules["critic"].parameters(), self.config.critic_lr),
        }

    @torch.no_grad()
    def roll_out(self, generator):
        """Return states (steps, walkers, 2), actions, their log-probabilities, and returns to go without scale."""
        device = self.context.device
        state = torch.randn(self.config.walkers, 2, generator=generator).to(device)
        states, actions, log_probs, rewards = [], [], [], []
        for _ in range(self.config.steps):
            logits = self.modules["actor"](state).float().log_softmax(1)
            action = torch.multinomial(logits.exp().cpu(), 1, generator=generator).to(device)
            states.append(state)
            actions.append(action[:, 0])
            log_probs.append(logits.gather(1, action)[:, 0])
            speed = 0.9 * state[:, 1] + 0.2 * (2 * action[:, 0] - 1)
            state = torch.stack([state[:, 0] + 0.2 * speed, speed], 1)
            rewards.append(-state[:, 0].abs())
        returns = torch.stack(rewards).flip(0).cumsum(0).flip(0) / self.config.steps
        return torch.stack(states), torch.stack(actions), torch.stack(log_probs), returns

    def train_batches(self, epoch):
        for _ in range(4):
            rollout = [part.flatten(0, 1) for part in self.roll_out(self.context.generator)]
            for _ in range(2):  # passes over one roll-out
                order = torch.randperm(len(rollout[0]), generator=self.context.generator)
                for index in order.chunk(8):
                    index = index[self.context.rank :: self.context.world_size]
                    yield [part[index.to(part.device)] for part in rollout]

    def loss(self, batch):
        state, action, log_prob, returns = batch
        value = self.modules["critic"](state)[:, 0].float()
        target = self.config.reward_scale * returns
        advantage = (target - value).detach()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
        chosen = self.modules["actor"](state).float().log_softmax(1).gather(1, action[:, None])[:, 0]
        ratio = (chosen - log_prob).exp()
        clipped = ratio.clamp(1 - self.config.clip, 1 + self.config.clip)
        policy = -torch.minimum(ratio * advantage, clipped * advantage).mean()
        return policy + torch.nn.functional.mse_loss(value, target), len(state)

    def evaluate(self):
        returns = self.roll_out(torch.Generator().manual_seed(1))[3]
        return {"val/return": returns[0].mean().item()}
