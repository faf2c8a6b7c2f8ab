"""The rank of a worker, what ranks tell each other, and what they keep between trials. A single one needs no torch."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class Ranks:
    """The rank of a worker of a trial among all of them.

    Attributes:
        rank: The rank of this worker, from 0 to `world_size` - 1.
        world_size: The number of workers of the trial.
        files: The folder that the task's `prepare` filled before the search started, or None without a search.
        local_world_size: The number of ranks on this node. Default: all ranks.
        device: The device of modules and micro-batches, or None for the worker of a program, which has its own.
    """

    device: "torch.device | None" = None

    def __init__(
        self, rank: int = 0, world_size: int = 1, files: Path | None = None, local_world_size: int | None = None
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self.files = files
        self.local_world_size = local_world_size or world_size

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in the order of ranks."""
        if self.world_size == 1:
            return [value]
        import torch.distributed as dist

        gathered: list[Any] = [None] * self.world_size
        dist.all_gather_object(gathered, value)
        return gathered

    def broadcast_object(self, value: Any) -> Any:
        """Return the value that rank 0 passed. The values of other ranks are ignored."""
        if self.world_size == 1:
            return value
        import torch.distributed as dist

        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]

    def drop_changed_values(self) -> None:
        """Forget the values that are kept between trials and that a trial has changed."""

    def get_kept_size(self, kind: str) -> int:
        """Return the bytes of the values that are kept between trials on a `kind` of device, e.g. "cpu"."""
        return 0
