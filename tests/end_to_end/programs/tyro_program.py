"""Logs a value of each episode to TensorBoard, as a script for reinforcement learning does."""

from dataclasses import dataclass

import tyro
from torch.utils.tensorboard import SummaryWriter


@dataclass
class Args:
    learning_rate: float = 2.5e-4
    total_timesteps: int = 40


args = tyro.cli(Args)
writer = SummaryWriter("runs/one")
for step in range(1, args.total_timesteps + 1):
    if step % 2 == 0:  # an episode has ended; both of an epoch of ten steps have the same mean
        writer.add_scalar("charts/score", args.learning_rate + 10 / ((step - 1) // 10 * 10 + 10), step)
writer.close()
print("after training")
