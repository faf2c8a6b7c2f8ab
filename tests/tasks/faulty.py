"""The toy, with what ends a worker in it."""

import os
import resource
import time
from pathlib import Path

import torch
from toy import Toy, ToyConfig


class FaultyConfig(ToyConfig):
    fault: str = "none"


class Faulty(Toy):
    config: FaultyConfig

    @classmethod
    def config_class(cls):
        return FaultyConfig

    def train_batches(self, epoch):
        self._epoch = epoch
        return super().train_batches(epoch)

    def loss(self, batch):
        if self._epoch:  # in its second epoch
            self._fail()
        return super().loss(batch)

    def build(self):
        self._use_device()
        super().build()

    def _use_device(self):
        if getattr(torch, "is_asserted", False):  # no trial of this process can use the device any more
            raise torch.AcceleratorError("CUDA error: device-side assert triggered\nIt might be reported elsewhere.")

    def evaluate(self):
        self._use_device()
        return {**super().evaluate(), "pid": os.getpid()}

    def _fail(self):
        if self.config.fault == "exit":
            os._exit(7)
        if self.config.fault == "assert":  # a kernel, whose error is raised later unless its launch is synchronous
            torch.is_asserted = True
            if os.environ.get("CUDA_LAUNCH_BLOCKING") == "1":
                self._use_device()
        if self.config.fault == "hang":
            time.sleep(1000)
        if self.config.fault == "memory":
            taken, _ = resource.getrlimit(resource.RLIMIT_AS)
            now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (now + 2**30, resource.RLIM_INFINITY))
            try:
                self.hoard = [torch.ones(2**26) for _ in range(64)]  # a quarter of a GiB each
            finally:
                resource.setrlimit(resource.RLIMIT_AS, (taken, resource.RLIM_INFINITY))
