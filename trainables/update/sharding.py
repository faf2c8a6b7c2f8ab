"""Updates of modules that FSDP2 shards (`torch.distributed.fsdp.fully_shard`).

FSDP gathers weights in each forward and reduces gradients in backward, so all ranks must run the same passes. A rank
with fewer micro-batches repeats one with zero weight. Gradients are summed, and divided by the total weight at the end.
So a window of any shape trains on the exact gradient of its weighted mean.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule
from torch.distributed.tensor import DTensor, Replicate, Shard

from searchlight.trainables import private_api
from searchlight.trainables.context.context import get_flag_device
from searchlight.trainables.precision import autocast
from searchlight.trainables.update.accumulation import Accumulation, WindowTotals, check_graph, get_gradients
from searchlight.trainables.update.arguments import check_loss
from searchlight.trainables.update.batches import to_device
from searchlight.trainables.update.ema import Ema
from searchlight.trainables.update.parameters import get_local, get_parameters
from searchlight.trainables.update.reduction import get_world_size
from searchlight.trainables.update.sharded_window import ShardedAccumulation
from searchlight.trainables.update.updater import Batch, Loss, Updater


class ShardedUpdater(Updater):
    """An Updater for modules of which some or all are sharded.

    Each pass must use the same sharded modules on all ranks. Unless `reduce_each` is set, the last pass of a window
    must use each root module that an earlier pass used.

    Args:
        modules: All modules that a loss uses, by name.
        reduce_each: Reduce gradients after each micro-batch. This takes more communication, and less memory since no
            unsharded gradients are stored. fp16 always does so.
        padding: A context manager around each pass that only keeps the collectives of ranks in step. Metrics that the
            loss logs in it must not count.
        **options: The options of Updater. A `transform` is not supported.

    Raises:
        ValueError: A parameter or module has an unsupported sharding, or an unsupported option was given.
    """

    def __init__(
        self,
        optimizers: Mapping[str, torch.optim.Optimizer],
        precision: str = "fp32",
        device: str | torch.device | None = None,
        *,
        modules: Mapping[str, nn.Module],
        reduce_each: bool = False,
        padding: Callable[[], AbstractContextManager[None]] = nullcontext,
        **options: Any,
    ) -> None:
        if options.get("transform") is not None:
            raise ValueError("transforms must change whole gradients, but those of sharded modules are in parts.")
        if options.get("bf16_parameters"):
            raise ValueError(
                "parameters of sharded modules must be fp32, but got bf16_parameters. To compute in bf16, say "
                "MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)."
            )
        self._padding = padding
        self._fsdp_modules = find_fsdp_modules(modules)
        parts = [part for module in modules.values() for part in module.modules() if isinstance(part, FSDPModule)]
        inner = {id(below) for part in parts for below in part.modules() if below is not part}
        self._roots = [module for module in self._fsdp_modules if id(module) not in inner]
        self._all_parameters = [parameter for module in modules.values() for parameter in module.parameters()]
        super().__init__(optimizers, precision, device, modules=modules, **options)
        self.reduce_each = reduce_each or self.loss_scale is not None
        for module in self._fsdp_modules:  # each, since the factor does not apply to inner modules
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # a factor alone needs an operation that gloo lacks

    def _check_parameters(self) -> None:
        check_sharding(self._fsdp_modules, self._parameters, self._names)
        self._sharded = [p for p in self._trainable if isinstance(p, DTensor)]
        self._replicated = [p for p in self._trainable if not isinstance(p, DTensor)]
        for name, optimizer in self.optimizers.items():
            if isinstance(optimizer, torch.optim.Muon):
                self._check_muon(name, optimizer)
            for group in optimizer.param_groups:
                kinds = {isinstance(parameter, DTensor) for parameter in group["params"]}
                if len(kinds) > 1 and (group.get("foreach") or group.get("fused")):
                    raise ValueError(
                        f"optimizer {name!r} must step sharded and replicated parameters one by one, but got foreach "
                        "or fused. Leave that out, or make two optimizers."
                    )

    def _check_muon(self, name: str, optimizer: torch.optim.Optimizer) -> None:
        """Raise if a matrix has an empty shard, with which Muon's operations fail in the middle of a step."""
        for matrix in get_parameters(optimizer):
            if isinstance(matrix, DTensor) and matrix.shape[0] < (shards := matrix.device_mesh.size(-1)):
                raise ValueError(
                    f"{self._names[id(matrix)]} must have as many rows as shards, {shards}, for the Muon optimizer "
                    f"{name!r}, but got {matrix.shape[0]}. Give it to another optimizer."
                )

    def _accumulate(
        self, trainable: list[Tensor], window: Sequence[Batch], loss: Loss[Batch], ranks: int
    ) -> Accumulation:
        counts = _gather_counts(len(window), self.device)
        passes = max(counts)
        spare = _find_spare_batch(window, counts)
        scale = self.loss_scale.value if self.loss_scale else None
        accumulation = ShardedAccumulation(self._replicated, trainable, self.device, scale)
        try:
            with _check_roots(self._roots, 0 if self.reduce_each else passes) as begin_pass:
                for index in range(passes):
                    begin_pass()
                    for root in self._roots:
                        root.set_requires_gradient_sync(self.reduce_each or index == passes - 1)
                    if index < len(window):
                        self._run_pass(window[index], loss, accumulation, counts=True)
                    else:
                        buffers = self._buffers.copy()
                        with self._padding():
                            self._run_pass(spare, loss, accumulation, counts=False)
                        self._buffers.restore(buffers)
        except BaseException:  # any error: the state of unfinished passes would break the next window
            self._drop_unreduced()
            raise
        return accumulation

    def _run_pass(self, batch: Any, loss: Loss[Any], accumulation: ShardedAccumulation, counts: bool) -> None:
        batch = to_device(batch, self.device, self._keeps_fp64)
        with autocast(self.precision, self.device):
            returned = loss(batch)
        mean_loss, weight = check_loss(returned)
        if not self._graph_checked:
            check_graph(mean_loss)
            self._graph_checked = True
        accumulation.add(mean_loss, weight if counts else 0)

    def _measure(self, trainable: list[Tensor], window: Accumulation, ranks: int) -> WindowTotals:
        assert isinstance(window, ShardedAccumulation)
        sums = torch.cat(
            [
                window.compute_sums(),
                _measure_shards(self._sharded, self.device),
                window.count_uses(self._find_gathered()).double(),
            ]
        )
        dist.all_reduce(sums)
        numbers = [*sums.unbind(), window.reference.double()]
        if self._replicated:
            numbers += self._reducer.reduce(self._replicated, window)[:-3]
            numbers += torch._foreach_norm(get_gradients(self._replicated), 2, self._norm_dtype)
        read = torch.stack([number.double() for number in (*numbers, *window.losses)]).tolist()
        count, others = len(self._sharded), len(self._replicated)
        weight, loss, reference = read[0], read[1], read[2 + 3 * count]
        if not 0 <= weight < math.inf:
            raise ValueError("weight of a micro-batch must be a finite number of at least 0, but a rank had another.")
        factor = reference / weight / window.scale if weight else 1.0
        held: dict[int, float] = {}
        shards = zip(self._sharded, read[2:], read[2 + count :], read[2 + 2 * count :], strict=False)
        for parameter, square, present, uses in shards:
            if 0 < present < get_world_size():
                raise ValueError(
                    f"{self._names[id(parameter)]} must get a gradient on all ranks or on none, since it is sharded, "
                    f"but got one on {present:.0f} of {get_world_size()}."
                )
            if present and uses:
                held[id(parameter)] = square**0.5
            else:  # not zero, since weight decay would then move the parameter
                parameter.grad = None
        rest = read[3 + 3 * count :]
        for replica, present, norm in zip(self._replicated, rest, rest[others:], strict=False):
            if present:
                held[id(replica)] = norm
            else:
                replica.grad = None
        self._with_gradient = [parameter for parameter in trainable if id(parameter) in held]
        self._norms = [held[id(parameter)] * factor for parameter in self._with_gradient]
        losses = rest[2 * others :]
        bad = sum(not abs(number) < math.inf for number in losses)
        return WindowTotals(weight, loss / weight if weight else math.nan, factor, bad)

    def _find_gathered(self) -> list[Tensor | None]:
        """Return of each sharded parameter the gathered one, which modules use, or None if none used it yet."""
        parameters = [p for module in self._fsdp_modules for group in _get_groups(module) for p in group.fsdp_params]
        gathered = {id(p.sharded_param): getattr(p, "unsharded_param", None) for p in parameters}
        return [gathered.get(id(parameter)) for parameter in self._sharded]

    def _get_gradients(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        return [get_local(gradient) for gradient in get_gradients(parameters)]

    def _is_finite(self) -> bool:
        finite = torch.tensor(float(super()._is_finite()), device=self.device)
        dist.all_reduce(finite, dist.ReduceOp.MIN)
        return bool(finite)

    def _drop_gradients(self) -> None:
        super()._drop_gradients()
        for parameter in self._all_parameters:  # backward also reaches parameters of other updates
            parameter.grad = None

    def _drop_unreduced(self) -> None:
        for root in self._roots:
            # A root that ran no forward pass, or that is inside a root not in `modules`, has nothing to reset.
            with contextlib.suppress(RuntimeError, AttributeError):
                root.reset_iter_state()
        for module in self._fsdp_modules:
            for group in _get_groups(module):
                for parameter in group.fsdp_params:  # the reset does not change these
                    parameter.unsharded_accumulated_grad = None
                    if (gathered := getattr(parameter, "unsharded_param", None)) is not None:
                        gathered.grad = None

    def unsharded(self) -> AbstractContextManager[None]:
        return hold_unsharded(self._fsdp_modules)


class ShardedEma(Ema):
    """Averages of parameters of which some or all are sharded. Each rank has those of its shards."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], decay: float, modules: Mapping[str, nn.Module]) -> None:
        super().__init__(parameters, decay)
        self._fsdp_modules = find_fsdp_modules(modules)

    def _get_tensors(self, named: Mapping[str, Tensor]) -> list[Tensor]:
        return [get_local(tensor) for tensor in named.values()]

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        with torch.no_grad():
            live = self._get_tensors(self._live)
            copies = [tensor.clone() for tensor in live]
            torch._foreach_copy_(live, self._get_tensors(self._shadow))
        self._drop_gathered()
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(live, copies)
            self._drop_gathered()

    def _drop_gathered(self) -> None:
        """Free the gathered weights, since the shards have changed."""
        for module in self._fsdp_modules:
            module.reshard()
        torch.clear_autocast_cache()


def find_fsdp_modules(modules: Mapping[str, nn.Module]) -> list[FSDPModule]:
    """Return the modules that `fully_shard` was applied to, each once, outer modules first."""
    parts = dict.fromkeys(part for module in modules.values() for part in module.modules())
    return [part for part in parts if isinstance(part, FSDPModule)]


@contextlib.contextmanager
def hold_unsharded(modules: Sequence[FSDPModule]) -> Iterator[None]:
    """Gather the weights of `modules` once and keep them inside, so that forward passes need no communication."""
    kept = []
    for module in modules:
        module.unshard()
        for group in _get_groups(module):
            kept.append((group, group.post_forward_mesh_info))
            group.post_forward_mesh_info = None  # set_reshard_after_forward has no getter, to restore it
    try:
        yield
    finally:
        for group, mesh in reversed(kept):
            group.post_forward_mesh_info = mesh
        for module in modules:
            module.reshard()


def check_sharding(modules: Sequence[FSDPModule], parameters: Sequence[Tensor], names: Mapping[int, str]) -> None:
    """Raise if the sharded modules cannot be trained exactly.

    Raises:
        ValueError: A parameter is not sharded by FSDP2 over all ranks, or gradients are reduced in half precision.
    """
    groups = [group for module in modules for group in _get_groups(module)]
    for group in groups:
        if isinstance(group.offload_policy, CPUOffloadPolicy):
            raise ValueError("sharded modules must stay on their device, but got CPUOffloadPolicy. Leave it out.")
        policy = group.mp_policy
        reduced = policy.reduce_dtype or policy.param_dtype or torch.float32
        if reduced.itemsize < 4:
            name = str(reduced).removeprefix("torch.")
            raise ValueError(
                f"gradients of sharded modules must be reduced in fp32, but got {name}. "
                "Use MixedPrecisionPolicy(param_dtype=..., reduce_dtype=torch.float32)."
            )
    managed = {id(parameter.sharded_param) for group in groups for parameter in group.fsdp_params}
    for parameter in parameters:
        if not isinstance(parameter, DTensor):
            continue
        mesh, name = parameter.device_mesh, names[id(parameter)]
        kinds = [type(placement) for placement in parameter.placements]
        if id(parameter) not in managed or kinds not in ([Shard], [Replicate, Shard]):
            raise ValueError(
                f"{name} must be sharded by fully_shard alone, over one dimension of a mesh or with a second one of "
                f"replicas, but is {parameter.placements}. Tensor and pipeline parallelism are not supported."
            )
        if mesh.size() != get_world_size():
            raise ValueError(
                f"{name} must be sharded over all {get_world_size()} ranks, but its mesh has {mesh.size()}. "
                "Use self.context.mesh."
            )


def _get_groups(module: FSDPModule) -> list[Any]:
    """Return the FSDP parameter groups of `module`: one or none."""
    try:
        group = private_api.get_fsdp_group(private_api.get_fsdp_state(module))
    except AssertionError as error:
        raise ValueError("fully_shard must get one mesh for all parameters of a module, but got several.") from error
    return [] if group is None else [group]


def _gather_counts(count: int, device: torch.device) -> list[int]:
    """Return the number of micro-batches of each rank."""
    counts = torch.zeros(get_world_size(), dtype=torch.int64, device=get_flag_device(device))
    counts[dist.get_rank()] = count
    dist.all_reduce(counts)
    numbers: list[int] = counts.tolist()
    return numbers


def _find_spare_batch(window: Sequence[Batch], counts: Sequence[int]) -> Any:
    """Return a micro-batch to repeat with zero weight. A rank without micro-batches gets one of another rank."""
    spare = window[-1] if window else None
    if min(counts) == 0 < max(counts):
        source = counts.index(max(counts))
        sent = [window[0] if dist.get_rank() == source else None]
        dist.broadcast_object_list(sent, source)
        spare = sent[0] if spare is None else spare
    return spare


def _measure_shards(parameters: Sequence[Tensor], device: torch.device) -> Tensor:
    """Return two numbers for each of `parameters`, flattened to (2 * n,).

    The first n are this rank's share of the squared gradient norm. The others are 1 if there is a gradient, else 0.
    """
    measured = torch.zeros(2, len(parameters), dtype=torch.float64, device=device)
    held = [(index, p.grad) for index, p in enumerate(parameters) if p.grad is not None]
    if held:
        norms = torch._foreach_norm([get_local(gradient) for _, gradient in held], 2)
        # Divided by the number of replicas, since all replicas have the same shards.
        replicas = [get_world_size() / gradient.device_mesh.size(-1) for _, gradient in held]  # type: ignore[attr-defined]
        squares = torch.stack(norms).double().square() / torch.tensor(replicas, dtype=torch.float64).to(device)
        indices = torch.tensor([index for index, _ in held]).to(device)
        measured[0, indices] = squares
        measured[1, indices] = 1.0
    return measured.flatten()


@contextlib.contextmanager
def _check_roots(roots: Sequence[FSDPModule], passes: int) -> Iterator[Callable[[], None]]:
    """Check that the last pass used all roots that earlier passes used, since only it reduces their gradients.

    Yields:
        A function to call before each pass.

    Raises:
        ValueError: The last pass did not use a root.
    """
    if passes < 2 or len(roots) < 2:
        yield lambda: None
        return
    earlier: set[nn.Module] = set()
    used: set[nn.Module] = set()

    def begin_pass() -> None:
        earlier.update(used)
        used.clear()

    handles = [root.register_forward_pre_hook(lambda module, _: used.add(module)) for root in roots]  # type: ignore[attr-defined]
    try:
        yield begin_pass
    finally:
        for handle in handles:
            handle.remove()
    if left := [type(module).__name__ for module in earlier - used]:
        raise ValueError(
            f"each micro-batch of a window must use the same sharded modules, but not all use {left[0]}. "
            "Use it in each, or set reduce_each."
        )
