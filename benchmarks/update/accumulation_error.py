"""Measure the distance of an accumulated gradient from the gradient of the same samples in one batch.

The task labels tokens. Some tokens have no label, so micro-batches differ in their numbers of labels. The true
gradient is that of the mean over all labels of a window, in fp64 and in one batch. The error of the gradient g that the
optimizer gets is ||g - truth|| / ||truth||. A window has 4 micro-batches, and an epoch has 10:

    equal        the first window of the first epoch: every micro-batch has the same number of labels
    ragged       the second window: 32, 8, 20 and 12 labels in its micro-batches
    tail         the rest of the epoch: 2 micro-batches, again with equal numbers of labels
    next epoch   the first window of the second epoch, the same samples as in `equal`

Each trainer accumulates as its documentation says. All have the same model, samples and order.

    pip install ".[bench]"
    python benchmarks/update/accumulation_error.py
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a clone need not be installed

from benchmarks.recording import create_parser, print_result
from benchmarks.update.reference_trainers import VERSIONS, create_accelerator, create_hf_trainer, lightning
from searchlight.trainables.update import Updater, windows

SIZE, MICRO_BATCHES, EPOCHS, SAMPLES, TOKENS, CLASSES = 4, 10, 2, 4, 8, 5
LABELS = [32, 32, 32, 32, 32, 8, 20, 12, 32, 32]  # per micro-batch, of 4 samples with 8 tokens each
IGNORED = -100
COLUMNS = {"equal": (0, 3), "ragged": (0, 7), "tail": (0, 9), "next_epoch": (1, 3)}  # epoch and last micro-batch

Batch = dict[str, Tensor]


class Tagger(nn.Module):
    """A model that labels tokens. It counts its forward passes, to identify each gradient by the last micro-batch."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, CLASSES))
        self.passes = 0

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": self.cross_entropy(input_ids, labels, "mean")}

    def cross_entropy(self, input_ids: Tensor, labels: Tensor, reduction: str) -> Tensor:
        self.passes += 1
        logits = self.net(input_ids).flatten(0, 1)
        return functional.cross_entropy(logits, labels.flatten(), ignore_index=IGNORED, reduction=reduction)


class CountingTagger(Tagger):
    """A model that normalizes by the label count of the window that HF Trainer passes, as transformers' models do."""

    def forward(self, input_ids: Tensor, labels: Tensor, **kwargs: Any) -> dict[str, Tensor]:
        return {"loss": self.cross_entropy(input_ids, labels, "sum") / kwargs["num_items_in_batch"]}


class Recorder(torch.optim.Optimizer):
    """An optimizer that records each gradient and changes no weights, so that all gradients are of the same model.

    A hook before the step would run too early: Lightning runs the last backward pass in the optimizer's closure.
    """

    def __init__(self, model: Tagger) -> None:
        super().__init__(model.parameters(), {"lr": 0.1})
        self.model = model
        self.gradients: dict[tuple[int, int], Tensor] = {}

    def step(self, closure: Callable[[], Any] | None = None) -> None:
        if closure is not None:
            with torch.enable_grad():
                closure()
        self.gradients[divmod(self.model.passes - 1, MICRO_BATCHES)] = get_gradient(self.model)


def get_gradient(model: nn.Module) -> Tensor:
    return torch.cat([parameter.grad.flatten().double() for parameter in model.parameters()])


def draw_samples() -> list[Batch]:
    generator = torch.Generator().manual_seed(1)
    shape = MICRO_BATCHES, SAMPLES * TOKENS
    input_ids, labels = (torch.randint(high, shape, generator=generator) for high in (50, CLASSES))
    for row, count in zip(labels, LABELS, strict=True):
        row[torch.randperm(len(row), generator=generator)[count:]] = IGNORED
    pairs = zip(input_ids.view(-1, TOKENS), labels.view(-1, TOKENS), strict=True)
    return [{"input_ids": tokens, "labels": label} for tokens, label in pairs]


class Stream(IterableDataset):
    """The samples as a dataset of unknown length."""

    def __iter__(self) -> Iterator[Batch]:
        return iter(draw_samples())


def build_loader() -> DataLoader[Batch]:
    return DataLoader(draw_samples(), batch_size=SAMPLES)


def compute_truth(last: int) -> Tensor:
    """Return the gradient of the window that ends with micro-batch `last`, in fp64 and in one batch."""
    first = last - last % SIZE
    window = draw_samples()[first * SAMPLES : (last + 1) * SAMPLES]
    model = Tagger().double()
    model(**{key: torch.stack([sample[key] for sample in window]) for key in window[0]})["loss"].backward()
    return get_gradient(model)


def train_with_searchlight(precision: str) -> Recorder:
    model = Tagger()
    recorder = Recorder(model)
    updater = Updater({"model": recorder}, precision=precision)

    def loss(batch: Batch) -> tuple[Tensor, Tensor]:
        return model(**batch)["loss"], batch["labels"].ne(IGNORED).sum()

    for _ in range(EPOCHS):
        for window in windows(build_loader(), SIZE):
            updater.update(window, loss)
    return recorder


def train_with_accelerate() -> Recorder:
    helper = create_accelerator(gradient_accumulation_steps=SIZE)
    recorder = Recorder(Tagger())
    model, optimizer, batches = helper.prepare(recorder.model, recorder, build_loader())
    for _ in range(EPOCHS):
        for batch in batches:
            with helper.accumulate(model):
                helper.backward(model(**batch)["loss"])
                optimizer.step()
                optimizer.zero_grad()
    return recorder


def train_with_accelerate_by_hand() -> Recorder:
    """Train as Accelerate's guide says for samples of variable size: fetch a window, count labels, sum losses."""
    helper = create_accelerator(gradient_accumulation_steps=SIZE)
    recorder = Recorder(Tagger())
    model, optimizer, batches = helper.prepare(recorder.model, recorder, build_loader())
    for _ in range(EPOCHS):
        iterator = iter(batches)
        for start in range(0, len(batches), SIZE):
            window = [next(iterator) for _ in range(min(SIZE, len(batches) - start))]
            count = helper.gather(sum(batch["labels"].ne(IGNORED).sum() for batch in window)).sum().item()
            for batch in window:
                loss = model.cross_entropy(**batch, reduction="sum")
                helper.backward(loss * SIZE * helper.num_processes / count)
            optimizer.step()
            optimizer.zero_grad()
    return recorder


class TaggerModule(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.tagger = Tagger()
        self.recorder = Recorder(self.tagger)

    def training_step(self, batch: Batch, _: int) -> Tensor:
        return self.tagger(**batch)["loss"]

    def configure_optimizers(self) -> Recorder:
        return self.recorder


def train_with_lightning() -> Recorder:
    module = TaggerModule()
    lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=EPOCHS,
        accumulate_grad_batches=SIZE,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
    ).fit(module, build_loader())
    return module.recorder


def train_with_hf(model: Tagger, stream: bool) -> Recorder:
    recorder = Recorder(model)
    windows_per_epoch = -(-MICRO_BATCHES // SIZE)
    create_hf_trainer(
        model,
        Stream() if stream else draw_samples(),
        recorder,
        gradient_accumulation_steps=SIZE,
        max_steps=EPOCHS * windows_per_epoch,
        per_device_train_batch_size=SAMPLES,
        train_sampling_strategy="sequential",
    ).train()
    return recorder


def main() -> None:
    create_parser(__doc__).parse_args()
    torch.set_num_threads(1)
    trainers = {
        "Searchlight, fp32": lambda: train_with_searchlight("fp32"),
        "Searchlight, bf16": lambda: train_with_searchlight("bf16"),
        "Searchlight, fp16": lambda: train_with_searchlight("fp16"),
        "Accelerate, `accumulate`": train_with_accelerate,
        "Accelerate, by hand as in its guide": train_with_accelerate_by_hand,
        "Lightning Trainer": train_with_lightning,
        "HF Trainer": lambda: train_with_hf(Tagger(), stream=False),
        "HF Trainer, iterable dataset": lambda: train_with_hf(Tagger(), stream=True),
        "HF Trainer, model takes `num_items_in_batch`": lambda: train_with_hf(CountingTagger(), stream=False),
        "HF Trainer, both of these": lambda: train_with_hf(CountingTagger(), stream=True),
    }
    rows = []
    for name, run in trainers.items():
        gradients = run().gradients
        rows.append({"trainer": name, **{column: measure_error(gradients, *at) for column, at in COLUMNS.items()}})
    print_result({"errors": rows}, about=VERSIONS, digits=2)


def measure_error(gradients: Mapping[tuple[int, int], Tensor], epoch: int, last: int) -> float | None:
    """Return the relative error of the gradient at micro-batch `last` of `epoch`, or None without a step."""
    if (epoch, last) not in gradients:
        return None
    truth = compute_truth(last)
    return float((gradients[epoch, last] - truth).norm() / truth.norm())


if __name__ == "__main__":
    main()
