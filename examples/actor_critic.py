"""PPO with a reward scale on CartPole of gymnasium: both learning rates and the scale are searched together.

The reward scale changes the targets of the critic, but not the normalized advantages: the search shows its effect.
Actor and critic have one optimizer each. A window in which one of them has a NaN is skipped for both.

    pip install gymnasium
    searchlight run examples/actor_critic.py:ActorCritic --trials 20

With --trials 6 --concurrency 1, on CPUs, it printed:

    2 completed, 4 pruned in 1:34
    best: trial 1, val/return 199.9 estimated over 2 new seeds, 90 % interval 198.9 to 200.9
      trial 1 is probably better than the defaults, by 0.2 (90 % interval -0.3 to 0.9, 2 seeds), but this is not shown
"""

import gymnasium
import torch
from torch import nn

from searchlight import Task, TaskConfig, searchable

LIMIT = 200.0  # steps of an episode


class ActorCriticConfig(TaskConfig):
    actor_lr: float = searchable(1e-3, low=1e-4, high=3e-2, log=True)
    critic_lr: float = searchable(1e-3, low=1e-4, high=3e-2, log=True)
    reward_scale: float = searchable(1.0, low=0.01, high=1.0, log=True)
    discount: float = 0.98
    clip: float = 0.2
    environments: int = 8  # side by side
    steps: int = 128  # of each environment in a roll-out


def mlp(outputs):
    return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))


class ActorCritic(Task[ActorCriticConfig]):
    objective, mode = "val/return", "max"

    def build(self):
        self.modules = {"actor": mlp(2), "critic": mlp(1)}
        self.optimizers = {
            "actor": torch.optim.Adam(self.modules["actor"].parameters(), self.config.actor_lr),
            "critic": torch.optim.Adam(self.modules["critic"].parameters(), self.config.critic_lr),
        }
        modes = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}
        self.environments = gymnasium.make_vec(
            "CartPole-v1", self.config.environments, "sync", vector_kwargs=modes, max_episode_steps=int(LIMIT)
        )

    @torch.no_grad()
    def roll_out(self, generator, steps):
        """Return states, actions, their log-probabilities, returns to go, and 1 where the first episode goes on."""
        # All random numbers come from the generator, so that a resumed trial draws the same.
        seed = torch.randint(2**31, (), generator=generator).item()
        state, first = self.environments.reset(seed=seed)[0], torch.ones(self.config.environments)
        states, actions, log_probs, rewards, ends, firsts = [], [], [], [], [], []
        for _ in range(steps):
            states.append(torch.as_tensor(state))
            logits = self.modules["actor"](states[-1].to(self.context.device)).float().log_softmax(1).cpu()
            actions.append(torch.multinomial(logits.exp(), 1, generator=generator)[:, 0])
            log_probs.append(logits.gather(1, actions[-1][:, None])[:, 0])
            state, reward, ended, cut, _ = self.environments.step(actions[-1].numpy())
            rewards.append(torch.as_tensor(reward).float())
            ends.append(torch.as_tensor(ended | cut))
            firsts.append(first.clone())
            first[ends[-1]] = 0
        value = self.modules["critic"](torch.as_tensor(state).to(self.context.device))[:, 0].float().cpu()
        following, returns = value / self.config.reward_scale, []
        for reward, end in zip(reversed(rewards), reversed(ends), strict=True):
            following = reward + self.config.discount * following * ~end
            returns.insert(0, following)
        return [torch.stack(part) for part in (states, actions, log_probs, returns, firsts)]

    def train_batches(self, epoch):
        for _ in range(4):
            with self.autocast():  # as in the loss, so that the ratio of probabilities begins at 1
                rollout = [part.flatten(0, 1) for part in self.roll_out(self.context.generator, self.config.steps)[:4]]
            for _ in range(4):  # passes over one roll-out
                order = torch.randperm(len(rollout[0]), generator=self.context.generator)
                for index in order.chunk(8):
                    yield [part[index[self.context.rank :: self.context.world_size]] for part in rollout]

    def loss(self, batch):
        state, action, log_prob, returns = batch
        value = self.modules["critic"](state)[:, 0].float()
        target = self.config.reward_scale * returns
        advantage = (target - value).detach()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
        ratio = (self.modules["actor"](state).float().log_softmax(1).gather(1, action[:, None])[:, 0] - log_prob).exp()
        clipped = ratio.clamp(1 - self.config.clip, 1 + self.config.clip)
        policy = -torch.minimum(ratio * advantage, clipped * advantage).mean()
        return policy + nn.functional.mse_loss(value, target), len(state)

    def evaluate(self):
        firsts = self.roll_out(torch.Generator().manual_seed(1), int(LIMIT))[4]
        return {"val/return": firsts.sum(0).mean().item()}  # each step of an episode earns 1
