"""Test windows of micro-batches: how an epoch is split into them, and how a batch comes to its loss."""

import itertools
from collections import UserDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from searchlight.trainables.update import Updater, windows
from tests.trainables.toy_models import epoch, identical, samples, slope, slope_loss


def test_windows_split_a_stream_and_keep_its_tail():  # A8, C03, C06
    assert list(windows(iter("abcdefghi"), 4)) == [list("abcd"), list("efgh"), list("i")]
    assert list(windows([], 4)) == []


def test_window_reads_no_further_than_its_own_batches():  # A9, C15
    stream = itertools.count()
    assert next(windows(stream, 3)) == [0, 1, 2]
    assert next(stream) == 3


def test_window_size_below_1_raises_value_error():
    with pytest.raises(ValueError, match="window size must be at least 1, but got 0"):
        list(windows([1], 0))


@pytest.mark.parametrize(
    ("batches", "size", "expected", "steps"),
    [
        pytest.param(range(1, 9), 4, -9.0, 2, id="full-windows-C01"),
        pytest.param(range(1, 10), 4, -18.0, 3, id="tail-has-full-weight-A2-A14-C02-C03-C04"),
        pytest.param(range(1, 4), 8, -2.0, 1, id="epoch-shorter-than-a-window-A7-C05"),
        pytest.param(range(1, 4), 1, -6.0, 3, id="no-accumulation-A10-C07"),
        pytest.param([], 4, 0.0, 0, id="empty-loader-C06"),
    ],
)
def test_epoch_moves_by_the_mean_of_each_window(batches, size, expected, steps):
    weight, updater = slope()
    reports = epoch(weight, updater, (samples(x) for x in batches), size)
    assert weight.item() == expected
    assert updater.steps == len(reports) == steps
    assert [report.micro_batches for report in reports] == [len(w) for w in windows(batches, size)]


@pytest.mark.parametrize("offsets", [[-0.7], [0.0], [3.0, -3.0]], ids=["negative", "zero", "canceling"])
def test_window_is_applied_whatever_its_loss_is(offsets):  # C10
    weight, updater = slope()
    report = updater.update([samples(x) for x in offsets], lambda x: ((weight * 2.0).sum() + x.sum(), 1))
    assert (report.outcome, weight.item(), updater.steps) == ("applied", -2.0, 1)


def test_gradients_left_by_others_are_not_applied():  # C14, C23
    weight, updater = slope()
    weight.grad = torch.full((1,), 100.0)
    updater.update([samples(1)], slope_loss(weight))
    assert (weight.item(), weight.grad) == (-1.0, None)


def test_window_that_is_a_generator_raises_value_error():
    weight, updater = slope()
    with pytest.raises(ValueError, match=r"window must be a sequence of micro-batches, but got generator"):
        updater.update((samples(x) for x in (1, 2)), slope_loss(weight))


def received(batches: list[Any], dtype: torch.dtype = torch.float32) -> list[Any]:
    """What the loss is given, under parameters of `dtype`."""
    weight = nn.Parameter(torch.zeros(1, dtype=dtype))
    got: list[Any] = []

    def loss(batch: Any) -> tuple[Tensor, int]:
        got.append(batch)
        return weight.sum(), 1

    assert Updater({"sgd": torch.optim.SGD([weight], lr=1.0)}).update(batches, loss).outcome == "applied"
    return got


def test_nested_batch_keeps_its_shape_on_its_way():  # G75
    batch = {"x": [samples(1), (torch.tensor([2]), "name")], "count": 3}
    assert identical(received([batch]), [batch])


@pytest.mark.parametrize("parameters", [torch.float32, torch.float64])
def test_only_fp64_inputs_change_their_dtype(parameters):  # G75: 2**24 + 1 is no fp32, 257 no bf16
    kinds = [torch.float32, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool]
    largest = [
        torch.tensor([2**24 + 1 if kind.itemsize > 2 else 255 if kind.itemsize == 1 else 257]).to(kind)
        for kind in kinds
    ]
    doubles, *others = received([[torch.ones(1, dtype=torch.float64), *largest]], parameters)[0]
    assert doubles.dtype is parameters
    assert identical(others, largest)


def test_batch_that_moves_itself_is_left_to_do_so():
    class Named(dict[str, Tensor]):
        """A dict with attributes, as libraries have."""

    class Moving(UserDict[str, Tensor]):
        def to(self, device: torch.device) -> "Moving":
            return Moving({**self.data, "moved": samples(device.type == torch.get_default_device().type)})

    with torch.device("cpu"):  # where lengths must be
        sequences = pack_sequence([samples(1, 2), samples(3)])
    packed, named, moving = received([sequences, Named(x=samples(1)), Moving(x=samples(1))])
    assert isinstance(packed, PackedSequence)
    assert (type(named), named["x"].item()) == (Named, 1.0)
    assert moving["moved"].item() == 1.0
