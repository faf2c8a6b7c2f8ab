"""Test that updates on two ranks over gloo are those of one process that holds the data of both."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from searchlight.trainables.precision import Diverged, LossScale
from searchlight.trainables.update import Ema, Updater, updater
from searchlight.trainables.update.reduction import Reducer
from tests.trainables.toy_models import identical, samples


def train_unused(rank: int) -> list[float]:
    """A window under weight decay: the first parameter is used on all ranks, one on rank 1 alone, one on none."""
    everywhere, somewhere, nowhere = (nn.Parameter(torch.ones(1)) for _ in range(3))
    updater = Updater({"sgd": torch.optim.SGD([everywhere, somewhere, nowhere], lr=0.5, weight_decay=0.5)})

    def loss(x: Tensor) -> tuple[Tensor, int]:
        return (everywhere * x).mean() + ((somewhere * x).mean() if rank == 1 else 0.0), 1

    updater.update([samples(1)], loss)
    return [everywhere.item(), somewhere.item(), nowhere.item()]


def test_parameter_used_on_one_rank_steps_on_all(pair):  # B23, E58
    # gradients 1, 1/2 and none; plus the decay of 1/2
    assert pair.run(train_unused) == [[1 - 0.5 * 1.5, 1 - 0.5 * 1.0, 1.0]] * 2


def train_clipped(rank: int) -> list[float]:
    """A policy that only rank 1 has something to learn for, with a limit of its own."""
    agent, policy = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    optimizers = {"agent": torch.optim.SGD([agent], lr=1.0), "policy": torch.optim.SGD([policy], lr=1.0)}
    updater = Updater(optimizers, max_grad_norm={"agent": None, "policy": 0.5})
    updater.update([samples(2 + 4 * rank)], lambda x: ((agent * x).sum() + (10 * policy * x).sum() * rank, 1))
    return [agent.item(), policy.item()]


def test_limit_of_one_optimizer_holds_for_the_sum_over_ranks(pair):  # B23, B26, D45, E51
    for agent, policy in pair.run(train_clipped):
        assert agent == -4.0
        assert policy == pytest.approx(-0.5, rel=1e-6)


def train_embedding(rank: int, sparse: bool, limit: float | None) -> Tensor:
    torch.manual_seed(0)
    table = nn.Embedding(6, 2, sparse=sparse)
    updater = Updater({"sgd": torch.optim.SGD(table.parameters(), lr=1.0)}, max_grad_norm=limit)
    batches = [[torch.tensor([0, 1, 1])], [torch.tensor([1, 4]), torch.tensor([4])]]
    updater.update(batches[rank], lambda rows: (table(rows).square().mean(), len(rows)))
    return table.weight.detach()


@pytest.mark.parametrize("limit", [None, 0.1])
def test_sparse_gradients_of_ranks_train_like_dense_ones(pair, limit):  # D48
    sparse, dense = (pair.run(train_embedding, kind, limit) for kind in (True, False))
    assert identical(sparse[0], sparse[1])
    assert torch.allclose(sparse[0], dense[0], rtol=1e-6, atol=0)
    torch.manual_seed(0)
    moved = (sparse[0] != nn.Embedding(6, 2).weight.detach()).any(1)
    assert moved.tolist() == [True, True, False, False, True, False]


def build_sparse_adam(rank: int) -> str:
    with pytest.raises(ValueError, match="SparseAdam") as caught:
        Updater({"rows": torch.optim.SparseAdam(nn.Embedding(2, 2, sparse=True).parameters())})
    return str(caught.value)


def test_sparse_adam_is_refused_among_ranks(pair):  # D48
    for message in pair.run(build_sparse_adam):
        assert message.startswith("optimizer 'rows' must take dense gradients, which is what 2 ranks sum")


def overflow_on_one_rank(rank: int, precision: str, value: float, sick: int) -> dict[str, Any]:
    """The bad value reaches the gradient of a prompt beside the model, which is in no module at all."""
    weight, prompt = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = torch.optim.AdamW([weight], lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    updater = Updater(
        {"adam": optimizer, "prompt": torch.optim.AdamW([prompt], lr=0.1)},
        precision,
        schedulers=[schedule],
        ema=Ema({"weight": weight, "prompt": prompt}, 0.9),
        loss_scale=LossScale(64.0),
        max_grad_norm=1.0,
    )

    def loss(x: Tensor) -> tuple[Tensor, int]:
        return (weight * samples(1, 2)).sum() + (prompt * x).sum(), 1

    def state() -> Any:
        return copy.deepcopy([weight.detach(), prompt.detach(), updater.state_dict()])

    updater.update([samples(1, 2)], loss)
    before = state()
    report = updater.update([samples(1, 2), samples(1, value if rank == sick else 2)], loss)
    after = state()
    updater.update([samples(3, 1)], loss)
    return {"report": report, "before": before, "after": after, "later": state()}


@pytest.mark.parametrize(("precision", "value", "sick"), [("fp32", math.nan, 0), ("fp16", math.inf, 1)])
def test_bad_gradient_of_one_rank_skips_on_all(pair, precision, value, sick):  # B25, B26, C56, C57
    results = pair.run(overflow_on_one_rank, precision, value, sick)
    for result in results:
        assert (result["report"].outcome, result["report"].reason) == ("skipped", "non-finite gradient")
        before, after, later = result["before"], result["after"], result["later"]
        before[2].update(skipped=1, consecutive_skips=1)
        if precision == "fp16":
            assert (before[2]["loss_scale"]["scale"], after[2]["loss_scale"]["scale"]) == (64.0, 32.0)
            before[2]["loss_scale"] = after[2]["loss_scale"]
        assert identical(before, after)
        assert not identical(later[:2], after[:2])
        assert (later[2]["steps"], later[2]["skipped"], later[2]["consecutive_skips"]) == (2, 1, 0)
        assert later[2]["schedulers"][0]["last_epoch"] == later[2]["ema"]["updates"] == 2  # F59, F62
    assert identical(results[0]["later"], results[1]["later"])


def skip_too_often(rank: int) -> str:
    weight = nn.Parameter(torch.ones(1))
    updater = Updater({"sgd": torch.optim.SGD([weight], lr=1.0)}, "fp16", loss_scale=LossScale(2.0, minimum=1.0))
    try:
        for _ in range(5):
            updater.update([samples(math.inf if rank else 1.0)], lambda x: ((weight * x).sum(), 1))
    except Diverged as error:
        return f"{updater.skipped} skipped: {error}"
    return "went on"


def test_all_ranks_diverge_together(pair):  # matrix 37
    first, second = pair.run(skip_too_often)
    assert first.startswith("2 skipped: loss scale 1 cannot be lowered")
    assert first == second


def test_error_of_cuda_is_raised_without_an_all_reduce(monkeypatch):
    """The GPU of this rank can take no part in one: Train ends the other ranks, which wait."""

    def fail(batch):
        raise torch.AcceleratorError("CUDA error: device-side assert triggered")

    def reduce(*_):
        raise AssertionError("a broken GPU was used")

    monkeypatch.setattr(updater, "get_world_size", lambda: 2)
    monkeypatch.setattr(Reducer, "reduce", reduce)
    layer = torch.nn.Linear(1, 1)
    trained = Updater({"sgd": torch.optim.SGD(layer.parameters(), lr=0.1)})
    with pytest.raises(torch.AcceleratorError, match="device-side assert"):
        trained.update([torch.ones(1, 1)], fail)
