"""What a trial may change in its process, and how the next trial would notice it."""

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
from torch.autograd import forward_ad
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


def leave() -> None:
    while KEPT:
        KEPT.pop().__exit__(None, None, None)


def hook(*arguments: Any) -> None:
    return None


def frozen(module: nn.Module, name: str, parameter: Any) -> Any:
    return parameter if parameter is None else parameter.requires_grad_(False)


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
    "grad mode": (lambda: torch.set_grad_enabled(False), lambda: nn.Linear(1, 1)(torch.ones(1)).requires_grad),
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
    "threads": (lambda: torch.set_num_threads(3), torch.get_num_threads),
    "autocast": (
        lambda: enter(torch.autocast("cpu", dtype=torch.float16)),
        lambda: (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), SETTINGS["autocast"].read()),
    ),
    "autocast cache": (lambda: torch.set_autocast_cache_enabled(False), torch.is_autocast_cache_enabled),
    "cudnn": (lambda: setattr(torch.backends.cudnn, "benchmark", True), lambda: torch.backends.cudnn.benchmark),
    "mkldnn": (lambda: setattr(torch.backends.mkldnn, "enabled", False), lambda: torch.backends.mkldnn.enabled),
    "attention": (lambda: torch.backends.cuda.enable_flash_sdp(False), torch.backends.cuda.flash_sdp_enabled),
    "limit of cudnn's benchmark": (
        lambda: setattr(torch.backends.cudnn, "benchmark_limit", 3),
        lambda: torch.backends.cudnn.benchmark_limit,
    ),
    "accumulation in fp16": (
        lambda: setattr(torch.backends.cuda.matmul, "allow_fp16_accumulation", True),
        lambda: torch.backends.cuda.matmul.allow_fp16_accumulation,
    ),
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
    "recursion limit": (lambda: sys.setrecursionlimit(5000), sys.getrecursionlimit),
    "garbage collector": (gc.disable, gc.isenabled),
    "thresholds of garbage": (lambda: gc.set_threshold(1), gc.get_threshold),
    "start method": (lambda: multiprocessing.set_start_method("spawn", force=True), multiprocessing.get_start_method),
}

UMASK = SETTINGS["the umask"].read()
LOCALE = locale.setlocale(locale.LC_ALL)
LIMIT = resource.getrlimit(resource.RLIMIT_AS)
FLAGS = vars(torch.backends)["m"]

# What a trial does to a setting that is not restored, by the name of the setting, and how a test takes it back.
CHANGES: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "checkpoint_debug_enabled": (lambda: enter(checkpointing.set_checkpoint_debug_enabled(True)), leave),
    "checkpoint_early_stop": (lambda: enter(checkpointing.set_checkpoint_early_stop(False)), leave),
    "count_dispatch_modes()": (lambda: enter(DispatchMode()), leave),
    "count_function_modes()": (lambda: enter(Mode()), leave),
    "torch.get_default_device()": (lambda: (enter(torch.device("meta")), enter(Mode())), leave),
    "get_sdp_priority_order()": (
        lambda: enter(sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION], set_priority=True)),
        leave,
    ),
    "is_forward_grad_enabled()": (lambda: enter(forward_ad._set_fwd_grad_enabled(False)), leave),
    "is_full_backward_hook": (
        lambda: KEPT.append(nn.modules.module.register_module_full_backward_hook(hook)),
        lambda: setattr(nn.modules.module, "_global_is_full_backward_hook", None),
    ),
    "is_jit_fuser_enabled()": (lambda: enter(torch.jit.fuser("fuser0")), leave),
    "is_multithreading_enabled()": (lambda: KEPT.append(torch.autograd.set_multithreading_enabled(False)), leave),
    "is_nnpack_enabled()": (
        lambda: torch.backends.nnpack.set_flags(False),
        lambda: torch.backends.nnpack.set_flags(True),
    ),
    "the hooks of saved tensors": (
        lambda: enter(torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x)),
        leave,
    ),
    "torch.is_inference_mode_enabled()": (lambda: enter(torch.inference_mode()), leave),
    "torch.backends.flags_frozen()": (
        torch.backends.disable_global_flags,
        lambda: setattr(FLAGS, "__allow_nonbracketed_mutation_flag", True),
    ),
    "torch.backends.mha.get_fastpath_enabled()": (
        lambda: torch.backends.mha.set_fastpath_enabled(False),
        lambda: torch.backends.mha.set_fastpath_enabled(True),
    ),
    "torch.__future__.get_swap_module_params_on_conversion()": (
        lambda: torch.__future__.set_swap_module_params_on_conversion(True),
        lambda: torch.__future__.set_swap_module_params_on_conversion(False),
    ),
    "torch.sparse.check_sparse_tensor_invariants.is_enabled()": (
        torch.sparse.check_sparse_tensor_invariants.enable,
        torch.sparse.check_sparse_tensor_invariants.disable,
    ),
    "validate_distribution_args": (
        lambda: torch.distributions.Distribution.set_default_validate_args(False),
        lambda: torch.distributions.Distribution.set_default_validate_args(True),
    ),
    "what torch.load may make": (
        lambda: torch.serialization.add_safe_globals([Mode]),
        lambda: torch.serialization._weights_only_unpickler._marked_safe_globals_set.discard(Mode),
    ),
    "the flushing of denormals": (lambda: torch.set_flush_denormal(True), lambda: torch.set_flush_denormal(False)),
    "the limits of resources": (
        lambda: resource.setrlimit(resource.RLIMIT_AS, (2**45, LIMIT[1])),
        lambda: resource.setrlimit(resource.RLIMIT_AS, LIMIT),
    ),
    "the umask": (lambda: os.umask(0o077), lambda: os.umask(UMASK)),
    "the locale": (lambda: locale.setlocale(locale.LC_ALL, "C"), lambda: locale.setlocale(locale.LC_ALL, LOCALE)),
    "sys.getprofile()": (lambda: sys.setprofile(hook), lambda: sys.setprofile(None)),
    "decimal.getcontext().prec": (
        lambda: setattr(decimal.getcontext(), "prec", 3),
        lambda: setattr(decimal.getcontext(), "prec", 28),
    ),
    "decimal.getcontext().traps.copy()": (
        lambda: decimal.getcontext().traps.update({decimal.Inexact: True}),
        lambda: decimal.getcontext().traps.update({decimal.Inexact: False}),
    ),
    "socket.getdefaulttimeout()": (lambda: socket.setdefaulttimeout(1.0), lambda: socket.setdefaulttimeout(None)),
}
