"""What a trial may do to its process, and how the next one in it would notice."""

import decimal
import gc
import io
import locale
import logging
import multiprocessing
import os
import random
import resource
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.optim.optimizer as optimizers
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import checkpoint as checkpointing

from trainables.isolation.process import SETTINGS

KEPT: list[Any] = []  # what would end by itself if nobody held on to it


class Mode(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


class DispatchMode(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def enter(context: Any) -> None:
    context.__enter__()
    KEPT.append(context)


def hook(*arguments: Any) -> None:
    return None


def frozen(module: nn.Module, name: str, parameter: Any) -> Any:
    return parameter if parameter is None else parameter.requires_grad_(False)


def converted() -> bool:
    """Whether a module keeps its parameters when it is converted."""
    module = nn.Linear(1, 1)
    before = module.weight
    return module.double().weight is before


def recomputed() -> int:
    """How many of two steps are computed again in backward, where the first one alone is needed."""
    calls: list[int] = []

    def steps(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        y = x.sin()
        calls.append(2)
        return y

    checkpointing.checkpoint(steps, torch.ones(1, requires_grad=True), use_reentrant=False).backward()
    return len(calls)


def warned() -> int:
    """How many times a warning is shown that comes from one place again and again."""
    shown = []
    before, warnings.showwarning = warnings.showwarning, lambda *warning: shown.append(warning)
    try:
        warnings.warn("once per place", stacklevel=1)
    finally:
        warnings.showwarning = before
    return len(shown)


# What a trial does, and how another one would notice.
Leak = tuple[Callable[[], Any], Callable[[], Any]]
LEAKS: dict[str, Leak] = {
    "default dtype": (lambda: torch.set_default_dtype(torch.float64), lambda: torch.empty(0).dtype),
    "default device": (lambda: torch.set_default_device("meta"), lambda: torch.empty(0).device),
    "device context": (lambda: enter(torch.device("meta")), lambda: torch.empty(0).device),
    "function mode": (lambda: enter(Mode()), torch._C._len_torch_function_stack),
    "function mode and default device": (
        lambda: (torch.set_default_device("meta"), enter(Mode())),
        lambda: (torch.empty(0).device, torch.get_default_device(), torch._C._len_torch_function_stack()),
    ),
    "dispatch mode": (lambda: enter(DispatchMode()), torch._C._len_torch_dispatch_stack),
    "grad mode": (lambda: torch.set_grad_enabled(False), lambda: nn.Linear(1, 1)(torch.ones(1)).requires_grad),
    "inference mode": (lambda: enter(torch.inference_mode()), lambda: torch.ones(1).is_inference()),
    "saved tensor hooks": (
        lambda: enter(torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x)),
        lambda: torch._C._autograd._top_saved_tensors_default_hooks(False) is None,
    ),
    "threads of backward": (
        lambda: KEPT.append(torch.autograd.set_multithreading_enabled(False)),
        torch._C._is_multithreading_enabled,
    ),
    "anomaly detection": (lambda: torch.autograd.set_detect_anomaly(True), torch.is_anomaly_enabled),
    "deterministic algorithms": (
        lambda: torch.use_deterministic_algorithms(True, warn_only=True),
        torch.get_deterministic_debug_mode,
    ),
    "matmul precision": (lambda: torch.set_float32_matmul_precision("medium"), torch.get_float32_matmul_precision),
    "precision of mkldnn": (
        lambda: setattr(torch.backends.mkldnn.matmul, "fp32_precision", "bf16"),
        lambda: torch.backends.mkldnn.matmul.fp32_precision,
    ),
    "tf32": (
        lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True),
        lambda: torch.backends.cuda.matmul.allow_tf32,
    ),
    "denormals": (lambda: torch.set_flush_denormal(True), lambda: (torch.tensor(1e-39) * 1.0).item()),
    "threads": (lambda: torch.set_num_threads(3), torch.get_num_threads),
    "autocast": (
        lambda: enter(torch.autocast("cpu", dtype=torch.float16)),
        lambda: (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), read("the depth of autocast")),
    ),
    "autocast cache": (lambda: torch.set_autocast_cache_enabled(False), torch.is_autocast_cache_enabled),
    "cudnn": (lambda: setattr(torch.backends.cudnn, "benchmark", True), lambda: torch.backends.cudnn.benchmark),
    "mkldnn": (lambda: setattr(torch.backends.mkldnn, "enabled", False), lambda: torch.backends.mkldnn.enabled),
    "attention": (lambda: torch.backends.cuda.enable_flash_sdp(False), torch.backends.cuda.flash_sdp_enabled),
    "limit of cudnn's benchmark": (
        lambda: setattr(torch.backends.cudnn, "benchmark_limit", 3),
        lambda: torch.backends.cudnn.benchmark_limit,
    ),
    "lock of torch.backends": (
        lambda: (torch.backends.mkldnn.set_flags(False), torch.backends.disable_global_flags()),
        lambda: (torch.backends.mkldnn.enabled, torch.backends.flags_frozen()),
    ),
    "nnpack": (lambda: torch.backends.nnpack.set_flags(False), torch._C._get_nnpack_enabled),
    "fast path of attention": (
        lambda: torch.backends.mha.set_fastpath_enabled(False),
        torch.backends.mha.get_fastpath_enabled,
    ),
    "order of attentions": (
        lambda: enter(sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION], set_priority=True)),
        torch._C._get_sdp_priority_order,
    ),
    "sums of plain attention": (
        lambda: torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True),
        torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed,
    ),
    "accumulation in fp16": (
        lambda: setattr(torch.backends.cuda.matmul, "allow_fp16_accumulation", True),
        lambda: torch.backends.cuda.matmul.allow_fp16_accumulation,
    ),
    "checks of sparse tensors": (
        lambda: torch.sparse.check_sparse_tensor_invariants.enable(),
        torch.sparse.check_sparse_tensor_invariants.is_enabled,
    ),
    "validation of distributions": (
        lambda: torch.distributions.Distribution.set_default_validate_args(False),
        lambda: torch.distributions.Bernoulli(0.5)._validate_args,
    ),
    "new tensors in the conversion of modules": (
        lambda: torch.__future__.set_overwrite_module_params_on_conversion(True),
        converted,
    ),
    "swapped tensors in the conversion of modules": (
        lambda: torch.__future__.set_swap_module_params_on_conversion(True),
        torch.__future__.get_swap_module_params_on_conversion,
    ),
    "early stop of checkpointing": (lambda: enter(checkpointing.set_checkpoint_early_stop(False)), recomputed),
    "debug mode of checkpointing": (
        lambda: enter(checkpointing.set_checkpoint_debug_enabled(True)),
        lambda: checkpointing._checkpoint_debug_enabled,
    ),
    "what torch.load may make": (
        lambda: torch.serialization.add_safe_globals([Mode]),
        lambda: len(torch.serialization.get_safe_globals()),
    ),
    "fuser of TorchScript": (lambda: enter(torch.jit.fuser("fuser0")), torch._C._jit_texpr_fuser_enabled),
    "hook on all modules": (
        lambda: nn.modules.module.register_module_forward_hook(lambda module, x, y: 2 * y),
        lambda: nn.Identity()(torch.ones(1)).item(),
    ),
    "hook on all parameters": (
        lambda: nn.modules.module.register_module_parameter_registration_hook(frozen),
        lambda: nn.Linear(1, 1).bias.requires_grad,
    ),
    "hook on all optimizers": (
        lambda: optimizers.register_optimizer_step_pre_hook(hook),
        lambda: len(optimizers._global_optimizer_pre_hooks),
    ),
    "torch.compile": (
        lambda: setattr(torch._dynamo.config, "suppress_errors", True),
        lambda: torch._dynamo.config.suppress_errors,
    ),
    "print options of torch": (lambda: torch.set_printoptions(precision=1), lambda: str(torch.tensor(0.123))),
    "sharing of tensors": (
        lambda: torch.multiprocessing.set_sharing_strategy("file_system"),
        torch.multiprocessing.get_sharing_strategy,
    ),
    "generators": (
        lambda: (random.seed(7), np.random.seed(7), torch.manual_seed(7), random.random()),
        lambda: (random.getstate()[1][:3], np.random.get_state()[1][:3].tolist(), torch.initial_seed()),
    ),
    "numpy's errors": (lambda: np.seterr(all="raise"), np.geterr),
    "numpy's print options": (lambda: np.set_printoptions(precision=1), lambda: str(np.array([0.123]))),
    "environment, added": (lambda: os.environ.update(LEAKED="1"), lambda: os.environ.get("LEAKED")),
    "environment, changed": (lambda: os.environ.update(HOME="/"), lambda: os.environ["HOME"]),
    "environment, removed": (lambda: os.environ.pop("HOME"), lambda: os.environ.get("HOME")),
    "current folder": (lambda: os.chdir("/"), os.getcwd),
    "limit of memory": (
        lambda: resource.setrlimit(resource.RLIMIT_AS, (2**45, resource.getrlimit(resource.RLIMIT_AS)[1])),
        lambda: resource.getrlimit(resource.RLIMIT_AS),
    ),
    "umask": (lambda: os.umask(0o077), lambda: read("the umask")),
    "locale": (lambda: locale.setlocale(locale.LC_ALL, "C"), lambda: locale.setlocale(locale.LC_ALL)),
    "signal handler": (lambda: signal.signal(signal.SIGUSR1, hook), lambda: signal.getsignal(signal.SIGUSR1)),
    "warning filters": (lambda: warnings.simplefilter("error"), lambda: warnings.filters[0]),
    "warnings shown once": (warned, warned),
    "showwarning": (lambda: logging.captureWarnings(True), lambda: warnings.showwarning),
    "root logger": (lambda: logging.basicConfig(level=1, force=True), lambda: logging.root.handlers.copy()),
    "level of a logger": (
        lambda: logging.getLogger("torch").setLevel(logging.FATAL),
        lambda: logging.getLogger("torch").level,
    ),
    "new logger": (
        lambda: logging.getLogger("of_a_trial").addHandler(logging.NullHandler()),
        lambda: len(logging.getLogger("of_a_trial").handlers),
    ),
    "logging disabled": (lambda: logging.disable(), lambda: logging.root.isEnabledFor(logging.ERROR)),
    "module search path": (lambda: sys.path.insert(0, "/leaked"), lambda: sys.path[0]),
    "standard output": (lambda: setattr(sys, "stdout", io.StringIO()), lambda: sys.stdout),
    "excepthook": (lambda: setattr(sys, "excepthook", hook), lambda: sys.excepthook),
    "excepthook of threads": (lambda: setattr(threading, "excepthook", hook), lambda: threading.excepthook),
    "profile function": (lambda: sys.setprofile(hook), sys.getprofile),
    "recursion limit": (lambda: sys.setrecursionlimit(5000), sys.getrecursionlimit),
    "garbage collector": (gc.disable, gc.isenabled),
    "thresholds of garbage": (lambda: gc.set_threshold(1), gc.get_threshold),
    "decimal context": (lambda: setattr(decimal.getcontext(), "prec", 3), lambda: decimal.Decimal(1) / 3),
    "timeout of sockets": (lambda: socket.setdefaulttimeout(1.0), socket.getdefaulttimeout),
    "start method": (lambda: multiprocessing.set_start_method("spawn", force=True), multiprocessing.get_start_method),
}


def read(name: str) -> Any:
    (setting,) = (setting for key, setting in SETTINGS.items() if name in key)
    return setting.read()
