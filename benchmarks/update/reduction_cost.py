"""Measure the wall time of a window of 4 micro-batches on two ranks, for Searchlight and for DDP.

Searchlight gets the whole window and runs one reduction at its end. DDP runs as its documentation advises: with
`no_sync` around all micro-batches but the last one, and with gradients that are views of its buckets. It runs once
as it is. It runs once more with the other work of Searchlight's update: that checks the gradient norm before the step,
and reports it and the mean loss over both ranks. All sides start from the same weights, apply the same plain SGD, and
must end at the same weights.

There are two processes of one thread each over gloo. The sides take turns, and the slower rank of a window counts.

    python benchmarks/update/reduction_cost.py [--models tiny,20M]
"""

import contextlib
import gc
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, multiprocessing, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a clone need not be installed

from benchmarks.recording import Row, create_parser, print_result
from searchlight.trainables.update import Updater

RANKS, SIZE, BATCH_SIZE, LR, WARMUP = 2, 4, 8, 1e-2, 3
OURS = "Searchlight"  # the last side

Batch = tuple[Tensor, Tensor]
Side = Callable[[], object]


@dataclass(frozen=True)
class Subject:
    """An MLP of `layers` layers of `width` units."""

    width: int
    layers: int
    repetitions: int

    def model(self) -> nn.Sequential:
        torch.manual_seed(0)
        parts = [part for _ in range(self.layers) for part in (nn.Linear(self.width, self.width), nn.ReLU())]
        return nn.Sequential(*parts[:-1])


SUBJECTS = {"tiny": Subject(32, 3, 300), "20M": Subject(1024, 19, 30)}


def build_ddp(model: nn.Module, window: list[Batch], views: bool = True, checked: bool = False) -> Side:
    parallel = DistributedDataParallel(model, gradient_as_bucket_view=views)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)

    def side() -> None:
        total = torch.zeros(())
        for index, (x, y) in enumerate(window):
            with parallel.no_sync() if index + 1 < SIZE else contextlib.nullcontext():
                loss = functional.mse_loss(parallel(x), y) / SIZE
                loss.backward()
            total += loss.detach()
        if not checked or check_finite(total, model):
            optimizer.step()
        optimizer.zero_grad()

    return side


def check_finite(loss: Tensor, model: nn.Module) -> bool:
    """Reduce the loss over both ranks. Return whether it and the gradient norm are finite."""
    dist.all_reduce(loss)
    norm = nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()])
    return all(map(math.isfinite, torch.stack([norm, loss]).tolist()))


def build_searchlight(model: nn.Module, window: list[Batch]) -> Side:
    updater = Updater({"model": torch.optim.SGD(model.parameters(), lr=LR)})

    def loss(batch: Batch) -> tuple[Tensor, int]:
        x, y = batch
        return functional.mse_loss(model(x), y), len(x)

    return lambda: updater.update(window, loss)


def check_weights(models: list[nn.Module]) -> None:
    """Assert that all models have the same weights."""
    first, *others = (nn.utils.parameters_to_vector(model.parameters()) for model in models)
    for other in others:
        torch.testing.assert_close(other, first, rtol=1e-4, atol=1e-6)


def measure(sides: dict[str, Side], repetitions: int) -> Tensor:
    """Measure the seconds of the slower rank, (repetitions, sides)."""
    seconds = torch.zeros(repetitions, len(sides), dtype=torch.float64)
    for repetition in range(-WARMUP, repetitions):
        for column, side in enumerate(sides.values()):
            dist.barrier()
            start = time.perf_counter()
            side()
            if repetition >= 0:
                seconds[repetition, column] = time.perf_counter() - start
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    return seconds


def describe(sides: dict[str, Side], seconds: Tensor) -> Iterator[Row]:
    """Yield the milliseconds of each side, and how many times as long ours takes."""
    least, medians = ((1e3 * column).tolist() for column in (seconds.amin(0), seconds.quantile(0.5, 0)))
    for name, low, median in zip(sides, least, medians, strict=True):
        ratios = {"ours_to_least": least[-1] / low, "ours_to_median": medians[-1] / median}
        yield {"side": name, "least": low, "median": median, **({} if name == OURS else ratios)}


def run_rank(rank: int, store: str, subjects: list[str]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    for name in subjects:
        subject = SUBJECTS[name]
        generator = torch.Generator().manual_seed(1 + rank)
        data = torch.randn(SIZE, 2, BATCH_SIZE, subject.width, generator=generator)
        window = [(x, y) for x, y in data]
        models = [subject.model() for _ in range(4)]
        sides = {
            "DDP": build_ddp(models[0], window, views=False),
            "DDP, bucket views": build_ddp(models[1], window),
            "DDP, norm and loss": build_ddp(models[2], window, checked=True),
            OURS: build_searchlight(models[3], window),
        }
        seconds = measure(sides, subject.repetitions)
        check_weights(models)
        if rank == 0:
            count = sum(parameter.numel() for parameter in models[0].parameters())
            about = {"model": name, "parameters": count, "windows": subject.repetitions}
            rows = [{**about, **row} for row in describe(sides, seconds)]
            Path(f"{store}-{name}.json").write_text(json.dumps(rows))
        del models, sides  # a DDP that outlives its process group aborts the process now and then
        gc.collect()
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    parser = create_parser(__doc__)
    parser.add_argument("--models", default="tiny,20M", help="which to train")
    given = parser.parse_args()
    names = given.models.split(",")
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(run_rank, (f"{folder}/store", names), nprocs=RANKS)
        rows = [row for name in names for row in json.loads(Path(f"{folder}/store-{name}.json").read_text())]
    about = f"torch {torch.__version__}, windows of {SIZE} x {BATCH_SIZE} samples"
    print_result({"windows": rows}, {"least": "ms", "median": "ms"}, about)


if __name__ == "__main__":
    main()
