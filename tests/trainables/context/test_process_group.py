"""A context of a single rank makes a process group if a mesh needs one, and ends its own alone."""

import pytest
import torch

from searchlight.trainables.context import Context
from searchlight.trainables.context.context import create_single_rank_group, get_flag_device
from tests.trainables.two_ranks import RANKS


def test_single_rank_makes_and_ends_a_process_group():
    context = Context()
    assert (context.mesh.size(), context.mesh is context.mesh) == (1, True)
    assert context.for_next_trial().mesh.size() == 1
    context.close()
    assert not torch.distributed.is_initialized()


def test_process_group_of_the_task_outlives_the_context():
    context = Context()
    assert context.mesh.size() == 1
    torch.distributed.destroy_process_group()
    create_single_rank_group(context.device)
    own = torch.distributed.group.WORLD
    other = context.for_next_trial()
    assert other.mesh.size() == 1
    other.close()
    context.close()
    assert torch.distributed.group.WORLD is own
    torch.distributed.destroy_process_group()


def exchange_flags(rank):
    context = Context("cuda:0", rank, RANKS)  # which is not here: the flags must not touch it
    return context.any(rank == 0, False, True)


def test_flags_of_gpu_ranks_are_exchanged_on_the_cpu(pair):
    assert pair.run(exchange_flags) == [[True, False, True]] * RANKS


@pytest.mark.parametrize(("backends", "device"), [("cpu:gloo,cuda:nccl", "cpu"), ("cuda:nccl", "cuda:0")])
def test_flags_need_the_gpu_only_in_a_group_without_gloo(monkeypatch, backends, device):
    monkeypatch.setattr(torch.distributed, "get_backend_config", lambda: backends)
    assert get_flag_device(torch.device("cuda:0")) == torch.device(device)
