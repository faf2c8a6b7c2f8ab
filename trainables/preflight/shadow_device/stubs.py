"""What torch says of a GPU, while one is simulated."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor, serialization

from searchlight.trainables import private_api
from searchlight.trainables.preflight.shadow_device.device import ShadowDevice
from searchlight.trainables.preflight.shadow_device.generators import ShadowGenerator
from searchlight.trainables.preflight.shadow_device.storages import StorageTags, WrongDevice, find_place

NAME, CAPABILITY, MEMORY = "simulated GPU", (8, 0), 24 << 30
NOTHING = (
    "init", "_lazy_init", "set_device", "empty_cache", "ipc_collect", "manual_seed", "manual_seed_all", "seed",
    "seed_all", "reset_peak_memory_stats", "reset_accumulated_memory_stats", "set_per_process_memory_fraction",
    "set_stream", "set_device_index", "set_device_idx", "_exchange_device", "_maybe_exchange_device",
)  # fmt: skip
ZERO = (
    "current_device", "current_device_index", "current_device_idx", "memory_allocated", "max_memory_allocated",
    "memory_reserved", "max_memory_reserved", "utilization", "memory_usage", "temperature", "power_draw", "clock_rate",
)  # fmt: skip
PINNING = "cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned"


class Timeline:
    """A stream or an event: what it orders is computed at once."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def query(self) -> bool:
        """Return that everything is computed."""
        return True

    def is_capturing(self) -> bool:
        """Return that no graph is captured."""
        return False

    def elapsed_time(self, other: Any) -> float:
        """Return a time in milliseconds."""
        return 1.0

    def record_event(self, event: Any = None) -> Any:
        """Return an event."""
        return event or Timeline()

    def wait(self, *args: Any) -> None:
        """Wait for nothing."""

    record = wait_event = wait_stream = synchronize = wait


def install_stubs(
    stack: ExitStack, shadow: ShadowDevice, enter_mode: Callable[[], AbstractContextManager[object]]
) -> None:
    """Let torch behave as with one GPU, until `stack` is closed.

    Args:
        enter_mode: Returns a context in which the mode is on that sees functions.
    """
    private_api.dynamo_config  # noqa: B018  # imports torch._dynamo, whose tables refuse what is replaced below

    def replace(owner: Any, name: str, new: Any) -> None:
        stack.enter_context(mock.patch.object(owner, name, new))

    def compile_nothing(model: Any = None, **options: Any) -> Any:
        shadow.unseen.add("what torch.compile makes, which was replaced by the modules themselves")
        return model if model is not None else lambda function: function

    cuda, hooks = _list_cuda(shadow), torch.autograd.graph.saved_tensors_hooks
    for module in (torch.cuda, torch.cuda.random, torch.cuda.memory, torch.accelerator, torch.accelerator.memory):
        for name in cuda.keys() & {*dir(module)}:
            replace(module, name, cuda[name])
    replace(private_api.torch_c, "_accelerator_getAccelerator", lambda: torch.device("cuda"))
    replace(private_api.torch_c, "_group_tensors_by_device_and_dtype", _group_tensors)
    replace(torch.backends.cudnn, "is_acceptable", lambda tensor: False)  # else it warns that it is missing
    replace(torch.distributed, "init_process_group", _bind_process_group(torch.distributed.init_process_group))
    replace(torch, "Generator", ShadowGenerator)
    replace(Tensor, "record_stream", lambda tensor, stream: None)
    replace(Tensor, "pin_memory", _bind_pinning(shadow.tags))
    # Else its backward pass would run without the mode, which is off inside of a function that it sees.
    replace(torch.autograd, "has_torch_function", lambda tensors: False)
    replace(hooks, "__init__", _bind_hooks(hooks.__init__, enter_mode))
    registry = [_describe_package(shadow.tags), *private_api.storage_packages]
    replace(serialization, "_package_registry", registry)
    for name in ("is_autocast_enabled", "get_autocast_dtype", "set_autocast_enabled", "set_autocast_dtype"):
        replace(torch, name, _ask_cpu(getattr(torch, name)))
    replace(torch.autocast, "__init__", _bind_autocast(torch.autocast.__init__))
    replace(torch, "compile", compile_nothing)
    stack.enter_context(torch.compiler.set_stance("force_eager"))


def _list_cuda(shadow: ShadowDevice) -> dict[str, Any]:
    """Return the functions of torch.cuda on a machine with one GPU."""
    properties = SimpleNamespace(
        name=NAME, total_memory=MEMORY, major=CAPABILITY[0], minor=CAPABILITY[1], multi_processor_count=60
    )
    return {
        **dict.fromkeys(NOTHING, lambda *args, **kwargs: None),
        **dict.fromkeys(ZERO, lambda *args, **kwargs: 0),
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "get_per_process_memory_fraction": lambda *args: 1.0,
        "is_bf16_supported": lambda *args, **kwargs: True,
        "is_current_stream_capturing": lambda: False,
        "synchronize": lambda *args, **kwargs: shadow.count_wait("synchronize()"),
        "get_device_name": lambda *args: NAME,
        "get_device_capability": lambda *args: CAPABILITY,
        "get_device_properties": lambda *args: properties,
        "get_arch_list": lambda: ["sm_80"],
        "mem_get_info": lambda *args: (MEMORY, MEMORY),
        "memory_stats": lambda *args: {},
        "memory_summary": lambda *args, **kwargs: "",
        "get_rng_state": lambda *args: torch.get_rng_state(),  # the simulated GPU draws from the CPU's generator
        "set_rng_state": lambda state, *args: torch.set_rng_state(state),
        "get_rng_state_all": lambda: [torch.get_rng_state()],
        "set_rng_state_all": lambda states: torch.set_rng_state(states[0]),
        "initial_seed": torch.initial_seed,
        "Stream": Timeline,
        "Event": Timeline,
        "current_stream": Timeline,
        "default_stream": Timeline,
        "stream": lambda stream: nullcontext(),
        "device": lambda device: nullcontext(),
        "device_of": lambda tensor: nullcontext(),
    }


def _bind_process_group(start: Callable[..., None]) -> Callable[..., None]:
    """Return a function that starts a process group of gloo for one of NCCL, which needs a GPU."""

    def start_gloo(backend: str | None = None, *args: Any, **kwargs: Any) -> None:
        kwargs.pop("device_id", None)
        start("gloo" if backend is None or "nccl" in backend else backend, *args, **kwargs)

    return start_gloo


def _bind_autocast(start: Callable[..., None]) -> Callable[..., None]:
    """Return a constructor of autocast that takes the CPU for the GPU, since the operators run there."""

    def start_on_cpu(self: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or torch.float16
        start(self, device_type, dtype, *args, **kwargs)

    return start_on_cpu


def _ask_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    def ask(device_type: Any = "cuda", *args: Any) -> Any:
        if isinstance(device_type, bool):  # set_autocast_enabled(enabled), which means the GPU
            device_type, args = "cuda", (device_type,)
        return function("cpu" if device_type == "cuda" else device_type, *args)

    return ask


def _bind_hooks(
    start: Callable[..., None], enter_mode: Callable[[], AbstractContextManager[object]]
) -> Callable[..., None]:
    """Return a constructor of saved_tensors_hooks that lets hooks, e.g. those of checkpoints, run in the mode."""

    def bind(hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def run(value: Any) -> Any:
            with enter_mode():
                return hook(value)

        return run

    def start_in_mode(self: Any, pack_hook: Callable[[Any], Any], unpack_hook: Callable[[Any], Any]) -> None:
        start(self, bind(pack_hook), bind(unpack_hook))

    return start_in_mode


def _bind_pinning(tags: StorageTags) -> Callable[..., Tensor]:
    def pin_memory(tensor: Tensor, device: Any = None) -> Tensor:
        if tags.get(tensor) == "cuda":
            raise WrongDevice(PINNING)
        return tensor

    return pin_memory


def _group_tensors(lists: Sequence[Sequence[Tensor | None]], with_indices: bool = False) -> dict[Any, Any]:
    """Return the tensors of optimizers by device and dtype, which torch would group by the device that they are on."""
    groups: dict[Any, tuple[list[list[Tensor | None]], list[int]]] = {}
    for index, first in enumerate(lists[0]):
        assert first is not None
        columns, indices = groups.setdefault((first.device, first.dtype), ([[] for _ in lists], []))
        for column, tensors in zip(columns, lists, strict=True):
            if tensors:
                column.append(tensors[index])
        if with_indices:
            indices.append(index)
    return groups


def _describe_package(tags: StorageTags) -> tuple[int, Callable[[Any], str | None], Callable[[Any, str], Any]]:
    """Return how torch.save names the device of a storage, and how torch.load restores it."""

    def tag(storage: Any) -> str | None:
        return "cuda:0" if tags.get_of_storage(storage) == "cuda" else None

    def restore(storage: Any, location: str) -> Any:
        if not location.startswith("cuda"):
            return None
        find_place(location)
        tags.put_storage(storage)
        return storage

    return 0, tag, restore
