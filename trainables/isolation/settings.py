"""The settings of a process that a trial may change: those that are restored, and those that are only compared."""

import gc
import importlib
import locale
import logging
import multiprocessing
import os
import resource
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.utils.checkpoint

from searchlight.trainables import private_api
from searchlight.trainables.cuda import is_cuda_in_use

OURS = "searchlight"  # the worker listens to this logger and those below it
PRIVATE = "searchlight.trainables.private_api."
NEW_LOGGER: tuple[Any, ...] = (logging.NOTSET, False, True, [], [])  # the state of a logger that nobody has changed


SINGLETONS = (  # a module, and the call that resets its state
    ("accelerate.state", "accelerate.state.AcceleratorState._shared_state.clear()"),
    ("accelerate.state", "accelerate.state.PartialState._shared_state.clear()"),
    ("accelerate.state", "accelerate.state.GradientState._shared_state.clear()"),
    ("hydra.core.global_hydra", "hydra.core.global_hydra.GlobalHydra.instance().clear()"),
)


class Setting(NamedTuple):
    """A state of the whole process. `write` restores the result of `read`. None: the setting is only compared."""

    read: Callable[[], Any]
    write: Callable[[Any], object] | None = None


def resolve(name: str) -> Any:
    """Return the object that a dotted name stands for. A part that ends in "()" is called."""
    first, *parts = name.split(".")
    value: Any = importlib.import_module(first)
    for part in parts:
        value = getattr(value, part.removesuffix("()"))
        if part.endswith("()"):
            value = value()
    return value


def read_name(name: str) -> Any:
    """Return the value of a dotted name, as a copy if it has items."""
    value = resolve(name)
    return value.copy() if hasattr(value, "copy") else value


def write_name(name: str, value: Any) -> None:
    """Set the value of a dotted name. A list or a dict stays the same object, since others hold it."""
    owner, _, attribute = name.rpartition(".")
    if attribute.endswith("()"):  # get_x or is_x has its set_x
        getattr(resolve(owner), "set" + attribute[:-2].removeprefix("get").removeprefix("is"))(value)
    elif isinstance(value, list):
        resolve(name)[:] = value
    elif isinstance(value, dict):
        container = resolve(name)
        for key in container.keys() - value.keys():
            del container[key]
        container.update(value)
    else:
        setattr(resolve(owner), attribute, value)


def reset_singletons() -> None:
    """Reset states that libraries keep for the whole process, and refuse to set a second time."""
    for module, reset in SINGLETONS:
        if module in sys.modules:
            # In a version without this name, the next trial may fail, and then begins again in new workers.
            with suppress(AttributeError):
                resolve(reset)


def forget_warnings() -> None:
    """Clear the registries of shown warnings, so that every module shows its warnings again."""
    with warnings.catch_warnings():  # it makes Python drop what was shown under other filters
        pass
    getattr(warnings, "onceregistry", {}).clear()


def forget_safe_classes() -> None:
    """Remove the classes of modules that will be imported again from the safe globals of torch.load."""
    items = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    torch.serialization.add_safe_globals(
        [item for item in items if (item[0] if isinstance(item, tuple) else item).__module__ in sys.modules]
    )


def _restore_signal_handlers(before: dict[int, Any]) -> None:
    for number, handler in before.items():
        if signal.getsignal(number) != handler and handler is not None:  # None: it was not set by Python
            signal.signal(number, handler)


def _get_logger_states() -> dict[str, tuple[Any, ...]]:
    """Return the states of changed loggers, by name."""
    return {
        name: state
        for name, logger in {"": logging.root, **logging.root.manager.loggerDict}.items()
        if isinstance(logger, logging.Logger) and name.partition(".")[0] != OURS
        for state in [(logger.level, logger.disabled, logger.propagate, [*logger.handlers], [*logger.filters])]
        if state != NEW_LOGGER
    }


def _restore_loggers(before: dict[str, tuple[Any, ...]]) -> None:
    for name in before.keys() | _get_logger_states().keys():
        logger = logging.getLogger(name)
        level, logger.disabled, logger.propagate, handlers, filters = before.get(name, NEW_LOGGER)
        for handler in [*logger.handlers]:
            if handler not in handlers:
                handler.close()  # most of them hold a file
        logger.handlers[:], logger.filters[:] = handlers, filters
        logger.setLevel(level)  # also clears the levels that loggers have cached


def _get_umask() -> int:
    mask = os.umask(0o077)  # a umask cannot be read without a write
    os.umask(mask)
    return mask


def _get_autocast_state() -> tuple[Any, ...]:
    kinds = [(kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda")]
    torch.autocast_increment_nesting()  # the depth cannot be read without a write
    return kinds, torch.autocast_decrement_nesting()


def _restore_autocast_state(before: tuple[Any, ...]) -> None:
    kinds, depth = before
    for kind, is_enabled, dtype in kinds:
        torch.set_autocast_enabled(kind, is_enabled)
        torch.set_autocast_dtype(kind, dtype)
    while _get_autocast_state()[1] > depth:
        torch.autocast_decrement_nesting()


def _restore_config(name: str, before: dict[str, Any]) -> None:
    config = getattr(private_api, name)
    now = config.get_config_copy()
    config.load_config({key: value for key, value in before.items() if now[key] != value})  # a write marks a value


# They are restored in this order.
RESTORED_NAMES = (
    "torch.is_grad_enabled()", "torch.get_default_dtype()", "torch.is_anomaly_enabled()",
    "torch.get_deterministic_debug_mode()", "torch.get_num_threads()", "torch.is_autocast_cache_enabled()",
    "torch.multiprocessing.get_sharing_strategy()",
    # The old way to set the precision of fp32 changes the settings of the new way, which follow.
    "torch.get_float32_matmul_precision()", "torch.backends.cudnn.allow_tf32", "torch.backends.fp32_precision",
    *(f"torch.backends.{name}.fp32_precision" for name in ("cudnn", "cuda.matmul", "cudnn.conv", "cudnn.rnn")),
    *(f"torch.backends.mkldnn.{name}.fp32_precision" for name in ("matmul", "conv", "rnn")),
    "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction",
    "torch.backends.cuda.matmul.allow_fp16_accumulation",
    "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction",
    *(f"torch.backends.cudnn.{name}" for name in ("enabled", "benchmark", "benchmark_limit", "deterministic")),
    "torch.backends.mkldnn.enabled", "torch.backends.mkldnn.deterministic",
    *(f"{PRIVATE}{hooks}" for hooks in (*private_api.MODULE_HOOKS, *private_api.OPTIMIZER_HOOKS)),
    f"{PRIVATE}print_options.__dict__", "gc.callbacks", "logging.root.manager.disable", "os.environ", "sys.argv",
    "sys.excepthook", "sys.getrecursionlimit()", "sys.path", "sys.stderr", "sys.stdin", "sys.stdout",
    "sys.unraisablehook", "threading.excepthook", "warnings.filters", "warnings.showwarning",
)  # fmt: skip

# A trial that changes one of these ends its process, since hardly any task does so.
COMPARED_NAMES = (
    "socket.getdefaulttimeout()", "sys.getprofile()", "sys.gettrace()", "torch.Tensor().type()",
    "torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()", "torch.backends.flags_frozen()",
    "torch.backends.mha.get_fastpath_enabled()", "torch.backends.mkldnn.fp32_precision",
    "torch.backends.opt_einsum.enabled", "torch.get_num_interop_threads()", "torch.is_inference_mode_enabled()",
    "torch.utils.deterministic.fill_uninitialized_memory",
    f"{PRIVATE}count_function_modes()", f"{PRIVATE}is_full_backward_hook",
    f"{PRIVATE}get_allocator_settings()",  # of torch._C._accelerator_setAllocatorSettings, e.g. other segments
)  # fmt: skip

SETTINGS = {
    # With "cpu", torch would put a function mode between each call and itself.
    "torch.get_default_device()": Setting(
        torch.get_default_device, lambda device: torch.set_default_device(None if device.type == "cpu" else device)
    ),
    **{
        name.removeprefix(PRIVATE): Setting(partial(read_name, name), partial(write_name, name))
        for name in RESTORED_NAMES
    },
    "autocast": Setting(_get_autocast_state, _restore_autocast_state),
    **{  # a call without an argument reads
        f"the preferred library of {kind}": Setting(library, library)
        for kind, library in {
            "blas": torch.backends.cuda.preferred_blas_library,
            "linear algebra": torch.backends.cuda.preferred_linalg_library,
        }.items()
    },
    **{
        f"{kind} attention": Setting(
            getattr(torch.backends.cuda, f"{kind}_sdp_enabled"), getattr(torch.backends.cuda, f"enable_{kind}_sdp")
        )
        for kind in ("flash", "math", "mem_efficient", "cudnn")
    },
    **{
        name: Setting(partial(resolve, f"{PRIVATE}{name}.get_config_copy()"), partial(_restore_config, name))
        for name in ("dynamo_config", "functorch_config", "inductor_config")
    },
    "the device of CUDA": Setting(lambda: int(is_cuda_in_use() and torch.cuda.current_device()), torch.cuda.set_device),
    "the memory fraction of CUDA": Setting(
        lambda: torch.cuda.get_per_process_memory_fraction() if is_cuda_in_use() else 1.0,
        lambda share: torch.cuda.set_per_process_memory_fraction(share),
    ),
    "the warnings of CUDA about waits": Setting(
        lambda: torch.cuda.get_sync_debug_mode() if is_cuda_in_use() else 0,
        lambda mode: torch.cuda.set_sync_debug_mode(mode),
    ),
    "the validation of distributions": Setting(  # the first compilation turns it off
        partial(read_name, f"{PRIVATE}validate_distribution_args"),
        torch.distributions.Distribution.set_default_validate_args,
    ),
    "the current folder": Setting(os.getcwd, os.chdir),
    "the signal handlers": Setting(
        lambda: {number: signal.getsignal(number) for number in signal.valid_signals()}, _restore_signal_handlers
    ),
    "the loggers": Setting(_get_logger_states, _restore_loggers),
    "the start method of processes": Setting(
        partial(multiprocessing.get_start_method, allow_none=True),
        partial(multiprocessing.set_start_method, force=True),
    ),
    "the garbage collector": Setting(gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
    "the thresholds of the garbage collector": Setting(gc.get_threshold, lambda counts: gc.set_threshold(*counts)),
    "numpy's treatment of errors": Setting(np.geterr, lambda state: np.seterr(**state)),
    "numpy's print options": Setting(np.get_printoptions, lambda options: np.set_printoptions(**options)),
    **{name.removeprefix(PRIVATE): Setting(partial(read_name, name)) for name in COMPARED_NAMES},
    "the flushing of denormals": Setting(lambda: (torch.tensor(1e-39, dtype=torch.float32, device="cpu") * 1.0).item()),
    "what torch.load may make": Setting(
        # Modules of torch add theirs when they are imported.
        lambda: sorted(name for item in torch.serialization.get_safe_globals() if "torch." not in (name := str(item)))
    ),
    "the locale": Setting(lambda: locale.setlocale(locale.LC_ALL)),
    "the umask": Setting(_get_umask),
    "the limits of resources": Setting(
        lambda: [resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")]
    ),
    "the hooks of saved tensors": Setting(lambda: private_api.get_saved_tensor_hooks(False)),
    "the stream of CUDA": Setting(lambda: int(is_cuda_in_use() and torch.cuda.current_stream().cuda_stream)),
}
