"""A context of a single rank makes a process group if a mesh needs one, and ends its own alone."""

import torch

from searchlight.trainables.context import Context
from searchlight.trainables.context.context import create_single_rank_group


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
