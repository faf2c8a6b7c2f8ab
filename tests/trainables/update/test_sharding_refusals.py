"""Test that what cannot be sharded is refused on all ranks."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard, distribute_tensor

from searchlight.trainables.context import Context
from searchlight.trainables.update import Updater
from searchlight.trainables.update.sharding import ShardedUpdater
from tests.trainables.update.shards import mesh, updater_of


def error_of(rank: int, action: Any, *arguments: Any) -> str:
    try:
        action(rank, *arguments)
    except ValueError as error:
        return str(error)
    return "no error"


def assert_refused(ranks: Any, message: str, action: Any, *arguments: Any) -> None:
    for answer in ranks.run(error_of, action, *arguments):
        assert answer.startswith(message)


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
