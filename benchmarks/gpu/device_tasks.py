"""Tasks of the benchmarks of a device: a small network of common layers, and the same with a fault."""

import ctypes
from typing import Any

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.nn import functional

from searchlight.trainables.task import Task, TaskConfig, searchable

SYMBOLS, LENGTH = 64, 32
ILLEGAL_READ = b"""
.version 7.0
.target sm_50
.address_size 64
.visible .entry illegal_read()
{
    .reg .b64 %address;
    .reg .b32 %value;
    mov.u64 %address, 16;
    ld.volatile.global.u32 %value, [%address];
    ret;
}
"""


class DeviceConfig(TaskConfig):
    lr: float = searchable(1e-3, low=1e-4, high=1e-1, log=True)
    epochs: PositiveInt = 2
    samples: PositiveInt = 128
    width: PositiveInt = 64
    compiled: bool = False
    fault: str = Field("", description="out of memory in forward, backward, optimizer or evaluate; assert; illegal")


class Network(nn.Module):
    """An embedding, a convolution, batch norm and dropout: layers whose backward passes add in any order on a GPU."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(SYMBOLS, width)
        self.convolution = nn.Conv1d(width, width, 3, padding=1)
        self.norm, self.dropout = nn.BatchNorm1d(width), nn.Dropout(0.1)
        self.out = nn.Linear(width, SYMBOLS)

    def forward(self, symbols: Tensor) -> Tensor:
        hidden = self.embedding(symbols).transpose(1, 2)
        return self.out(self.dropout(functional.relu(self.norm(self.convolution(hidden)))).mean(2))


class DeviceTask(Task[DeviceConfig]):
    """A classification of random sequences by their first symbol."""

    objective, mode = "val/loss", "min"

    def build(self) -> None:
        self.symbols = torch.randint(SYMBOLS, (self.config.samples, LENGTH), generator=torch.Generator().manual_seed(0))
        self.model = Network(self.config.width)
        if self.config.compiled:
            self.model.compile()
        self.modules = {"model": self.model}
        self.optimizers = {"model": torch.optim.AdamW(self.model.parameters(), lr=self.config.lr)}

    def train_batches(self, epoch: int) -> Any:
        return self.context.shard(self.symbols[self.config.samples // 4 :], batch_size=16)

    def loss(self, batch: Tensor) -> tuple[Tensor, int]:
        return functional.cross_entropy(self.model(batch), batch[:, 0]), len(batch)

    def evaluate(self) -> dict[str, float]:
        symbols = self.symbols[: self.config.samples // 4].to(self.context.device)
        return {"val/loss": functional.cross_entropy(self.model(symbols), symbols[:, 0]).item()}


class _ExhaustedBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return values.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        exhaust_memory(gradient.device)
        return gradient


class FaultyDeviceTask(DeviceTask):
    """The same task with the fault that its config names."""

    def build(self) -> None:
        super().build()
        if self.config.fault == "optimizer":
            self.optimizers["model"].register_step_pre_hook(lambda *_: exhaust_memory(self.context.device))

    def loss(self, batch: Tensor) -> tuple[Tensor, int]:
        fault, device = self.config.fault, self.context.device
        if fault == "forward":
            exhaust_memory(device)
        logits = self.model(batch)
        if fault == "backward":
            logits = _ExhaustedBackward.apply(logits)
        if fault == "assert":
            logits = logits + functional.embedding(batch + SYMBOLS, self.model.embedding.weight).mean()
        if fault == "illegal":
            read_illegal_address(device)
        return functional.cross_entropy(logits, batch[:, 0]), len(batch)

    def evaluate(self) -> dict[str, float]:
        if self.config.fault == "evaluate":
            exhaust_memory(self.context.device)
        return super().evaluate()


def exhaust_memory(device: torch.device) -> None:
    """Allocate until the device has no memory left, as a model that is too large does."""
    if device.type != "cuda":
        torch.empty(2**60, dtype=torch.uint8)  # at once, since a CPU's memory is that of other programs, too
    parts = []
    while True:
        parts.append(torch.empty(2**30, dtype=torch.uint8, device=device))


def read_illegal_address(device: torch.device) -> None:
    """Run a kernel that reads an address that the GPU does not have, as a user's own kernel may.

    PyTorch's kernels check their addresses, so this one is loaded by the driver's library.
    """
    torch.zeros(1, device=device)  # makes the GPU's context the one of this thread
    driver, module, kernel = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_void_p()
    stream = ctypes.c_void_p(torch.cuda.current_stream(device).cuda_stream)
    for status in (
        driver.cuModuleLoadData(ctypes.byref(module), ILLEGAL_READ),
        driver.cuModuleGetFunction(ctypes.byref(kernel), module, b"illegal_read"),
        driver.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, None, None),
    ):
        if status:
            raise RuntimeError(f"the driver must run a kernel, but answers {status}")
    torch.cuda.synchronize(device)
