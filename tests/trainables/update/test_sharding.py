"""Test that updates on several ranks, of sharded modules too, are those of one process that holds all data."""

import functools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import distribute_tensor
from torch.utils.checkpoint import checkpoint

from searchlight.trainables.precision import LossScale
from searchlight.trainables.update import Updater
from searchlight.trainables.update.sharding import ShardedUpdater
from tests.trainables.toy_models import (
    PRECISIONS,
    TOLERANCE,
    Tokens,
    classifier,
    distance,
    full_batch,
    identical,
    norm,
    token_loss,
    tokens,
)
from tests.trainables.two_ranks import RANKS
from tests.trainables.update.shards import context_of, mesh, record_gradients, shard, whole

Sizes = Sequence[Sequence[int]]  # of the micro-batches of one window, by rank


def train_windows(
    rank: int, precision: str, layout: str, as_tensor: bool, reduce_each: bool, of_windows: Sequence[Sizes], seed: int
) -> list[dict[str, Any]]:
    """The weights before each of several windows, its gradient and its report."""
    torch.manual_seed(seed)
    model = shard(classifier(), rank, layout)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    kind: Any = Updater if layout == "none" else functools.partial(ShardedUpdater, reduce_each=reduce_each)
    updater = kind({"sgd": optimizer}, precision, loss_scale=LossScale(1024), modules={"net": model})
    seen = record_gradients(optimizer)

    def loss(batch: Tokens) -> tuple[Tensor, float | Tensor]:
        mean, weight = token_loss(model)(batch)
        return mean, weight if as_tensor else weight.item()

    results = []
    for index, sizes in enumerate(of_windows):
        seen.clear()
        before = dict(zip(model.state_dict(), whole(model.state_dict().values()), strict=True))
        report = updater.update(tokens(sizes[rank], seed + 4 * index + rank), loss)
        results.append({"before": before, "gradients": list(seen), "report": report})
    after = dict(zip(model.state_dict(), whole(model.state_dict().values()), strict=True))
    return [*results, {"before": after}]


of_one_rank = st.lists(st.sampled_from([0, 1, 3, 6, 40]), max_size=4)


@pytest.mark.parametrize("ranks", ["pair", "four"])
@given(
    precision=st.sampled_from(PRECISIONS),
    layout=st.sampled_from(["none", "root", "layers", "mixed", "hybrid"]),
    as_tensor=st.booleans(),
    reduce_each=st.booleans(),
    of_windows=st.lists(st.tuples(*[of_one_rank] * 4), min_size=1, max_size=3),
    seed=st.integers(0, 1000),
)
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_windows_of_several_ranks_match_the_full_batch(
    request, ranks, precision, layout, as_tensor, reduce_each, of_windows, seed
):
    # A5, A6, A16, B17, B18, B19, B30, C58, C60, C61, D44
    started = request.getfixturevalue(ranks)
    of_windows = [sizes[: started.count] for sizes in of_windows]
    results = started.run(train_windows, precision, layout, as_tensor, reduce_each, of_windows, seed)
    model = classifier()
    for index, sizes in enumerate(of_windows):
        windows = [result[index] for result in results]
        before = windows[0]["before"]
        assert all(identical(before, window["before"]) for window in windows)
        batches = [b for rank, own in enumerate(sizes) for b in tokens(own, seed + 4 * index + rank)]
        counted = [batch for batch in batches if (batch[1] >= 0).any()]
        weights = [(labels >= 0).sum().item() for _, labels in counted]
        first = windows[0]["report"]
        for window, own in zip(windows, sizes, strict=True):
            report = window["report"]
            assert (report.weight, report.micro_batches, report.bad_losses) == (sum(weights), len(own), 0)
            assert (report.outcome, report.reason) == (first.outcome, first.reason)
            assert not counted or (report.loss, report.grad_norm) == (first.loss, first.grad_norm)
        if not counted:
            assert (first.outcome, first.reason) == ("empty", "no weight")
            assert identical(before, results[0][index + 1]["before"])
            continue
        assert first.outcome == "applied"
        model.load_state_dict(before)
        loss, expected = full_batch(model, counted)
        # Gradients of micro-batches may cancel: the error is measured against their mean length.
        lengths = [norm(full_batch(model, [batch])[1]) for batch in counted]
        scale = sum(w * length for w, length in zip(weights, lengths, strict=True)) / sum(weights)
        assert distance(windows[0]["gradients"][0], expected) <= TOLERANCE[precision] * scale
        assert abs(first.grad_norm - norm(expected)) <= TOLERANCE[precision] * scale
        assert first.loss == pytest.approx(loss, rel=TOLERANCE[precision])
    assert all(identical(result[-1], results[0][-1]) for result in results)


def step_muon(rank: int, layout: str) -> list[Tensor]:
    """Return the change of several matrices in one step, sharded or whole."""
    torch.manual_seed(0)
    changes = []
    for rows, columns in [(8, 8), (16, 6), (6, 16), (7, 5)]:
        model = nn.Linear(columns, rows, bias=False)
        gradient = torch.randn(rows, columns)
        (before,) = whole(model.parameters())
        if layout != "whole":
            fully_shard(model, mesh=context_of(rank).hybrid_mesh if layout == "hybrid" else mesh(rank))
            like: Any = model.weight
            gradient = distribute_tensor(gradient, like.device_mesh, like.placements, src_data_rank=None)
        model.weight.grad = gradient
        torch.optim.Muon(model.parameters(), lr=1.0).step()
        changes += [after - before for after in whole(model.parameters())]
    return changes


def test_muon_steps_shards_as_whole_matrices(four):
    expected = four.run(step_muon, "whole")[0]
    for layout in ("full", "hybrid"):
        changes = four.run(step_muon, layout)
        for matrix, change in zip(changes[0], expected, strict=True):
            assert distance([matrix], [change]) <= 5e-2 * norm([change])  # Muon computes its steps in bf16
        assert all(identical(change, changes[0]) for change in changes)


class Thin(nn.Module):
    """Its last layer has fewer rows than there are ranks. Its block may recompute what it does not keep."""

    def __init__(self, recompute: bool = False) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 4))
        self.last = nn.Linear(4, 1)
        self.recompute = recompute

    def forward(self, x: Tensor) -> Tensor:
        hidden = checkpoint(self.block, x, use_reentrant=False) if self.recompute else self.block(x)
        return self.last(hidden).squeeze(1).float()


def thin_loss(model: nn.Module, batch: Tensor) -> tuple[Tensor, int]:
    return model(batch).square().mean(), len(batch)


def train_thin(rank: int, variant: str) -> dict[str, Any]:
    torch.manual_seed(0)
    model = Thin(recompute=variant == "recompute")
    options: dict[str, Any] = {"mesh": mesh(rank)}
    if variant == "policy":
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    fully_shard(model.block, **options)
    if variant == "compile":
        model.block.compile(backend="eager")
    fully_shard(model, **options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    updater = ShardedUpdater({"adam": optimizer}, modules={"model": model}, precision="fp32")
    seen = record_gradients(optimizer)
    report = updater.update(batches_of(rank), lambda batch: thin_loss(model, batch))
    moments = {str(state["exp_avg"].dtype) for state in optimizer.state.values()}
    return {"report": report, "gradients": seen[0], "kinds": moments | {str(p.dtype) for p in model.parameters()}}


def batches_of(rank: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(rank)
    return [torch.randn(size, 5, generator=generator) for size in ([3, 7], [1])[rank]]


@pytest.mark.parametrize("variant", ["plain", "policy", "recompute", "compile"])
def test_ways_to_shard_give_the_gradient_of_the_full_batch(pair, variant):
    torch.manual_seed(0)
    model = Thin().double()
    data = torch.cat([batch for rank in range(RANKS) for batch in batches_of(rank)]).double()
    mean = model.last(model.block(data)).square().mean()
    expected = torch.autograd.grad(mean, list(model.parameters()))
    bound = TOLERANCE["bf16" if variant == "policy" else "fp32"]
    for result in pair.run(train_thin, variant):
        assert distance(result["gradients"], expected) <= bound * norm(expected)
        assert result["report"].grad_norm == pytest.approx(norm(expected), rel=bound)
        assert result["kinds"] == {"torch.float32"}
