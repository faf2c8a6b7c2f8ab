"""Test updates of several modules and optimizers, of which some are sharded, and what they leave behind."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

from searchlight.trainables.isolation.resource_leaks import ResourceLeaks
from searchlight.trainables.update import Ema, Updater
from searchlight.trainables.update.sharding import ShardedEma, ShardedUpdater
from tests.trainables.toy_models import Tokens, classifier, distance, identical, norm, token_loss, tokens
from tests.trainables.update.shards import context_of, mesh, shard, updater_of, whole


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
