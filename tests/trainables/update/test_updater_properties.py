"""Whatever the windows are like: their gradients are those of the whole at once, and their outcomes add up."""

import copy
import math
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.trainables.toy_models import (
    IGNORED,
    PRECISIONS,
    TOLERANCE,
    classifier,
    distance,
    identical,
    norm,
    recorded_gradients,
    samples,
    slope_loss,
    tokens,
)
from trainables.precision import Diverged, LossScale
from trainables.update import Ema, Updater

bounded = settings(deadline=None, derandomize=True, max_examples=150)


# Gradients


class MicroBatch(NamedTuple):
    inputs: Tensor
    labels: Tensor
    magnitude: float  # of its loss
    on_device: bool  # its weight


MICRO_BATCHES = st.tuples(st.integers(0, 6), st.sampled_from([1e-3, 1.0, 30.0, 1e3]), st.booleans())
WINDOWS = st.lists(st.lists(MICRO_BATCHES, min_size=1, max_size=5), min_size=1, max_size=4)


def micro_batches(window: list[tuple[int, float, bool]], seed: int) -> list[MicroBatch]:
    made = tokens([size for size, _, _ in window], seed)
    return [MicroBatch(*batch, *how) for batch, (_, *how) in zip(made, window, strict=True)]


def masked_mean(model: nn.Module, batch: MicroBatch) -> tuple[Tensor, Tensor]:
    """The mean over the labels that count, masked by hand, so that its gradient is NaN too where none does."""
    mask = batch.labels != IGNORED
    each = nn.functional.cross_entropy(model(batch.inputs), batch.labels.clamp(min=0), reduction="none")
    return batch.magnitude * (each * mask).sum() / mask.sum(), mask.sum()


def reference(model: nn.Module, batches: list[MicroBatch]) -> tuple[float, list[Tensor], float]:
    """Loss and gradient of the window in fp64, and the mean length of its micro-batches' gradients.

    Gradients may cancel: errors are measured against that length.
    """
    model = copy.deepcopy(model).double()
    parameters = list(model.parameters())
    loss, gradients, length, total = 0.0, [torch.zeros_like(p) for p in parameters], 0.0, 0
    for batch in batches:
        mean, weight = masked_mean(model, batch._replace(inputs=batch.inputs.double()))
        own = torch.autograd.grad(mean, parameters)
        loss += mean.item() * weight.item()
        length += norm(own) * weight.item()
        gradients = [sum_ + gradient * weight for sum_, gradient in zip(gradients, own, strict=True)]
        total += weight.item()
    return loss / total, [gradient / total for gradient in gradients], length / total


@given(precision=st.sampled_from(PRECISIONS), epoch=WINDOWS, parts=st.integers(1, 3), seed=st.integers(0, 1000))
@bounded
def test_random_windows_match_the_full_batch(precision, epoch, parts, seed):  # A1, A3, A4, A5, A6, A14, E49, C11, C12
    torch.manual_seed(seed)
    model = classifier()
    groups = [list(model.parameters())[index::parts] for index in range(parts)]
    optimizers = {str(i): torch.optim.SGD(group, lr=1e-3, momentum=0.9) for i, group in enumerate(groups)}
    seen = [recorded_gradients(optimizer) for optimizer in optimizers.values()]
    updater = Updater(optimizers, precision)

    def loss(batch: MicroBatch) -> tuple[Tensor, float | Tensor]:
        mean, weight = masked_mean(model, batch)
        return mean, weight if batch.on_device else float(weight)

    for index, window in enumerate(epoch):
        batches = micro_batches(window, seed + index)
        counted = [batch for batch in batches if (batch.labels != IGNORED).any()]
        before = copy.deepcopy([dict(model.state_dict()), updater.state_dict()])
        if not counted:
            assert updater.update(batches, loss).outcome == "empty"
            before[1]["empty"] += 1
            assert identical(before, [dict(model.state_dict()), updater.state_dict()])
            continue
        mean_loss, expected, length = reference(model, counted)
        report = updater.update(batches, loss)
        while precision == "fp16" and report.outcome == "skipped":  # until the scale suits the loss
            assert identical(before[0], dict(model.state_dict()))
            report = updater.update(batches, loss)
        assert report.outcome == "applied"
        got = [gradients[-1] for gradients in seen]
        flat = [got[place % parts][place // parts] for place in range(len(expected))]
        assert distance(flat, expected) <= TOLERANCE[precision] * length
        assert abs(report.grad_norm - norm(expected)) <= TOLERANCE[precision] * length
        assert report.loss == pytest.approx(mean_loss, rel=TOLERANCE[precision])
        assert report.weight == sum((batch.labels != IGNORED).sum().item() for batch in counted)
        assert all(p.grad is None for p in model.parameters())
    assert updater.steps + updater.empty == len(epoch)


# Outcomes


@dataclass
class Model:
    """What an update should come to, in plain Python."""

    fp16: bool
    interval: int
    minimum: float
    limit: int
    scale: float
    streak: int = 0
    steps: int = 0
    skipped: int = 0
    empty: int = 0
    in_a_row: int = 0
    rate: float = 1.0
    weight: float = 0.0
    average: float = 0.0
    diverged: bool = False
    outcomes: list[str] = field(default_factory=list)

    def window(self, kind: str) -> None:
        if kind in ("empty", "weightless"):
            self.empty += 1
            self.outcomes.append("empty")
        elif kind == "good":
            decay = min(0.9, (1 + self.steps) / (10 + self.steps))
            self.weight -= self.rate
            self.average = decay * self.average + (1 - decay) * self.weight
            self.rate *= 0.5
            self.steps += 1
            self.in_a_row = 0
            self.streak += 1
            if self.streak == self.interval:
                self.scale, self.streak = self.scale * 2, 0
            self.outcomes.append("applied")
        else:
            self.skipped += 1
            self.in_a_row += 1
            self.streak = 0
            at_its_floor = self.fp16 and self.scale / 2 < self.minimum
            self.scale = self.scale if at_its_floor else self.scale / 2
            self.diverged = at_its_floor or self.in_a_row > self.limit
            self.outcomes.append("skipped")


KINDS = {"good": [1.0], "infinite": [1.0, math.inf], "nan": [math.nan, 1.0], "empty": [], "weightless": [None, None]}


@given(
    precision=st.sampled_from(PRECISIONS),
    kinds=st.lists(st.sampled_from([*KINDS, "good"]), max_size=24),
    interval=st.integers(1, 3),
    minimum=st.sampled_from([1.0, 16.0]),
    limit=st.integers(0, 4),
)
@bounded
def test_random_outcomes_add_up(precision, kinds, interval, minimum, limit):  # matrix 36, matrix 37, matrix 38, C26
    expected = Model(precision == "fp16", interval, minimum, limit, scale=64.0)
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    reported = []
    updater = Updater(
        {"sgd": optimizer},
        precision,
        schedulers=[torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)],
        ema=Ema({"weight": weight}, 0.9),
        loss_scale=LossScale(64.0, interval, minimum),
        max_consecutive_skips=limit,
        on_update=lambda report: reported.append(report.outcome),
    )
    for kind in kinds:
        window = [samples() if x is None else samples(x) for x in KINDS[kind]]
        expected.window(kind)
        if expected.diverged:
            with pytest.raises(Diverged):
                updater.update(window, slope_loss(weight))
            expected.outcomes.pop()  # an error, and no report
        else:
            updater.update(window, slope_loss(weight))
        counters = (updater.steps, updater.skipped, updater.empty, updater.consecutive_skips)
        assert counters == (expected.steps, expected.skipped, expected.empty, expected.in_a_row)
        assert optimizer.param_groups[0]["lr"] == expected.rate
        assert (weight.item(), updater.ema.updates) == (expected.weight, expected.steps)
        assert updater.ema.state_dict()["shadow"]["weight"].item() == pytest.approx(expected.average, rel=1e-5)
        if updater.loss_scale is not None:
            assert (updater.loss_scale.value, updater.loss_scale.streak) == (expected.scale, expected.streak)
        assert reported == expected.outcomes
        assert weight.grad is None
        if expected.diverged:
            break
