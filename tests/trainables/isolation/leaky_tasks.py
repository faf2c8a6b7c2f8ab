"""List what a trial may change in its process, and how the next trial would notice it."""

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
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from logging import NullHandler, getLogger
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.multiprocessing as sharing
import torch.optim.optimizer as optimizers
from torch import nn
from torch.nn.modules import module as modules
from torch.overrides import BaseTorchFunctionMode

from searchlight.trainables import private_api
from searchlight.trainables.isolation.process import SETTINGS

KEPT = ExitStack()  # what would end by itself if nobody held on to it
PRE_HOOKS = optimizers._global_optimizer_pre_hooks

Leak = tuple[Callable[[], Any], Callable[[], Any]]  # what a trial does, and how another trial would notice it
Change = tuple[Callable[[], Any], Callable[[], Any]]  # what a trial does, and how a test takes it back


def entered(make: Callable[[], Any]) -> Change:
    return lambda: KEPT.enter_context(make()), KEPT.close


def switched(write: Callable[[Any], Any], value: Any, before: Any) -> Change:
    return partial(write, value), partial(write, before)


def attribute(owner: Any, name: str, value: Any) -> Leak:
    return partial(setattr, owner, name, value), partial(getattr, owner, name)


def hook(*arguments: Any) -> None:
    """Do nothing."""


def frozen(module: nn.Module, name: str, parameter: Any) -> Any:
    return parameter if parameter is None else parameter.requires_grad_(False)


@contextmanager
def enter_device() -> Iterator[None]:
    with torch.device("meta"), BaseTorchFunctionMode():
        yield


def enter_removed_folder() -> None:
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    os.rmdir(folder)


def warned() -> int:
    """Return how many times a warning is shown that comes from one place again and again."""
    with mock.patch("warnings.showwarning") as show:
        warnings.warn("once per place", stacklevel=1)
    return show.call_count


VALIDATION = SETTINGS["the validation of distributions"]
LEAKS: dict[str, Leak] = {
    "default dtype": (lambda: torch.set_default_dtype(torch.float64), lambda: torch.empty(0).dtype),
    "default device": (lambda: torch.set_default_device("meta"), lambda: torch.empty(0).device),
    "grad mode": (lambda: torch.set_grad_enabled(False), lambda: nn.Linear(1, 1)(torch.ones(1)).requires_grad),
    "anomaly detection": (lambda: torch.autograd.set_detect_anomaly(True), torch.is_anomaly_enabled),
    "deterministic algorithms": (lambda: torch.set_deterministic_debug_mode(1), torch.get_deterministic_debug_mode),
    "matmul precision": (lambda: torch.set_float32_matmul_precision("medium"), torch.get_float32_matmul_precision),
    "precision of mkldnn": attribute(torch.backends.mkldnn.matmul, "fp32_precision", "bf16"),
    "tf32": attribute(torch.backends.cuda.matmul, "allow_tf32", True),
    "threads": (lambda: torch.set_num_threads(3), torch.get_num_threads),
    "autocast": (lambda: KEPT.enter_context(torch.autocast("cpu", torch.float16)), SETTINGS["autocast"].read),
    "autocast cache": (lambda: torch.set_autocast_cache_enabled(False), torch.is_autocast_cache_enabled),
    "cudnn": attribute(torch.backends.cudnn, "benchmark", True),
    "mkldnn": attribute(torch.backends.mkldnn, "enabled", False),
    "attention": (lambda: torch.backends.cuda.enable_flash_sdp(False), torch.backends.cuda.flash_sdp_enabled),
    "limit of cudnn's benchmark": attribute(torch.backends.cudnn, "benchmark_limit", 3),
    "accumulation in fp16": attribute(torch.backends.cuda.matmul, "allow_fp16_accumulation", True),
    "module hook": (lambda: modules.register_module_forward_hook(lambda m, x, y: 2 * y), lambda: nn.Identity()(1)),
    "parameter hook": (
        lambda: modules.register_module_parameter_registration_hook(frozen),
        lambda: nn.Linear(1, 1).bias.requires_grad,
    ),
    "optimizer hook": (lambda: optimizers.register_optimizer_step_pre_hook(hook), PRE_HOOKS.copy),
    "torch.compile": attribute(torch._dynamo.config, "suppress_errors", True),
    "validation of distributions": (  # which the first compilation of a process has turned off
        lambda: torch.distributions.Distribution.set_default_validate_args(not VALIDATION.read()),
        VALIDATION.read,
    ),
    "print options of torch": (lambda: torch.set_printoptions(precision=1), lambda: str(torch.tensor(0.123))),
    "sharing of tensors": (lambda: sharing.set_sharing_strategy("file_system"), sharing.get_sharing_strategy),
    "generators": (
        lambda: (random.seed(7), np.random.seed(7), torch.manual_seed(7)),
        lambda: (random.getstate()[1][:3], np.random.get_state()[1][:3].tolist(), torch.initial_seed()),
    ),
    "numpy's errors": (lambda: np.seterr(all="raise"), np.geterr),
    "numpy's print options": (lambda: np.set_printoptions(precision=1), lambda: str(np.array([0.123]))),
    "environment, added": (lambda: os.environ.update(LEAKED="1"), lambda: os.environ.get("LEAKED")),
    "environment, changed": (lambda: os.environ.update(HOME="/"), lambda: os.environ["HOME"]),
    "environment, removed": (lambda: os.environ.pop("HOME"), lambda: os.environ.get("HOME")),
    "current folder": (lambda: os.chdir("/"), os.getcwd),
    "current folder, removed": (enter_removed_folder, lambda: os.readlink("/proc/self/cwd")),
    "signal handler": (lambda: signal.signal(signal.SIGUSR1, hook), lambda: signal.getsignal(signal.SIGUSR1)),
    "warning filters": (lambda: warnings.simplefilter("error"), lambda: warnings.filters[0]),
    "warnings shown once": (warned, warned),
    "showwarning": (lambda: setattr(warnings, "showwarning", print), lambda: warnings.showwarning),
    "root logger": (lambda: logging.basicConfig(level=1, force=True), lambda: logging.root.handlers.copy()),
    "level of a logger": (lambda: getLogger("torch").setLevel(50), lambda: getLogger("torch").level),
    "new logger": (lambda: getLogger("new").addHandler(NullHandler()), lambda: len(getLogger("new").handlers)),
    "logging disabled": (lambda: logging.disable(), lambda: logging.root.isEnabledFor(logging.ERROR)),
    "module search path": (lambda: sys.path.insert(0, "/leaked"), lambda: sys.path[0]),
    "standard output": attribute(sys, "stdout", io.StringIO()),
    "excepthook": attribute(sys, "excepthook", hook),
    "excepthook of threads": attribute(threading, "excepthook", hook),
    "recursion limit": (lambda: sys.setrecursionlimit(5000), sys.getrecursionlimit),
    "garbage collector": (gc.disable, gc.isenabled),
    "thresholds of garbage": (lambda: gc.set_threshold(1), gc.get_threshold),
    "start method": (lambda: multiprocessing.set_start_method("spawn", force=True), multiprocessing.get_start_method),
}

LIMIT = resource.getrlimit(resource.RLIMIT_AS)

# What a trial does to a setting that is not restored, by the name of the setting.
CHANGES: dict[str, Change] = {
    "count_function_modes()": entered(BaseTorchFunctionMode),
    "get_allocator_settings()": switched(
        torch._C._accelerator_setAllocatorSettings, "expandable_segments:True", private_api.get_allocator_settings()
    ),
    "is_full_backward_hook": (
        lambda: KEPT.push(modules.register_module_full_backward_hook(hook)),
        lambda: setattr(modules, "_global_is_full_backward_hook", None),
    ),
    "torch.get_default_device()": entered(enter_device),
    "the hooks of saved tensors": entered(lambda: torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x)),
    "torch.is_inference_mode_enabled()": entered(torch.inference_mode),
    "torch.backends.flags_frozen()": (
        torch.backends.disable_global_flags,
        lambda: setattr(vars(torch.backends)["m"], "__allow_nonbracketed_mutation_flag", True),
    ),
    "torch.backends.mha.get_fastpath_enabled()": switched(torch.backends.mha.set_fastpath_enabled, False, True),
    "what torch.load may make": (
        lambda: torch.serialization.add_safe_globals([threading.Thread]),
        lambda: torch.serialization._weights_only_unpickler._marked_safe_globals_set.discard(threading.Thread),
    ),
    "the flushing of denormals": switched(torch.set_flush_denormal, True, False),
    "the limits of resources": switched(partial(resource.setrlimit, resource.RLIMIT_AS), (2**45, LIMIT[1]), LIMIT),
    "the umask": switched(os.umask, 0o077, SETTINGS["the umask"].read()),
    "the locale": switched(partial(locale.setlocale, locale.LC_ALL), "C", locale.setlocale(locale.LC_ALL)),
    "sys.getprofile()": switched(sys.setprofile, hook, None),
    "socket.getdefaulttimeout()": switched(socket.setdefaulttimeout, 1.0, None),
}
