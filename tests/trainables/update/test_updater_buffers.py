"""What a forward pass changes beside gradients is as it was after a window that is not applied."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from tests.trainables.toy_models import every_precision, identical, samples
from trainables.update import Updater


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_skipped_window_leaves_the_statistics_of_batch_norm_as_they_were(bad):  # matrix 35
    norm, head = nn.BatchNorm1d(2), nn.Linear(2, 1)
    optimizer = torch.optim.SGD([*norm.parameters(), *head.parameters()], lr=0.1)
    updater = Updater({"model": optimizer}, modules={"norm": norm, "head": head})
    good = torch.randn(4, 2)
    updater.update([good], lambda x: (head(norm(x)).square().mean(), len(x)))
    before = copy.deepcopy(norm.state_dict())
    report = updater.update([good, torch.full((4, 2), bad)], lambda x: (head(norm(x)).square().mean(), len(x)))
    assert report.outcome == "skipped"
    assert all(torch.equal(before[name], value) for name, value in norm.state_dict().items())
    updater.update([good], lambda x: (head(norm(x)).square().mean(), len(x)))
    assert norm.num_batches_tracked == 2


class Keeper(nn.Module):
    """Keeps what it has seen in a buffer, in one of several ways."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("kept", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        if self.way == "in place":
            self.kept.copy_(x)
        elif self.way == "a new tensor":
            self.kept = self.kept + x
        elif self.way == "another shape":
            self.kept = torch.cat([self.kept, x])
        elif self.way == "the batch itself":
            self.kept = x
        else:
            self.kept = None
        return (self.weight * x).sum()


@every_precision
@pytest.mark.parametrize("way", ["in place", "a new tensor", "another shape", "the batch itself", "nothing at all"])
@pytest.mark.parametrize("why", ["skipped", "empty", "error"])
def test_a_window_that_is_not_applied_leaves_buffers_as_they_were(precision, way, why):  # A6, A15, matrix 35
    module = Keeper(way)
    updater = Updater({"sgd": torch.optim.SGD(module.parameters(), lr=0.1)}, precision, modules={"keeper": module})

    def loss(x: Tensor) -> tuple[Tensor, int]:
        mean = module(x)
        if why == "error" and x[0] == 7:
            raise OSError("bad sample")
        return mean, 0 if why == "empty" and x[0] >= 5 else 1

    updater.update([samples(1, 2)], loss)
    kept = None if module.kept is None else module.kept.clone()
    window = [samples(5, 6), samples(7, math.nan)]
    window_before = [x.clone() for x in window]
    if why == "error":
        with pytest.raises(OSError, match="bad sample"):
            updater.update(window, loss)
    else:
        assert updater.update(window, loss).outcome == why
    assert identical(module.kept, kept)
    assert identical(window, window_before)  # nothing was written back into the caller's data
    updater.update([samples(3, 4)], loss)
    assert updater.steps == 2
