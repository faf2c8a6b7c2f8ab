"""The task `lm`: a language model of bytes, whose weights may be sharded over the workers of a trial."""

import functools
import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from searchlight.models.lm.transformer import Transformer, count_flops
from searchlight.trainables.lm import data
from searchlight.trainables.lm.config import LmConfig
from searchlight.trainables.precision import Precision
from searchlight.trainables.task import Task
from searchlight.trainables.update import UpdateReport
from searchlight.trainables.update.lr_schedules import warmup_cosine

TESTED = 64  # sequences of an evaluation batch
# By GPU name: peak FLOP/s of dense matrix products in half precision with fp32 sums, those in fp32 without TF32, and
# multiprocessors, of the models with the fastest interface. Not all were compared with data sheets: MFU is rough.
PEAKS: Mapping[str, tuple[float, float, int]] = {
    "B200": (2250e12, 75e12, 148),
    "GH200": (989e12, 67e12, 132),
    "H200": (989e12, 67e12, 132),
    "H100": (989e12, 67e12, 132),
    "A100": (312e12, 19.5e12, 108),
    "V100": (125e12, 15.7e12, 80),
    "L40S": (362e12, 91.6e12, 142),
    "L4": (121e12, 30.3e12, 58),
    "A10G": (70e12, 35e12, 80),
    "A10": (125e12, 31.2e12, 72),
    "T4": (65e12, 8.1e12, 40),
    "A6000": (155e12, 38.7e12, 84),
    "5090": (210e12, 105e12, 170),
    "4090": (165e12, 82.6e12, 128),
    "3090": (71e12, 35.6e12, 82),
}


class LmTask(Task[LmConfig]):
    """A task that learns to predict the next byte of a text and evaluates on held-out bytes."""

    objective = "val/bpb"
    units: ClassVar[Mapping[str, str]] = {
        "val/bpb": "bits per byte",
        "time/tokens_per_s": "bytes per second",
        "time/mfu": "share of the peak of all GPUs",
    }

    @classmethod
    def prepare(cls, config: LmConfig, folder: Path) -> None:
        if config.data == data.TEXT:
            data.write_corpus(folder)

    def build(self) -> None:
        config = self.config
        self.corpus = self.context.cache(f"corpus {config.data}", lambda: data.read(config.data, self.files))
        name = config.data if config.data == data.TEXT else Path(config.data).name
        self.dataset(name, digest=self.corpus.digest, source=config.data)
        self.dataset(name, digest=self.corpus.digest, source=config.data, use="evaluation")
        self.model = Transformer(config.width, config.depth, config.heads, config.recompute, config.base_width)
        self.flops = count_flops(self.model, config.length)
        if config.compiled:
            for block in self.model.blocks:
                block.compile()
        if config.shard != "none":
            self._shard()
        self.modules = {"model": self.model}
        self._create_optimizers()
        self.began, self.seen = time.perf_counter(), 0.0

    def _shard(self) -> None:
        from torch.distributed.fsdp import fully_shard  # a slow import that only sharded trials need

        mesh = self.context.mesh if self.config.shard == "full" else self.context.hybrid_mesh
        for block in self.model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(self.model, mesh=mesh)

    def _create_optimizers(self) -> None:
        config = self.config
        matrices = [parameter for parameter in self.model.blocks.parameters() if parameter.dim() > 1]
        others = [p for p in self.model.parameters() if not any(p is matrix for matrix in matrices)]
        muon = functools.partial(torch.optim.Muon, adjust_lr_fn="match_rms_adamw")
        adamw = functools.partial(torch.optim.AdamW, betas=(0.9, 0.99), fused=True)
        create: Any = muon if config.optimizer == "muon" else adamw
        factor = scale_matrix_lr(config)
        self.optimizers = {  # the decay of an update is the product of both, which does not depend on the width
            "matrices": create(matrices, lr=config.lr * factor, weight_decay=config.weight_decay / factor),
            "embedding": adamw(others, lr=config.embedding_lr, weight_decay=0.0),
        }
        updates = config.total_updates(self.context.micro_batches(config.samples, config.batch_size))
        schedule = functools.partial(warmup_cosine, updates=updates, warmup=config.warmup)
        self.schedulers = [LambdaLR(optimizer, schedule) for optimizer in self.optimizers.values()]

    def train_batches(self, epoch: int) -> Iterator[Tensor]:
        """Yield bytes (B, T + 1), of which each is the target of the byte before it."""
        self.began, self.seen = time.perf_counter(), 0.0
        config, context = self.config, self.context
        last = len(self.corpus.train) - config.length
        starts = torch.randint(last, (config.samples,), generator=context.generator)
        for some in context.shard(starts, config.batch_size, shuffle=False):
            yield self.corpus.train[some[:, None] + torch.arange(config.length + 1)]

    def loss(self, batch: Tensor) -> tuple[Tensor, int]:
        each, normalizers = self._measure(batch)
        loss = each.mean()
        self.log("bpb", loss / math.log(2), each.numel())
        if self.config.z_loss:
            loss = loss + self.config.z_loss * normalizers.square().mean()
        return loss, each.numel()

    def after_update(self, report: UpdateReport) -> None:
        self.seen += report.weight

    def evaluate(self) -> dict[str, float | tuple[float, float]]:
        seconds = time.perf_counter() - self.began
        length, test = self.config.length, self.corpus.test
        count = (len(test) - 1) // length
        starts = torch.linspace(0, count - 1, min(count, self.config.test_samples)).long() * length
        totals, weight = list[Tensor](), 0
        for some in self.context.shard(starts, TESTED, shuffle=False):
            windows = test[some[:, None] + torch.arange(length + 1)].to(self.context.device)
            loss, _ = self._measure(windows)
            totals.append(loss.sum())
            weight += loss.numel()
        total = sum(torch.stack(totals).tolist()) if totals else math.nan  # the only wait for the GPU
        report: dict[str, float | tuple[float, float]] = {
            "val/bpb": (total / max(weight, 1) / math.log(2), weight),
            "val/bpb_baseline": self.corpus.baseline,
        }
        if self.seen:
            report["time/tokens_per_s"] = self.seen / seconds
            peak = get_peak(self.context.device, self.precision)
            if peak is not None:
                report["time/mfu"] = self.seen / seconds * self.flops / (peak * self.context.world_size)
        return report

    def example(self) -> Tensor:
        return self.corpus.test[: self.config.length][None]

    def _measure(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss of each target in nats, and the logarithm of its normalizer, both (B, T)."""
        logits = self.model(batch[:, :-1]).float()
        normalizers = logits.logsumexp(-1)
        return normalizers - logits.gather(-1, batch[:, 1:, None].long())[..., 0], normalizers


def scale_matrix_lr(config: LmConfig) -> float:
    """Return the factor of muP for the learning rate of the matrices of blocks, 1 without muP.

    A step should change each layer's output by the same amount at each width. An entry of AdamW's step has the size of
    the learning rate, and all entries may add up, so that the rate falls with the width. Muon's steps are orthogonal,
    and `match_rms_adamw` multiplies them by the root of the width.
    """
    growth = config.width / (config.base_width or config.width)
    return float(growth ** (-0.5 if config.optimizer == "muon" else -1.0))


def get_peak(device: torch.device, precision: Precision) -> float | None:
    """Return the peak FLOP/s of `device` in `precision`, or None if it is unknown.

    A slice of a GPU (MIG) and a model with fewer multiprocessors have their share of the peak.
    """
    if device.type != "cuda":
        return None
    properties = torch.cuda.get_device_properties(device)
    words = properties.name.replace("-", " ").split()
    for name, (half, full, processors) in PEAKS.items():
        if name in words:
            return (half if precision.mode.autocast else full) * properties.multi_processor_count / processors
    return None
