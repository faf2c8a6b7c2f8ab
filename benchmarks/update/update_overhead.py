"""Measure the time of one update, and compare it with a hand-written loop and with other trainers.

Every loop trains the same model on the same batches with a fused AdamW, one micro-batch per update. The hand-written
loop reads neither loss nor gradient norm; Searchlight reports both. HF Trainer only offers whole runs over a data
loader, so its peer is a hand-written loop over such a loader. A loop whose matrix products are not in the precision of
its row is listed but not timed.

The figure is the least of many rounds in which the loops take turns. It is the CPU time of the process with one thread,
or wall time on a GPU. The hand-written loop runs twice, and the time that its second copy "adds" is the noise.

    pip install ".[bench]"
    python benchmarks/update/update_overhead.py [--seconds 14] [--models tiny,block,lm] [--rows plain,clip,EMA,fp16]
                                                [--device cuda]
"""

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a clone need not be installed

from benchmarks.recording import create_parser, print_result
from benchmarks.update.reference_trainers import (
    VERSIONS,
    Fabric,
    TrainerCallback,
    create_accelerator,
    create_hf_trainer,
    default_data_collator,
)
from searchlight.models.lm.transformer import SYMBOLS, Transformer
from searchlight.trainables.update import Ema, Updater

MAX_NORM, DECAY = 1.0, 0.999
RAW, RAW_LOADER, HF = "raw", "raw, data loader", "HF Trainer"
MIN_ROUNDS = 6

Batch = dict[str, Tensor]
Step = Callable[[Batch], object]


class Clock:
    """Seconds per update, from the end of the `warmup`-th update to the end of the last one.

    They are CPU time on a CPU, and wall time on a GPU. A GPU works behind the calling thread, so the clock waits for it
    at both ends, but not between updates.
    """

    def __init__(self, warmup: int, timed: int, device: torch.device) -> None:
        self.warmup, self.updates = warmup, warmup + timed
        self.device = device
        self.count = 0
        self.start = self.end = math.nan

    def tick(self) -> None:
        self.count += 1
        if self.count == self.warmup:
            self.start = self._read()
        elif self.count == self.updates:
            self.end = self._read()

    def _read(self) -> float:
        if self.device.type == "cpu":
            return time.process_time()
        torch.cuda.synchronize(self.device)
        return time.perf_counter()

    @property
    def seconds(self) -> float:
        return (self.end - self.start) / (self.updates - self.warmup)


Loop = Callable[[Clock], None]


def draw_normal(count: int, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randn(count, *shape, generator=generator)


def draw_bytes(count: int, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randint(SYMBOLS, (count, *shape), generator=generator)


class Tiny(nn.Module):
    shape = (32,), (4,)
    draw = staticmethod(draw_normal)

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": functional.mse_loss(self.net(x), labels)}


class Block(nn.Module):
    """A transformer block: 256 wide, 8 heads, 64 positions."""

    shape = (64, 256), (64, 256)
    draw = staticmethod(draw_normal)

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(256), nn.LayerNorm(256)
        self.qkv, self.out = nn.Linear(256, 768), nn.Linear(256, 256)
        self.mlp = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, 8, 32).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, 256))
        return {"loss": functional.mse_loss(x + self.mlp(self.norm2(x)), labels)}


class Lm(nn.Module):
    """The model of the task `lm`, with its defaults: 2 blocks, 96 wide, 3 heads, 128 bytes."""

    shape = (128,), (128,)
    draw = staticmethod(draw_bytes)

    def __init__(self) -> None:
        super().__init__()
        self.net = Transformer(96, 2, 3)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": functional.cross_entropy(self.net(x).flatten(0, 1), labels.flatten())}


@dataclass(frozen=True)
class Subject:
    """A model to train, and the number of timed updates per round."""

    model: type[Tiny] | type[Block] | type[Lm]
    batch_size: int
    warmup: int
    timed: int


@dataclass(frozen=True)
class Row:
    clip: bool = False
    ema: bool = False
    precision: str = "fp32"


SUBJECTS = {"tiny": Subject(Tiny, 16, 20, 300), "block": Subject(Block, 8, 1, 3), "lm": Subject(Lm, 16, 1, 3)}
ROWS = {
    "plain": Row(),
    "clip": Row(clip=True),
    "EMA": Row(ema=True),
    "fp16": Row(precision="fp16"),
}


def get_device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


def build_adamw(model: nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


def build_average(model: nn.Module) -> AveragedModel:
    """Create torch's EMA, for trainers that have none."""
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(DECAY))


def build_raw(model: nn.Module, row: Row) -> Step:
    if row.precision == "fp16":
        return build_raw_fp16(model)
    optimizer, parameters = build_adamw(model), list(model.parameters())
    shadow = [parameter.detach().clone() for parameter in parameters]

    def step(batch: Batch) -> None:
        optimizer.zero_grad(set_to_none=True)
        model(**batch)["loss"].backward()
        if row.clip:
            nn.utils.clip_grad_norm_(parameters, MAX_NORM)
        optimizer.step()
        if row.ema:
            with torch.no_grad():
                torch._foreach_lerp_(shadow, parameters, 1 - DECAY)

    return step


def build_raw_fp16(model: nn.Module) -> Step:
    device = get_device(model).type
    optimizer, scaler = build_adamw(model), torch.amp.GradScaler(device)

    def step(batch: Batch) -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, dtype=torch.float16):
            loss = model(**batch)["loss"]
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def build_searchlight(model: nn.Module, row: Row) -> Step:
    updater = Updater(
        {"model": build_adamw(model)},
        precision=row.precision,
        device=get_device(model),
        max_grad_norm=MAX_NORM if row.clip else None,
        ema=Ema(dict(model.named_parameters()), DECAY) if row.ema else None,
    )

    def loss(batch: Batch) -> tuple[Tensor, int]:
        return model(**batch)["loss"], len(batch["x"])

    return lambda batch: updater.update([batch], loss)


def build_accelerate(model: nn.Module, row: Row) -> Step:
    helper = create_accelerator(
        cpu=get_device(model).type == "cpu",
        mixed_precision={"fp32": "no"}.get(row.precision, row.precision),
        gradient_accumulation_steps=1,
    )
    average = build_average(model) if row.ema else None
    model, optimizer = helper.prepare(model, build_adamw(model))

    def step(batch: Batch) -> None:
        with helper.accumulate(model):
            helper.backward(model(**batch)["loss"])
            if row.clip and helper.sync_gradients:
                helper.clip_grad_norm_(model.parameters(), MAX_NORM)
            optimizer.step()
            optimizer.zero_grad()
        if average is not None:
            average.update_parameters(model)

    return step


def build_fabric(model: nn.Module, row: Row) -> Step:
    precision = "16-mixed" if row.precision == "fp16" else "32-true"
    helper = Fabric(accelerator=get_device(model).type, devices=1, precision=precision)
    average = build_average(model) if row.ema else None
    wrapped, optimizer = helper.setup(model, build_adamw(model))

    def step(batch: Batch) -> None:
        optimizer.zero_grad()
        helper.backward(wrapped(**batch)["loss"])
        if row.clip:
            helper.clip_gradients(wrapped, optimizer, max_norm=MAX_NORM)
        optimizer.step()
        if average is not None:
            average.update_parameters(model)

    return step


class Ticking(TrainerCallback):
    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def on_step_end(self, *_: object, **__: object) -> None:
        self.clock.tick()


def build_hf_loop(model: nn.Module, row: Row, samples: list[Batch], batch_size: int) -> Loop:
    def loop(clock: Clock) -> None:
        create_hf_trainer(
            model,
            samples,
            build_adamw(model),
            callbacks=[Ticking(clock)],
            use_cpu=get_device(model).type == "cpu",
            fp16=row.precision == "fp16",
            max_grad_norm=MAX_NORM if row.clip else 0.0,
            max_steps=clock.updates,
            per_device_train_batch_size=batch_size,
        ).train()

    return loop


@dataclass(frozen=True)
class MovedBatches:
    """The batches of a loader on a device. HF Trainer moves its own."""

    loader: Iterable[Batch]
    device: torch.device

    def __iter__(self) -> Iterator[Batch]:
        for batch in self.loader:
            yield {name: value.to(self.device) for name, value in batch.items()}


def repeat(batches: Iterable[Batch], step: Step) -> Loop:
    """Create a loop of `step` over as many of `batches` as the clock has updates."""

    def loop(clock: Clock) -> None:
        for _, batch in zip(range(clock.updates), batches, strict=False):
            step(batch)
            clock.tick()

    return loop


def build_contenders(subject: Subject, row: Row, device: torch.device) -> dict[str, tuple[nn.Module, Loop]]:
    """Build the loops of a row by name, each with its model."""
    generator = torch.Generator().manual_seed(0)
    count = subject.batch_size * (subject.warmup + subject.timed)
    x, labels = (subject.model.draw(count, shape, generator) for shape in subject.model.shape)
    samples = [{"x": x[i], "labels": labels[i]} for i in range(count)]
    parts = zip(x.to(device).split(subject.batch_size), labels.to(device).split(subject.batch_size), strict=True)
    batches = [{"x": part, "labels": target} for part, target in parts]
    loader = DataLoader(samples, subject.batch_size, shuffle=True, collate_fn=default_data_collator)
    steps = {
        **{RAW: build_raw, "raw, again": build_raw, "Searchlight": build_searchlight},
        **{"Accelerate": build_accelerate, "Fabric": build_fabric},
    }
    made: dict[str, tuple[nn.Module, Loop]] = {}
    for name, make in steps.items():
        model = subject.model().to(device)
        made[name] = model, repeat(batches, make(model, row))
    if not row.ema:  # HF Trainer has none
        model, peer = subject.model().to(device), subject.model().to(device)
        made[RAW_LOADER] = model, repeat(MovedBatches(loader, device), build_raw(model, row))
        made[HF] = peer, build_hf_loop(peer, row, samples, subject.batch_size)
    return made


def find_product_dtype(model: nn.Module, loop: Loop) -> str:
    """Run `loop` once and return the dtype of its matrix products, whatever its settings are."""
    seen: list[torch.dtype] = []
    first = next(module for module in model.modules() if isinstance(module, nn.Linear))
    hook = first.register_forward_hook(lambda _, __, product: seen.append(product.dtype))
    loop(Clock(1, 1, get_device(model)))
    hook.remove()
    return str(seen[0]).removeprefix("torch.")


def measure(loops: dict[str, Loop], subject: Subject, seconds: float, device: torch.device) -> dict[str, float]:
    """Measure the least seconds per update of each loop. Loops take turns, so that other load affects all."""
    best = dict.fromkeys(loops, math.inf)
    end, rounds = time.monotonic() + seconds, 0
    while rounds < MIN_ROUNDS or time.monotonic() < end:
        for name, loop in loops.items():
            clock = Clock(subject.warmup, subject.timed, device)
            loop(clock)
            best[name] = min(best[name], clock.seconds)
        rounds += 1
    return best


def compare(subject: Subject, row: Row, seconds: float, device: torch.device) -> Iterator[dict[str, Any]]:
    """Yield the microseconds of an update of each loop, and what it adds to those of its base."""
    loops: dict[str, Loop] = {}
    wanted = {"fp32": "float32", "fp16": "float16"}[row.precision]
    for name, (model, loop) in build_contenders(subject, row, device).items():
        dtype = find_product_dtype(model, loop)
        if dtype == wanted:
            loops[name] = loop
        else:
            yield {"loop": name, "products": dtype}
    if HF not in loops:
        loops.pop(RAW_LOADER, None)
    best = measure(loops, subject, seconds, device)
    for name, least in best.items():
        base = best[RAW_LOADER if name in (HF, RAW_LOADER) else RAW]
        added = {"added": 1e6 * (least - base), "added_share": 100 * (least / base - 1)}
        yield {
            "loop": name,
            "cpu" if device.type == "cpu" else "wall": 1e6 * least,
            **({} if name in (RAW, RAW_LOADER) else added),
        }


def main() -> None:
    parser = create_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=14, help=f"for each row, of at least {MIN_ROUNDS} rounds")
    parser.add_argument("--models", default="tiny,block,lm", help="which to train")
    parser.add_argument("--rows", default=",".join(ROWS), help="which features to add")
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    parser.add_argument("--small", action="store_true", help="the tiny model alone, for three seconds")
    given = parser.parse_args()
    if given.small:
        given.models, given.rows, given.seconds = "tiny", "plain", 3.0
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = [
        {"model": model, "row": row, **found}
        for model, row in product(given.models.split(","), given.rows.split(","))
        for found in compare(SUBJECTS[model], ROWS[row], given.seconds, given.device)
    ]
    print_result({"updates": rows}, {"cpu": "us", "wall": "us", "added": "us", "added_share": "%"}, VERSIONS)


if __name__ == "__main__":
    main()
