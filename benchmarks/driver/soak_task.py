"""The trial of soak.py: short epochs, with all that a checkpoint must restore: dropout, Adam's state and data order."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import torch
from torch import Tensor, nn

from searchlight.trainables.task import Task, TaskConfig, searchable

SLEEP_S = 7200
SLEEPS = [sys.executable, "-c", f"import time; time.sleep({SLEEP_S})"]
DAEMON = """
import subprocess, sys
print(subprocess.Popen(sys.argv[1:], start_new_session=True, stdout=subprocess.DEVNULL).pid)
"""
WINDOW_S = 0.06  # a pause, so that a trial takes seconds and little CPU time


class SoakConfig(TaskConfig):
    lr: float = searchable(1e-2, low=1e-4, high=1e-1, log=True)
    dropout: float = searchable(0.1, low=0.0, high=0.5)


class Soak(Task[SoakConfig]):
    objective, mode = "val/loss", "min"

    def build(self) -> None:
        self.x = torch.randn(128, 4, generator=torch.Generator().manual_seed(0)).to(self.context.device)
        self.y = self.x.sum(1, keepdim=True).sin()
        model = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Dropout(self.config.dropout), nn.Linear(32, 1))
        self.modules = {"model": model}
        self.optimizers = {"model": torch.optim.AdamW(model.parameters(), lr=self.config.lr)}
        if "SOAK_LOG" in os.environ:
            with suppress(FileNotFoundError):  # of the one trial that finds it
                (folder := Path(os.environ["SOAK_LOG"]).parent).joinpath("leave").unlink()
                self.leave_processes(folder / "left")

    def leave_processes(self, file: Path) -> None:
        """Leave a program, a daemon, a fork and a loader's worker. Write their numbers, after that of this process."""
        program = subprocess.Popen(SLEEPS, start_new_session=True).pid
        daemon = int(subprocess.check_output([sys.executable, "-c", DAEMON, *SLEEPS]))
        if not (fork := os.fork()):
            os.setsid()
            time.sleep(SLEEP_S)
            os._exit(0)
        own = torch.Generator()  # else the loader draws from the one that the trial draws from
        loader = torch.utils.data.DataLoader(range(4), num_workers=1, persistent_workers=True, generator=own)
        self.loading = iter(loader)
        children = {child.pid for child in psutil.Process().children()} - {program, fork}
        file.write_text(" ".join(map(str, [os.getpid(), program, daemon, fork, *children])) + "\n")

    def train_batches(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in self.context.shard((self.x[:64], self.y[:64]), batch_size=8):
            if "SOAK_LOG" in os.environ:
                time.sleep(WINDOW_S)
            yield batch

    def loss(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, float]:
        x, y = batch
        return nn.functional.mse_loss(self.modules["model"](x), y), len(x)

    def evaluate(self) -> dict[str, float]:
        if "SOAK_LOG" in os.environ:
            with open(os.environ["SOAK_LOG"], "a") as log:
                log.write("epoch\n")
        return {"val/loss": nn.functional.mse_loss(self.modules["model"](self.x[64:]), self.y[64:]).item()}
