"""Test that updates on several ranks, of sharded modules too, are those of one process that holds all data."""

import functools
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.utils.checkpoint import checkpoint

from searchlight.trainables.context import Context
from searchlight.trainables.isolation.resource_leaks import ResourceLeaks
from searchlight.trainables.precision import LossScale
from searchlight.trainables.update import Ema, Updater
from searchlight.trainables.update.sharding import ShardedEma, ShardedUpdater
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

Sizes = Sequence[Sequence[int]]  # of the micro-batches of one window, by rank


def mesh(rank: int) -> Any:
    return context_of(rank).mesh


def context_of(rank: int) -> Context:
    """Return the context of one rank of nodes that have two each."""
    return Context(rank=rank, world_size=dist.get_world_size(), local_world_size=2)


def whole(tensors: Any) -> list[Tensor]:
    return [t.detach().full_tensor() if isinstance(t, DTensor) else t.detach().clone() for t in tensors]


def shard(model: nn.Sequential, rank: int, layout: str) -> nn.Sequential:
    """Shard a classifier: all of it, its first layer as a root of its own, or each layer within a root; or not."""
    over = context_of(rank).hybrid_mesh if layout == "hybrid" else mesh(rank)
    if layout in ("layers", "mixed", "hybrid"):
        fully_shard(model[0], mesh=over)
    return model if layout in ("none", "mixed") else fully_shard(model, mesh=over)


def updater_of(model: nn.Module, lr: float = 0.1) -> ShardedUpdater:
    return ShardedUpdater({"sgd": torch.optim.SGD(model.parameters(), lr=lr)}, modules={"net": model})


def error_of(rank: int, action: Any, *arguments: Any) -> str:
    try:
        action(rank, *arguments)
    except ValueError as error:
        return str(error)
    return "no error"


def assert_refused(ranks: Any, message: str, action: Any, *arguments: Any) -> None:
    for answer in ranks.run(error_of, action, *arguments):
        assert answer.startswith(message)


def record_gradients(optimizer: torch.optim.Optimizer) -> list[list[Tensor]]:
    seen: list[list[Tensor]] = []

    def record(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        seen.append(whole(p.grad for p in optimizer.param_groups[0]["params"] if p.grad is not None))

    optimizer.register_step_pre_hook(record)
    return seen


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


class Pieces(nn.Module):
    """Two sharded branches and a replicated one, each with an optimizer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.head = nn.Linear(2, 3), nn.Linear(2, 3), nn.Linear(3, 1)


def train_pieces(rank: int, sharded: bool, value: float) -> dict[str, Any]:
    """Three windows under clipping and averages, the second with a bad value in the data of rank 1."""
    torch.manual_seed(0)
    model = Pieces()
    modules = {"model": model}
    if sharded:
        fully_shard(model.left, mesh=mesh(rank))
        fully_shard(model.right, mesh=mesh(rank))
    named = dict(model.named_parameters())
    optimizers = {
        "left": torch.optim.AdamW(model.left.parameters(), lr=0.1),
        "rest": torch.optim.AdamW([*model.right.parameters(), *model.head.parameters()], lr=0.05, weight_decay=0.1),
    }
    ema = ShardedEma(named, 0.9, modules) if sharded else Ema(named, 0.9)
    kind: Any = ShardedUpdater if sharded else Updater
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizers["left"], 0.5)
    updater = kind(
        optimizers, ema=ema, max_grad_norm={"left": 0.01, "rest": 0.2}, modules=modules, schedulers=[schedule]
    )

    def loss(x: Tensor) -> tuple[Tensor, int]:
        return model.head((model.left(x) * model.right(x).tanh()).relu()).square().mean(), len(x)

    generator = torch.Generator().manual_seed(rank)
    reports, weights = [], []
    for index in range(3):
        window = [torch.randn(3, 2, generator=generator) for _ in range(2 + rank)]
        if rank == 1 and index == 1:
            window[0][0, 0] = value
        reports.append(updater.update(window, loss))
        weights.append(whole(named.values()))
    with ema.applied(), torch.no_grad():
        averaged = [model.head(model.left(window[0])), *whole(named.values())]
    live = whole(named.values())
    with updater.unsharded(), torch.no_grad():
        alone = loss(torch.ones(1, 2))[0].item() if rank == 1 else None  # the other rank does not take part
    return {
        "reports": reports,
        "weights": weights,
        "averaged": averaged,
        "live": live,
        "norms": updater.gradient_norms(),
        "alone": alone,
        "left": [p.grad is None for p in model.parameters()],
    }


def test_mixed_modules_and_optimizers_train_like_replicas(pair):  # B23, B26, D45, E51, F59, F62
    expected = pair.run(train_pieces, False, 0.5)
    results = pair.run(train_pieces, True, 0.5)
    for got, of_replicas in zip(results, expected, strict=True):
        for mine, theirs in zip(got["reports"], of_replicas["reports"], strict=True):
            assert mine.outcome == theirs.outcome == "applied"
            assert (mine.loss, mine.grad_norm) == pytest.approx((theirs.loss, theirs.grad_norm), rel=1e-5)
        for mine, theirs in zip(got["weights"], of_replicas["weights"], strict=True):
            assert distance(mine, theirs) <= 1e-5 * norm(theirs)
        assert distance(got["averaged"], of_replicas["averaged"]) <= 1e-5 * norm(of_replicas["averaged"])
        assert identical(got["live"], got["weights"][-1])
        assert got["norms"] == pytest.approx(of_replicas["norms"], rel=1e-4)
        assert all(got["left"])
    assert identical(results[0]["weights"], results[1]["weights"])
    assert math.isfinite(results[1]["alone"])


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_bad_value_on_one_rank_skips_shards_of_both(pair, value):  # B25, B26, C56, C57
    results = pair.run(train_pieces, True, value)
    for result in results:
        assert [report.outcome for report in result["reports"]] == ["applied", "skipped", "applied"]
        assert result["reports"][1].reason == "non-finite gradient"
        assert identical(result["weights"][0], result["weights"][1])
        assert not identical(result["weights"][1], result["weights"][2])
    assert identical(results[0]["weights"], results[1]["weights"])


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


def train_adversaries(rank: int) -> list[bool]:
    """Whether each of two updates moved each of two modules, and whether gradients are left."""
    torch.manual_seed(0)
    modules = {"generator": nn.Linear(2, 2), "discriminator": nn.Linear(2, 1)}
    for module in modules.values():
        fully_shard(module, mesh=mesh(rank))
    generator, discriminator = modules.values()
    updaters = [
        ShardedUpdater({"sgd": torch.optim.SGD(module.parameters(), lr=0.1)}, modules=modules)
        for module in modules.values()
    ]
    moved = []
    for updater in updaters:
        before = {name: whole(module.parameters()) for name, module in modules.items()}
        updater.update([torch.ones(3, 2)], lambda x: (discriminator(generator(x)).square().mean(), len(x)))
        moved += [not identical(before[name], whole(module.parameters())) for name, module in modules.items()]
    return [*moved, any(p.grad is not None for module in modules.values() for p in module.parameters())]


def test_update_moves_no_sharded_module_of_another(pair):
    assert pair.run(train_adversaries) == [[True, False, False, True, False]] * 2


def fail_and_continue(rank: int, fails: bool) -> list[Tensor]:
    """A window after one that raises on both ranks in its second micro-batch."""
    torch.manual_seed(0)
    model = shard(classifier(), rank, "layers")
    updater = updater_of(model, lr=0.5)

    def loss(batch: Tokens) -> tuple[Tensor, float | Tensor]:
        if len(batch[1]) == 1:
            raise KeyError("no such token")
        return token_loss(model)(batch)

    if fails:
        with pytest.raises(KeyError):
            updater.update(tokens([4, 1, 4], rank), loss)
    updater.update(tokens([5, 3], rank), loss)
    return whole(model.parameters())


def test_window_that_raises_leaves_nothing_in_shards(pair):
    assert identical(pair.run(fail_and_continue, True), pair.run(fail_and_continue, False))


class Optional(nn.Module):
    """Negative inputs use a layer, and a replicated gain, that other inputs do not use."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.always, self.seldom, self.gain = nn.Linear(2, 2), nn.Linear(2, 2), nn.Parameter(torch.ones(1))
        if rank >= 0:
            fully_shard(self, mesh=mesh(rank), ignored_params={self.gain})

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * self.seldom(self.always(x)) if x.sum() < 0 else self.always(x)


def skip_unused(rank: int, sharded: bool, used: bool, as_tensor: bool) -> list[bool]:
    """Whether a window moved each parameter; its negative inputs have no weight, unless `used` on rank 1."""
    torch.manual_seed(0)
    model = Optional(rank if sharded else -1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    updater = (ShardedUpdater if sharded else Updater)({"adam": optimizer}, modules={"model": model})

    def loss(x: Tensor) -> tuple[Tensor, Any]:
        weight = float(x.sum() > 0 or (used and rank == 1))
        return model(x).square().mean(), torch.tensor(weight) if as_tensor else weight

    before = dict(zip(dict(model.named_parameters()), whole(model.parameters()), strict=True))
    updater.update([torch.ones(1, 2), -torch.ones(1, 2), torch.ones(2, 2)], loss)
    after = whole(model.parameters())
    return [not torch.equal(*values) for values in zip(before.values(), after, strict=True)]


@pytest.mark.parametrize(("used", "as_tensor"), [(False, False), (False, True), (True, False), (True, True)])
def test_parameters_that_only_zero_weights_use_stay(pair, used, as_tensor):
    for sharded in (False, True):
        for moved in pair.run(skip_unused, sharded, used, as_tensor):
            assert moved == [used, True, True, used, used]


def lose_in_half_precision(rank: int) -> None:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = fully_shard(nn.Linear(2, 1), mesh=mesh(rank), mp_policy=policy)
    updater_of(model).update([torch.ones(1, 2)], lambda x: (model(x).mean(), 1003))


def test_loss_of_shards_in_half_precision_is_refused(pair):
    message = "loss of sharded modules must be fp32, since its dtype would round the weight"
    assert_refused(pair, message, lose_in_half_precision)


def build_wrongly(rank: int, fault: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    options: dict[str, Any] = {"mesh": mesh(rank)}
    if fault == "tensor parallel":
        model[0].weight = nn.Parameter(distribute_tensor(model[0].weight.detach(), mesh(rank), [Shard(1)]))
    if fault == "half reduction":
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    if fault == "offload":
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=False)
    if fault == "muon":
        model[1] = nn.Linear(4, 1, bias=False)
    fully_shard(model[1], **options)
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=fault == "foreach" or None)
    if fault == "muon":
        optimizer = torch.optim.Muon(model[1].parameters())
    arguments: dict[str, Any] = {"transform": lambda: None} if fault == "transform" else {}
    arguments |= {"bf16_parameters": True} if fault == "bf16" else {}
    kind: Any = Updater if fault == "updater" else ShardedUpdater
    kind({"sgd": optimizer}, modules={"net": model}, **arguments)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("tensor parallel", "net.0.weight must be sharded by fully_shard alone"),
        ("half reduction", "gradients of sharded modules must be reduced in fp32, but got bfloat16."),
        ("offload", "sharded modules must stay on their device"),
        ("foreach", "optimizer 'sgd' must step sharded and replicated parameters one by one"),
        ("transform", "transforms must change whole gradients"),
        ("bf16", "parameters of sharded modules must be fp32, but got bf16_parameters."),
        ("muon", "net.1.weight must have as many rows as shards, 2, for the Muon optimizer 'sgd', but got 1."),
        ("updater", "parameters that are sharded must have a ShardedUpdater"),
    ],
)
def test_what_cannot_be_sharded_is_refused(pair, fault, message):
    assert_refused(pair, message, build_wrongly, fault)


def leave_out_a_root(rank: int, reduce_each: bool) -> int:
    first, second = (fully_shard(nn.Linear(2, 1), mesh=mesh(rank)) for _ in range(2))
    parameters = [*first.parameters(), *second.parameters()]
    updater = ShardedUpdater(
        {"sgd": torch.optim.SGD(parameters, lr=0.1)}, modules={"a": first, "b": second}, reduce_each=reduce_each
    )
    updater.update([torch.ones(1, 2), torch.ones(2, 2)], lambda x: ((first if len(x) == 1 else second)(x).sum(), 1))
    return len(updater.gradient_norms())


def test_root_left_out_of_the_last_pass_is_refused(pair):
    assert_refused(pair, "each micro-batch of a window must use the same sharded modules", leave_out_a_root, False)
    assert pair.run(leave_out_a_root, True) == [4, 4], "no gradient is lost"


def build_hybrid_mesh(rank: int) -> None:
    Context(rank=rank, world_size=4, local_world_size=3 if rank < 3 else 1).hybrid_mesh  # noqa: B018


def test_hybrid_mesh_of_uneven_nodes_is_refused(four):
    assert_refused(
        four, "hybrid sharding must have as many workers on each node, but got 3, 3, 3, 1 on", build_hybrid_mesh
    )


def create_meshes(rank: int) -> str:
    context = context_of(rank)
    context.hybrid_mesh  # noqa: B018
    context.close()
    leaks = ResourceLeaks()
    trial = context_of(rank)
    assert trial.hybrid_mesh.size() == 4
    trial.close()
    return leaks.find()


def test_closed_context_leaves_no_group_of_its_hybrid_mesh(four):
    assert four.run(create_meshes) == [""] * 4


def measure_norms(rank: int, keeps: bool) -> list[float]:
    """Return the gradient norms of two windows, the first of which has a micro-batch without weight."""
    torch.manual_seed(0)
    model, kept, norms = shard(classifier(), rank, "layers"), [], []
    updater = updater_of(model)

    def loss(batch: Tokens) -> tuple[Tensor, Tensor]:
        mean, weight = token_loss(model)(batch)
        if keeps:
            kept.append(mean)  # and the graph with it, in which torch uses the same nodes again
        return mean, torch.as_tensor(float(weight))

    for sizes in ([4, 0], [4]):
        report = updater.update(tokens(sizes, rank), loss)
        norms.append(float(report.grad_norm))
    return norms


def test_task_that_keeps_its_loss_keeps_its_gradients(pair):
    assert pair.run(measure_norms, True) == pair.run(measure_norms, False)
    assert min(pair.run(measure_norms, True)[0]) > 0
