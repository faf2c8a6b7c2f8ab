"""The device, rank, random generator and collectives of one worker."""

import functools
import math
import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist

from searchlight.trainables import private_api
from searchlight.trainables.context import rng
from searchlight.trainables.context.cache import Cache
from searchlight.trainables.cuda import GPU_BACKEND
from searchlight.trainables.ranks import Ranks

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

Value = TypeVar("Value")
# The contexts that use a process group of a single rank that one of them created.
_GROUP_USERS: "weakref.WeakSet[Context]" = weakref.WeakSet()


class Context(Ranks):
    """The device, rank, random generator and collectives of one worker of a trial.

    Attributes:
        device: The device of modules and micro-batches.
        rank: The rank of this worker, from 0 to `world_size` - 1.
        world_size: The number of workers of the trial.
        generator: A generator on the CPU. The training loop seeds it for each epoch from the trial's seed, the same on
            all ranks.
        cache_store: The values that `cache` keeps.
        files: The folder that the task's `prepare` filled before the search started, or None without a search.
        local_world_size: The number of ranks on this node. Default: all ranks.
    """

    def __init__(
        self,
        device: str | torch.device = "cpu",
        rank: int = 0,
        world_size: int = 1,
        files: Path | None = None,
        local_world_size: int | None = None,
    ) -> None:
        super().__init__(rank, world_size, files, local_world_size)
        self.device: torch.device = torch.device(device)
        self.generator = torch.Generator()
        self.cache_store = Cache()
        self._mesh: DeviceMesh | None = None
        self._hybrid_mesh: DeviceMesh | None = None
        self.own_group: ProcessGroup | None = None  # of all ranks, if a context created it

    @property
    def mesh(self) -> "DeviceMesh":
        """The one-dimensional mesh of all ranks, for `fully_shard`. Without a process group, one is created."""
        if self._mesh is None:
            self._mesh = self._create_mesh({"shard": self.world_size})
        return self._mesh

    @property
    def hybrid_mesh(self) -> "DeviceMesh":
        """The two-dimensional mesh of nodes and their ranks, for hybrid sharding.

        `fully_shard` then splits a module over the ranks of a node and keeps a replica on each node.

        Raises:
            ValueError: The nodes have different numbers of ranks.
        """
        if self._hybrid_mesh is None:
            local = self.gather(self.local_world_size)
            if len({*local}) > 1:
                raise ValueError(
                    f"hybrid sharding must have as many workers on each node, but got {', '.join(map(str, local))} on "
                    "the nodes of the ranks. Choose such a number of --workers, or shard over all workers."
                )
            nodes = self.world_size // self.local_world_size
            self._hybrid_mesh = self._create_mesh({"replicate": nodes, "shard": self.local_world_size})
        return self._hybrid_mesh

    def _create_mesh(self, sizes: Mapping[str, int]) -> "DeviceMesh":
        from torch.distributed.device_mesh import init_device_mesh

        if not dist.is_initialized():
            create_single_rank_group(self.device)
            self.own_group = dist.group.WORLD
        elif any(user.own_group is dist.group.WORLD for user in _GROUP_USERS):  # the code of a task may replace it
            self.own_group = dist.group.WORLD
        if self.own_group is not None:
            _GROUP_USERS.add(self)
        return init_device_mesh(self.device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))

    def close(self) -> None:
        """Destroy the process groups that the meshes created, unless another context uses them."""
        if self._hybrid_mesh is not None and dist.is_initialized():
            for group in self._hybrid_mesh.get_all_groups():
                if group is not dist.group.WORLD:
                    dist.destroy_process_group(group)
            private_api.clear_sharding_cache()  # it would give the next equal mesh these groups
        self._mesh = self._hybrid_mesh = None
        own, self.own_group = self.own_group, None
        _GROUP_USERS.discard(self)
        if own is not None and own is dist.group.WORLD and not any(user.own_group is own for user in _GROUP_USERS):
            dist.destroy_process_group()

    def for_next_trial(self) -> "Context":
        """Return a copy of this context for another trial. The trials share only the values of `cache`."""
        fresh = Context(self.device, self.rank, self.world_size, self.files, self.local_world_size)
        fresh.cache_store = self.cache_store
        return fresh

    def cache(self, name: str, make: Callable[[], Value]) -> Value:
        """Return the result of `make`, kept between the trials of this worker. Use it for data that loads slowly.

        Args:
            name: The key of the value. It must contain everything that the value depends on. The random numbers that
                `make` draws are seeded with it.
            make: A function that is called if no value has this name. Arrays in its result become read-only. If a trial
                changes a tensor or container of the value, the value is dropped after the trial.
        """

        def make_isolated() -> Value:
            with rng.isolated(self.generator, self.device, zlib.crc32(name.encode())):
                return make()

        value: Value = self.cache_store.get(name, make_isolated)
        return value

    def drop_changed_values(self) -> None:
        """Forget the values of `cache` that a trial has changed."""
        self.cache_store.drop_changed()

    def get_kept_size(self, kind: str) -> int:
        """Return the bytes of the values of `cache` on a `kind` of device, e.g. "cpu"."""
        return self.cache_store.get_size(kind)

    def shard(self, data: Any, batch_size: int, shuffle: bool = True) -> Iterator[Any]:
        """Yield this rank's share of `data` in batches, without padding or duplicates.

        Args:
            data: A tensor or array of shape (samples, ...), or a tuple or dict of tensors and arrays of one length. A
                batch has the same structure, also that of a data frame. The items of another sequence are yielded as
                lists.
            batch_size: The largest number of samples per micro-batch.
            shuffle: Whether to draw a new order each epoch, the same on all ranks.

        Raises:
            ValueError: The batch size is below 1, or the parts of `data` differ in length.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, but got {batch_size}.")
        count = _get_length(data)
        draw = functools.partial(torch.randperm, generator=self.generator) if shuffle else torch.arange
        order = draw(count, device="cpu")  # with the generator, whatever the default device is
        for indices in torch.split(order[self.rank :: self.world_size], batch_size):
            if len(indices):  # torch.split returns one empty part for an empty tensor
                yield _take(data, indices)

    def micro_batches(self, count: int, batch_size: int) -> int:
        """Return the largest number of batches that `shard` yields on any rank.

        Args:
            count: The number of samples on all ranks together.
            batch_size: The largest number of samples per micro-batch.
        """
        return math.ceil(math.ceil(count / self.world_size) / batch_size)

    def any(self, *flags: bool) -> list[bool]:
        """Return for each flag whether it is set on at least one rank. All ranks must call it."""
        if self.world_size == 1:
            return list(flags)
        total = torch.tensor([float(flag) for flag in flags], device=get_flag_device(self.device))
        dist.all_reduce(total)
        return [count > 0 for count in total.tolist()]

    def all_reduce_sums(self, values: Mapping[str, float]) -> dict[str, float]:
        """Return the sums of `values` over all ranks, by name. A name need not exist on each rank."""
        totals: dict[str, float] = {}
        for part in self.gather(dict(values)):
            for name, value in part.items():
                totals[name] = totals.get(name, 0.0) + value
        return totals

    def weighted_means(self, parts: Mapping[str, tuple[float, float]]) -> dict[str, float]:
        """Return weighted means over all ranks, by name.

        Args:
            parts: The (weighted sum, weight) of this rank, by name. The mean is NaN if all weights are 0.
        """
        totals = self.all_reduce_sums({name: total for name, (total, _) in parts.items()})
        weights = self.all_reduce_sums({name: weight for name, (_, weight) in parts.items()})
        return {name: total / weights[name] if weights[name] else math.nan for name, total in totals.items()}

    def all_reduce(self, tensors: Sequence[torch.Tensor]) -> None:
        """Sum `tensors` over all ranks, in place."""
        if self.world_size > 1:
            for tensor in tensors:
                dist.all_reduce(tensor)

    def broadcast(self, tensors: Sequence[torch.Tensor]) -> None:
        """Copy `tensors` of rank 0 into those of the other ranks, in place."""
        if self.world_size > 1:
            for tensor in tensors:
                dist.broadcast(tensor.data, src=0)


def get_flag_device(device: torch.device) -> torch.device:
    """Return where ranks exchange a few numbers of the host: the CPU, or `device` in a group without gloo."""
    return torch.device("cpu") if "cpu" in dist.get_backend_config() else device


def create_single_rank_group(device: torch.device) -> None:
    """Create the default process group for a process that is its only rank."""
    from torch.distributed import HashStore  # type: ignore[attr-defined]

    backend = GPU_BACKEND if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)


def _get_length(data: Any) -> int:
    if isinstance(data, dict | tuple):
        lengths = {_get_length(part) for part in (data.values() if isinstance(data, dict) else data)}
        if len(lengths) != 1:
            raise ValueError(f"data must have parts of one length, but got lengths {sorted(lengths)}.")
        return lengths.pop()
    return len(data)


def _take(data: Any, indices: torch.Tensor) -> Any:
    if isinstance(data, dict):
        return {key: _take(part, indices) for key, part in data.items()}
    if isinstance(data, tuple):
        return tuple(_take(part, indices) for part in data)
    if isinstance(data, torch.Tensor):
        return data[indices.to(data.device)]
    if hasattr(data, "iloc"):  # a data frame or series of pandas, whose [] takes labels
        return data.iloc[indices.numpy()]
    if hasattr(data, "__array__"):
        return data[indices.numpy()]
    return [data[int(index)] for index in indices]
