"""Updates on two ranks over gloo are those of one process that holds the data of both."""

import copy
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.trainables.toy_models import (
    PRECISIONS,
    TOLERANCE,
    classifier,
    distance,
    epoch,
    every_precision,
    full_batch,
    identical,
    norm,
    recorded_gradients,
    samples,
    slope,
    token_loss,
    tokens,
)
from tests.trainables.two_ranks import RANKS
from trainables.precision import Diverged, LossScale
from trainables.update import Ema, Updater, windows

Sizes = Sequence[Sequence[int]]  # of the micro-batches of one window, by rank


# What runs on each rank


def one_window(rank: int, precision: str, sizes: Sizes) -> dict[str, Any]:
    torch.manual_seed(0)
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gradients = recorded_gradients(optimizer)
    report = Updater({"sgd": optimizer}, precision).update(tokens(sizes[rank], seed=rank), token_loss(model))
    weights = [p.detach() for p in model.parameters()]
    return {"gradients": gradients, "weights": weights, "report": report._asdict()}


def random_windows(rank: int, precision: str, of_windows: Sequence[Sizes], seed: int) -> list[dict[str, Any]]:
    """The weights before each of several windows, its gradient and its report."""
    torch.manual_seed(seed)
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    updater = Updater({"sgd": optimizer}, precision, loss_scale=LossScale(1024))
    seen = recorded_gradients(optimizer)
    results = []
    for index, sizes in enumerate(of_windows):
        seen.clear()
        before = copy.deepcopy(dict(model.state_dict()))
        report = updater.update(tokens(sizes[rank], seed + RANKS * index + rank), token_loss(model))
        results.append({"before": before, "gradients": list(seen), "report": report._asdict()})
    return [*results, {"before": dict(model.state_dict())}]


def masked_window(rank: int, precision: str, as_tensor: bool) -> dict[str, Any]:
    """Means over a mask: on rank 0 the second micro-batch, on rank 1 the first one is a mean over nothing."""
    batches = masked_batches(rank)
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = recorded_gradients(optimizer)

    def loss(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, float | Tensor]:
        mean = masked_mean(model, batch)
        return mean, batch[1].sum() if as_tensor else batch[1].sum().item()

    report = Updater({"sgd": optimizer}, precision, loss_scale=LossScale(1024)).update(batches, loss)
    return {"gradients": seen, "report": report._asdict(), "weights": [p.detach() for p in model.parameters()]}


def masked_mean(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    inputs, mask = batch
    return (model(inputs).squeeze(1).square() * mask).sum() / mask.sum()


def masked_batches(rank: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(rank)
    inputs = torch.randn(3, 5, 3, generator=generator)
    masks = torch.tensor([[[1, 1, 1, 0, 0], [0] * 5, [1] * 5], [[0] * 5, [1, 0, 0, 0, 0], [1, 1, 0, 0, 1]]])[rank]
    return list(zip(inputs, masks.float(), strict=True))


def nine_micro_batches(rank: int, precision: str) -> tuple[float, list[int]]:
    weight, updater = slope(precision=precision)
    reports = epoch(weight, updater, [samples(x + 10 * rank) for x in range(1, 10)], 4)
    return weight.item(), [report.micro_batches for report in reports]


def own_window_sizes(rank: int, precision: str, sizes: Sequence[int]) -> dict[str, Any]:
    """Twelve micro-batches per rank, in windows of another length on each."""
    torch.manual_seed(0)
    model = classifier()
    updater = Updater({"sgd": torch.optim.SGD(model.parameters(), lr=0.2)}, precision, loss_scale=LossScale(1024))
    own = list(windows(tokens(range(1, 13), seed=rank), sizes[rank]))
    for index in range(math.ceil(12 / min(sizes))):
        updater.update(own[index] if index < len(own) else [], token_loss(model))
    return {"weights": [p.detach() for p in model.parameters()], "steps": updater.steps}


def unused_parameters(rank: int) -> list[float]:
    """A window under weight decay: the first parameter is used on all ranks, one on rank 1 alone, one on none."""
    everywhere, somewhere, nowhere = (nn.Parameter(torch.ones(1)) for _ in range(3))
    updater = Updater({"sgd": torch.optim.SGD([everywhere, somewhere, nowhere], lr=0.5, weight_decay=0.5)})

    def loss(x: Tensor) -> tuple[Tensor, int]:
        return (everywhere * x).mean() + ((somewhere * x).mean() if rank == 1 else 0.0), 1

    updater.update([samples(1)], loss)
    return [everywhere.item(), somewhere.item(), nowhere.item()]


def optimizer_of_one_rank(rank: int) -> list[float]:
    """A policy that only rank 0 has something to learn for."""
    agent, policy = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    updater = Updater({"agent": torch.optim.SGD([agent], lr=1.0), "policy": torch.optim.SGD([policy], lr=1.0)})
    updater.update([samples(2)], lambda x: ((agent * x).sum() + (0 if rank else (policy * x).sum()), 1))
    return [agent.item(), policy.item()]


def limits_by_optimizer(rank: int) -> list[float]:
    agent, policy = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    optimizers = {"agent": torch.optim.SGD([agent], lr=1.0), "policy": torch.optim.SGD([policy], lr=1.0)}
    updater = Updater(optimizers, max_grad_norm={"agent": None, "policy": 0.5})
    updater.update([samples(2 + 4 * rank)], lambda x: ((agent * x).sum() + 10 * (policy * x).sum(), 1))
    return [agent.item(), policy.item()]


def sparse_window(rank: int, sparse: bool, limit: float | None) -> Tensor:
    torch.manual_seed(0)
    table = nn.Embedding(6, 2, sparse=sparse)
    updater = Updater({"sgd": torch.optim.SGD(table.parameters(), lr=1.0)}, max_grad_norm=limit)
    batches = [[torch.tensor([0, 1, 1])], [torch.tensor([1, 4]), torch.tensor([4])]]
    updater.update(batches[rank], lambda rows: (table(rows).square().mean(), len(rows)))
    return table.weight.detach()


def one_rank_overflows(rank: int, precision: str, value: float, sick: int) -> dict[str, Any]:
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
    bad = samples(1, value if rank == sick else 2)
    report = updater.update([samples(1, 2), bad], loss)
    after = state()
    updater.update([samples(3, 1)], loss)
    return {"report": report._asdict(), "before": before, "after": after, "later": state()}


def too_many_skips(rank: int) -> str:
    weight = nn.Parameter(torch.ones(1))
    updater = Updater({"sgd": torch.optim.SGD([weight], lr=1.0)}, "fp16", loss_scale=LossScale(2.0, minimum=1.0))
    try:
        for _ in range(5):
            updater.update([samples(math.inf if rank else 1.0)], lambda x: ((weight * x).sum(), 1))
    except Diverged as error:
        return f"{updater.skipped} skipped: {error}"
    return "went on"


def fails_on_rank_1(rank: int) -> None:
    if rank == 1:
        raise ValueError("the second rank is unwell")
    dist.barrier()


# Exact over ranks


@every_precision
@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param([[4, 4], [4, 4]], id="even-B17-C60"),
        pytest.param([[3, 9, 2], [5]], id="ragged-B18-C60"),
        pytest.param([[2, 3], [12, 40]], id="few-and-many-tokens-B18-C60"),
        pytest.param([[4, 3], []], id="nothing-on-rank-1-B19"),
        pytest.param([[], [4, 3]], id="nothing-on-rank-0-B19"),
        pytest.param([[0, 0], [5]], id="no-weight-on-rank-0-B19"),
    ],
)
def test_the_gradient_is_that_of_all_ranks_data_at_once(pair, precision, sizes):  # B17, B18, B19, C58, C60
    first, second = pair.run(one_window, precision, sizes)
    torch.manual_seed(0)
    batches = [batch for rank in range(RANKS) for batch in tokens(sizes[rank], seed=rank)]
    loss, expected = full_batch(classifier(), batches)
    assert distance(first["gradients"][0], expected) <= TOLERANCE[precision] * norm(expected)
    assert identical(first["weights"], second["weights"])
    for rank, report in enumerate((first["report"], second["report"])):
        assert report["outcome"] == "applied"
        assert report["micro_batches"] == len(sizes[rank])
        assert report["loss"] == pytest.approx(loss, rel=TOLERANCE[precision])  # A16, C61
        assert report["grad_norm"] == pytest.approx(norm(expected), rel=TOLERANCE[precision])  # D44
        assert report["weight"] == sum((labels >= 0).sum().item() for _, labels in batches)
    assert first["report"]["grad_norm"] == second["report"]["grad_norm"]


of_one_rank = st.lists(st.integers(0, 6), max_size=4)


@given(
    precision=st.sampled_from(PRECISIONS),
    of_windows=st.lists(st.tuples(of_one_rank, of_one_rank), min_size=1, max_size=3),
    seed=st.integers(0, 1000),
)
@settings(
    deadline=None,
    derandomize=True,
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_random_windows_on_two_ranks_match_the_full_batch(pair, precision, of_windows, seed):  # B17, B18, B19, C60
    first, second = pair.run(random_windows, precision, of_windows, seed)
    model = classifier()
    for index, sizes in enumerate(of_windows):
        assert identical(first[index]["before"], second[index]["before"])
        batches = [b for rank in range(RANKS) for b in tokens(sizes[rank], seed + RANKS * index + rank)]
        counted = [batch for batch in batches if (batch[1] >= 0).any()]
        report = first[index]["report"]
        assert report["outcome"] == second[index]["report"]["outcome"] == ("applied" if counted else "empty")
        if not counted:
            assert identical(first[index]["before"], first[index + 1]["before"])
            continue
        model.load_state_dict(first[index]["before"])
        loss, expected = full_batch(model, counted)
        # Gradients of micro-batches may cancel: the error is measured against their mean length.
        weights = [(labels >= 0).sum().item() for _, labels in counted]
        lengths = [norm(full_batch(model, [batch])[1]) for batch in counted]
        scale = sum(w * length for w, length in zip(weights, lengths, strict=True)) / sum(weights)
        assert distance(first[index]["gradients"][0], expected) <= TOLERANCE[precision] * scale
        assert report["loss"] == pytest.approx(loss, rel=TOLERANCE[precision])
    assert identical(first[-1], second[-1])


@every_precision
@pytest.mark.parametrize("as_tensor", [True, False], ids=["tensor", "number"])
def test_a_mean_over_nothing_on_one_rank_adds_nothing_not_even_nan(pair, precision, as_tensor):  # A5, B18
    results = pair.run(masked_window, precision, as_tensor)
    torch.manual_seed(0)
    model = nn.Linear(3, 1).double()
    inputs, masks = (torch.cat(parts) for parts in zip(*masked_batches(0), *masked_batches(1), strict=True))
    loss = masked_mean(model, (inputs.double(), masks.double()))
    expected = torch.autograd.grad(loss, list(model.parameters()))
    for result in results:
        assert distance(result["gradients"][0], expected) <= TOLERANCE[precision] * norm(expected)
        assert result["report"]["loss"] == pytest.approx(loss.item(), rel=TOLERANCE[precision])
        assert result["report"]["weight"] == 12
        assert result["report"]["bad_losses"] == 0
    assert identical(results[0]["weights"], results[1]["weights"])


@every_precision
def test_the_tail_of_an_epoch_is_reduced_too(pair, precision):  # B22, C55
    # means over both ranks: (2.5 + 12.5) / 2, (6.5 + 16.5) / 2 and (9 + 19) / 2
    assert pair.run(nine_micro_batches, precision) == [(-7.5 - 11.5 - 14.0, [4, 4, 1])] * 2


@every_precision
@pytest.mark.parametrize("sizes", [(4, 2), (3, 12), (1, 5)])
def test_ranks_may_differ_in_the_length_of_their_windows(pair, precision, sizes):  # B30
    first, second = pair.run(own_window_sizes, precision, sizes)
    assert identical(first["weights"], second["weights"])
    torch.manual_seed(0)
    model = classifier().double()
    start = [p.detach().clone() for p in model.parameters()]
    own = [list(windows(tokens(range(1, 13), seed=rank), sizes[rank])) for rank in range(RANKS)]
    for index in range(first["steps"]):
        _, gradients = full_batch(model, [b for parts in own for w in parts[index : index + 1] for b in w])
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.data -= 0.2 * gradient
    expected = [p.detach() for p in model.parameters()]
    assert first["steps"] == second["steps"] == math.ceil(12 / min(sizes))
    assert distance(first["weights"], expected) <= TOLERANCE[precision] * distance(expected, start)


@every_precision
def test_a_window_without_weight_on_any_rank_is_empty_on_all(pair, precision):  # A6
    for result in pair.run(one_window, precision, [[0], []]):
        assert (result["report"]["outcome"], result["report"]["reason"]) == ("empty", "no weight")
        assert result["gradients"] == []


# Which parameters step


def test_a_parameter_that_one_rank_uses_steps_on_all_and_one_that_none_uses_on_none(pair):  # B23, E58
    for weights in pair.run(unused_parameters):
        # gradients 1, 1/2 and none; plus the decay of 1/2
        assert weights == [1 - 0.5 * 1.5, 1 - 0.5 * 1.0, 1.0]


def test_an_optimizer_with_gradients_on_one_rank_steps_on_all(pair):  # B23, B26, E51
    assert pair.run(optimizer_of_one_rank) == [[-2.0, -1.0]] * 2


def test_a_limit_of_one_optimizer_holds_for_the_gradient_of_all_ranks(pair):  # D45
    for agent, policy in pair.run(limits_by_optimizer):
        assert agent == -4.0
        assert policy == pytest.approx(-0.5, rel=1e-6)


@pytest.mark.parametrize("limit", [None, 0.1])
def test_sparse_gradients_train_as_dense_ones_do(pair, limit):  # D48
    sparse, dense = (pair.run(sparse_window, kind, limit) for kind in (True, False))
    assert identical(sparse[0], sparse[1])
    assert torch.allclose(sparse[0], dense[0], rtol=1e-6, atol=0)
    torch.manual_seed(0)
    untouched = nn.Embedding(6, 2).weight.detach()
    moved = (sparse[0] != untouched).any(1)
    assert moved.tolist() == [True, True, False, False, True, False]


def sparse_adam(rank: int) -> str:
    with pytest.raises(ValueError, match="SparseAdam") as caught:
        Updater({"rows": torch.optim.SparseAdam(nn.Embedding(2, 2, sparse=True).parameters())})
    return str(caught.value)


def test_an_optimizer_of_sparse_gradients_alone_is_refused_among_ranks(pair):  # D48
    for message in pair.run(sparse_adam):
        assert message.startswith("optimizer 'rows' must take dense gradients, which is what 2 ranks sum")


# Not finite on one rank


@every_precision
@pytest.mark.parametrize(("value", "sick"), [(math.nan, 0), (math.inf, 1)], ids=["nan-rank-0", "inf-rank-1"])
def test_a_bad_gradient_on_one_rank_skips_the_window_on_all(pair, precision, value, sick):  # B25, B26, C56, C57
    results = pair.run(one_rank_overflows, precision, value, sick)
    for result in results:
        assert (result["report"]["outcome"], result["report"]["reason"]) == ("skipped", "non-finite gradient")
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


def test_all_ranks_diverge_together(pair):  # matrix 37
    first, second = pair.run(too_many_skips)
    assert first.startswith("2 skipped: loss scale 1 cannot be lowered")
    assert first == second


# The helper itself


def test_an_error_on_a_rank_is_shown_with_its_traceback(pair):
    with pytest.raises(pytest.fail.Exception, match=r"(?s)rank 1 raised:.*in fails_on_rank_1.*second rank is unwell"):
        pair.run(fails_on_rank_1)
