"""A task whose memory is its width times its batch size, under a real limit of the process."""

import resource
from pathlib import Path

import torch
from toy import Toy, ToyConfig

from searchlight import searchable

LIMIT, UNIT = 2**28 + 2**21, 2**20  # bytes that a trial may add, and those of a sample of width 1


class WideConfig(ToyConfig):
    width: int = searchable(8, low=1, high=256, log=True)
    batch_size: int = 4


class SplitWideConfig(WideConfig):
    micro_batch_field = "batch_size"


class Wide(Toy):
    """Each window allocates a tensor for its micro-batch, which fits only if width and batch size are small."""

    config: WideConfig

    @classmethod
    def config_class(cls):
        return WideConfig

    def train_batches(self, epoch):
        return self.context.shard((self.x[:64], self.y[:64]), self.config.batch_size)

    def loss(self, batch):
        now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        before, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (now + LIMIT, hard))
        try:
            torch.empty(self.config.width * len(batch[0]) * UNIT, dtype=torch.uint8)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (before, hard))
        return super().loss(batch)

    def evaluate(self):
        return {**super().evaluate(), "val/latency_ms": float(self.config.width)}


class SplitWide(Wide):
    """The same, with smaller micro-batches for a trial that runs out of memory."""

    @classmethod
    def config_class(cls):
        return SplitWideConfig
