"""The toy, with everything that can go wrong in it: which fault, in which phase, on which rank."""

import os
import resource
import signal
import time
from pathlib import Path

import torch
from toy import Toy, ToyConfig


class FaultyConfig(ToyConfig):
    fault: str = "none"
    phase: str = "loss"
    fault_epoch: int = 2
    once: str = ""  # a file; the fault happens only while there is none


class Faulty(Toy):
    config: FaultyConfig

    @classmethod
    def config_class(cls):
        return FaultyConfig

    def build(self):
        super().build()
        self._in("build", epoch=0)

    def train_batches(self, epoch):
        self._in("train_batches", epoch)
        self._epoch = epoch
        return super().train_batches(epoch)

    def loss(self, batch):
        self._in("loss", self._epoch)
        return super().loss(batch)

    def evaluate(self):
        self._in("evaluate", getattr(self, "_epoch", 0))
        return {**super().evaluate(), "pid": os.getpid()}

    def _in(self, phase, epoch):
        config = self.config
        due = phase == "build" or epoch >= config.fault_epoch
        if phase != config.phase or not due or self.context.rank != config.rank_that_fails:
            return
        if config.once:
            if Path(config.once).exists():
                return
            Path(config.once).touch()
        if config.fault == "raise":
            raise RuntimeError(f"broken in {phase}")
        if config.fault == "exit":
            os._exit(7)
        if config.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if config.fault == "hang":
            time.sleep(1000)
        if config.fault == "memory":
            taken, _ = resource.getrlimit(resource.RLIMIT_AS)
            now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (now + 2**30, resource.RLIM_INFINITY))
            try:
                self.hoard = [torch.ones(2**26) for _ in range(64)]  # a quarter of a GiB each
            finally:
                resource.setrlimit(resource.RLIMIT_AS, (taken, resource.RLIM_INFINITY))
