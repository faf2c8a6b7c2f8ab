"""Test that what a forward pass changes beside gradients is as before after a window that is not applied."""

import copy

import pytest
import torch
from torch import Tensor, nn

from searchlight.trainables.preflight.shadow_device import shadow_cuda
from searchlight.trainables.update import Updater
from searchlight.trainables.update.buffers import LOOKS, Buffers
from tests.trainables.toy_models import identical, samples
from tests.trainables.update.test_cost import HostReads


class Keeper(nn.Module):
    """Keeps what it has seen in a buffer, in one of several ways."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("kept", None if way == "nothing before" else torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        if self.way == "in place":
            self.kept.copy_(x)
        elif self.way == "a new tensor":
            self.kept = self.kept + x
        elif self.way == "another shape":
            self.kept = torch.cat([self.kept, x])
        elif self.way == "nothing afterwards":
            self.kept = None
        else:
            self.kept = x
        return (self.weight * x).sum()


WAYS = ["in place", "a new tensor", "another shape", "the batch itself", "nothing before", "nothing afterwards"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("why", ["skipped", "empty", "error"])
@pytest.mark.parametrize("windows", [0, 1, LOOKS + 1])
def test_window_that_is_not_applied_restores_the_buffers(way, why, windows):  # A6, A15, matrix 35
    module = Keeper(way)
    updater = Updater({"sgd": torch.optim.SGD(module.parameters(), lr=0.1)}, modules={"keeper": module})

    def loss(x: Tensor) -> tuple[Tensor, int]:
        mean = module(x)
        if why == "error" and x[0] == 7:
            raise OSError("bad sample")
        return mean, 0 if why == "empty" and x[0] >= 5 else 1

    for _ in range(windows):
        updater.update([samples(1, 2)], loss)
    kept = None if module.kept is None else module.kept.clone()
    window = [samples(5, 6), samples(7, torch.nan)]
    window_before = [x.clone() for x in window]
    if why == "error":
        with pytest.raises(OSError, match="bad sample"):
            updater.update(window, loss)
    else:
        assert updater.update(window, loss).outcome == why
    assert identical(module.kept, kept)
    assert identical(window, window_before)  # nothing was written back into the caller's data
    updater.update([samples(3, 4)], loss)
    assert updater.steps == windows + 1


def test_buffer_whose_elements_share_memory_is_restored():
    norm = nn.Linear(2, 1)
    norm.register_buffer("shared", torch.ones(1, 2).expand(3, 2))
    updater = Updater({"sgd": torch.optim.SGD(norm.parameters(), lr=0.1)}, modules={"norm": norm})
    assert updater.update([samples(torch.nan, 1)], lambda x: (norm(x).sum(), 1)).outcome == "skipped"
    assert torch.equal(norm.shared, torch.ones(3, 2))


def test_restored_buffers_wait_once_for_a_gpu(monkeypatch):
    with shadow_cuda():
        module = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(3)).to("cuda")
        module.register_buffer("small", torch.ones(3, device="cuda").to(torch.float8_e4m3fn))
        buffers, before = Buffers({"norms": module}), copy.deepcopy(module.state_dict())
        held = buffers.copy()
        module[0].running_mean += 1
        module.small.copy_(torch.zeros(3, device="cuda"))
        untouched = module[1].running_var._version
        with HostReads(monkeypatch) as reads:
            buffers.restore(held)
        assert reads.count == 1
        assert identical(
            {k: v.float() for k, v in module.state_dict().items()}, {k: v.float() for k, v in before.items()}
        )
        assert module[1].running_var._version == untouched, "backward raises if a saved tensor was written to"


@pytest.mark.parametrize("convert", ["to_sparse", "to_sparse_csr"])
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_sparse_buffer_is_restored_as_it_was(convert):
    net = nn.Linear(2, 1)
    net.register_buffer("graph", getattr(torch.eye(2), convert)())
    updater = Updater({"sgd": torch.optim.SGD(net.parameters(), lr=0.1)}, modules={"net": net})
    assert updater.update([samples(torch.nan, 1)], lambda x: (net(net.graph @ x).sum(), 1)).outcome == "skipped"
    assert torch.equal(net.graph.to_dense(), torch.eye(2))
