"""The settings of torch that a trial may change by accident, in the order in which they can be set back."""

import functools
import pkgutil
import sys
from typing import Any

import torch
import torch.nn.modules.module as of_modules
import torch.optim.optimizer as of_optimizers
import torch.utils.checkpoint
from torch._C import _autograd
from torch.utils import _device, _python_dispatch

from trainables.isolation.process_settings import Setting, create_attribute_setting, create_items_setting

CONFIGS = ("torch._dynamo.config", "torch._inductor.config", "torch._functorch.config")
FP32_OPERATIONS = [
    ("generic", "all"),
    *((backend, operation) for backend in ("cuda", "mkldnn") for operation in ("all", "matmul", "conv", "rnn")),
]
_guards: list[Any] = []  # what holds as long as it is kept

# Modes


def _get_function_modes() -> tuple[Any, ...]:
    """All that stand between a call and torch, the default device among them."""
    stack = tuple(torch._C._get_function_stack_at(place) for place in range(torch._C._len_torch_function_stack()))
    return stack, getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None), _device.CURRENT_DEVICE


def _restore_function_modes(before: tuple[Any, ...]) -> None:
    stack, context, device = before
    while torch._C._len_torch_function_stack():
        torch._C._pop_torch_function_stack()
    for mode in stack:
        torch._C._push_on_torch_function_stack(mode)
    torch._GLOBAL_DEVICE_CONTEXT.device_context = context
    _device.CURRENT_DEVICE = device


def _restore_dispatch_modes(before: int) -> None:
    while torch._C._len_torch_dispatch_stack() > before:
        _python_dispatch._pop_mode()


def _leave_inference_mode(before: bool) -> None:
    guard = torch._C._InferenceMode(before)
    guard.__enter__()  # type: ignore[no-untyped-call]
    _guards.append(guard)


def _has_saved_tensor_hooks() -> bool:
    return _autograd._top_saved_tensors_default_hooks(False) is not None


def _drop_saved_tensor_hooks(before: bool) -> None:
    while not before and _has_saved_tensor_hooks():
        _autograd._pop_saved_tensors_default_hooks()


def _get_autocast_nesting() -> int:
    """How many autocast contexts are entered."""
    torch.autocast_increment_nesting()
    return int(torch.autocast_decrement_nesting())


def _restore_autocast_nesting(before: int) -> None:
    while _get_autocast_nesting() > before:
        torch.autocast_decrement_nesting()


# Numbers


def _get_fp32_precision() -> tuple[Any, ...]:
    """Torch has an old and a new way to set it, and refuses to tell where they disagree."""
    precisions = [torch._C._get_fp32_precision_getter(*operation) for operation in FP32_OPERATIONS]
    return torch.get_float32_matmul_precision(), torch._C._get_cudnn_allow_tf32(), precisions


def _restore_fp32_precision(before: tuple[Any, ...]) -> None:
    matmul, cudnn, precisions = before
    torch.set_float32_matmul_precision(matmul)
    torch._C._set_cudnn_allow_tf32(cudnn)
    for operation, precision in zip(FP32_OPERATIONS, precisions, strict=True):
        torch._C._set_fp32_precision_setter(*operation, precision)


def _get_tensor_type(kind: str) -> str:
    return "torch.FloatTensor" if kind == "cpu" else f"torch.{kind}.FloatTensor"


def _get_deterministic_state() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _is_flushing_denormals() -> bool:
    return (torch.tensor(1e-39, dtype=torch.float32, device="cpu") * 1.0).item() == 0.0


# Devices


def is_cuda_in_use() -> bool:
    """Whether this process has begun to use a GPU."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _get_cuda_device() -> int:
    return torch.cuda.current_device() if is_cuda_in_use() else 0


def _get_cuda_stream() -> torch.cuda.Stream | None:
    """None: the default one."""
    if not is_cuda_in_use() or torch.cuda.current_stream() == torch.cuda.default_stream():
        return None
    return torch.cuda.current_stream()


# Tables


def _create_hook_settings(owner: Any) -> dict[str, Setting]:
    """What `owner` calls for every module or optimizer of the process."""
    names = [name for name in vars(owner) if name.startswith("_global_")]
    return {
        f"the hooks in {name}": create_items_setting(functools.partial(getattr, owner, name))
        if isinstance(getattr(owner, name), dict)
        else create_attribute_setting(owner, name)
        for name in names
    }


def _get_safe_globals() -> dict[str, list[Any]]:
    """What torch.load may make, by name: one of the task's own files is there twice when they were imported anew."""
    named: dict[str, list[Any]] = {}
    for item in torch.serialization.get_safe_globals():
        made, name = item if isinstance(item, tuple) else (item, f"{item.__module__}.{item.__qualname__}")
        named.setdefault(name, []).append(made)
    return named


def _get_safe_names() -> list[str]:
    """Without torch's own, which come when a part of it is imported and would not come again."""
    named = _get_safe_globals().items()
    return sorted(name for name, items in named for _ in items if not name.startswith("torch."))


def _restore_safe_names(before: list[str]) -> None:
    there = _get_safe_globals()
    kept: list[Any] = [(items[0], name) for name, items in there.items() if name.startswith("torch.")]
    kept += [(_resolve_name(name) or there[name][0], name) for name in before]
    torch.serialization.clear_safe_globals()
    torch.serialization.add_safe_globals(kept)


def _resolve_name(name: str) -> Any:
    """What can be imported by `name` at this moment, or None."""
    try:
        return pkgutil.resolve_name(name)
    except (Exception, SystemExit):  # it was made in a function, or whatever a user's file raises
        return None


def _get_configs() -> dict[str, dict[str, Any]]:
    return {name: sys.modules[name].get_config_copy() for name in CONFIGS if name in sys.modules}


def _restore_configs(before: dict[str, dict[str, Any]]) -> None:
    now = _get_configs()
    for module, values in before.items():
        for name, value in values.items():
            if now[module][name] != value:
                setattr(sys.modules[module], name, value)


def _create_autocast_settings(kind: str) -> dict[str, Setting]:
    return {
        f"autocast on {kind}": Setting(
            lambda: torch.is_autocast_enabled(kind), lambda on: torch.set_autocast_enabled(kind, on)
        ),
        f"the type of autocast on {kind}": Setting(
            lambda: torch.get_autocast_dtype(kind), lambda dtype: torch.set_autocast_dtype(kind, dtype)
        ),
    }


TORCH = {
    # First what stands between a call and torch: the others call it.
    "the function modes": Setting(_get_function_modes, _restore_function_modes),
    "the dispatch modes": Setting(torch._C._len_torch_dispatch_stack, _restore_dispatch_modes),
    "inference mode": Setting(torch.is_inference_mode_enabled, _leave_inference_mode),
    "grad mode": Setting(torch.is_grad_enabled, torch._C._set_grad_enabled),
    "forward grad mode": Setting(torch._C._is_fwd_grad_enabled, torch._C._set_fwd_grad_enabled),
    "view replay": Setting(torch._C._is_view_replay_enabled, torch._C._set_view_replay_enabled),
    "the threads of backward": Setting(torch._C._is_multithreading_enabled, torch._C._set_multithreading_enabled),
    "the hooks of saved tensors": Setting(_has_saved_tensor_hooks, _drop_saved_tensor_hooks),
    "the default tensor type": Setting(
        torch._C._get_default_device, lambda kind: torch.set_default_tensor_type(_get_tensor_type(kind))
    ),
    "the validation of distributions": create_attribute_setting(torch.distributions.Distribution, "_validate_args"),
    "the checks of sparse tensors": Setting(
        torch.sparse.check_sparse_tensor_invariants.is_enabled, torch._C._set_check_sparse_tensor_invariants
    ),
    "the default dtype": Setting(torch.get_default_dtype, torch.set_default_dtype),
    "anomaly detection": Setting(
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        lambda state: torch.set_anomaly_enabled(*state),
    ),
    "deterministic algorithms": Setting(
        _get_deterministic_state, lambda state: torch.use_deterministic_algorithms(state[0], warn_only=state[1])
    ),
    "the filling of empty tensors": create_attribute_setting(torch.utils.deterministic, "fill_uninitialized_memory"),
    "the precision of fp32": Setting(_get_fp32_precision, _restore_fp32_precision),
    "the flushing of denormals": Setting(_is_flushing_denormals, torch.set_flush_denormal),
    "the number of threads": Setting(torch.get_num_threads, torch.set_num_threads),
    "the number of threads between operations": Setting(torch.get_num_interop_threads, torch.set_num_interop_threads),
    "the depth of autocast": Setting(_get_autocast_nesting, _restore_autocast_nesting),
    "the cache of autocast": Setting(torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
    **_create_autocast_settings("cpu"),
    **_create_autocast_settings("cuda"),
    # Before what it locks.
    "the lock of torch.backends": create_attribute_setting(
        vars(torch.backends)["m"], "__allow_nonbracketed_mutation_flag"
    ),
    **{
        f"cudnn.{name}": create_attribute_setting(torch.backends.cudnn, name)
        for name in ("enabled", "benchmark", "benchmark_limit", "deterministic")
    },
    **{
        f"mkldnn.{name}": create_attribute_setting(torch.backends.mkldnn, name) for name in ("enabled", "deterministic")
    },
    **{
        f"opt_einsum.{name}": create_attribute_setting(torch.backends.opt_einsum, name)
        for name in ("enabled", "strategy")
    },
    "nnpack": Setting(torch._C._get_nnpack_enabled, torch._C._set_nnpack_enabled),
    "the fast path of attention": Setting(
        torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled
    ),
    "the order of attentions": Setting(torch._C._get_sdp_priority_order, torch._C._set_sdp_priority_order),
    "flash attention": Setting(torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp),
    "plain attention": Setting(torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp),
    "thrifty attention": Setting(
        torch.backends.cuda.mem_efficient_sdp_enabled, torch.backends.cuda.enable_mem_efficient_sdp
    ),
    "cudnn's attention": Setting(torch.backends.cuda.cudnn_sdp_enabled, torch.backends.cuda.enable_cudnn_sdp),
    "sums of plain attention": Setting(
        torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed,
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp,
    ),
    "accumulation in fp16": create_attribute_setting(torch.backends.cuda.matmul, "allow_fp16_accumulation"),
    "sums in fp16": create_attribute_setting(torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction"),
    "sums in bf16": create_attribute_setting(torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction"),
    "the device of CUDA": Setting(_get_cuda_device, torch.cuda.set_device),
    "the stream of CUDA": Setting(
        _get_cuda_stream, lambda stream: torch.cuda.set_stream(stream or torch.cuda.default_stream())
    ),
    "repeated warnings of torch": Setting(torch.is_warn_always_enabled, torch.set_warn_always),
    "torch's print options": Setting(
        lambda: dict(vars(torch._tensor_str.PRINT_OPTS)),
        lambda options: torch.set_printoptions(**options),  # type: ignore[no-untyped-call]
    ),
    "the sharing of tensors": Setting(
        torch.multiprocessing.get_sharing_strategy, torch.multiprocessing.set_sharing_strategy
    ),
    "new tensors in the conversion of modules": Setting(
        torch.__future__.get_overwrite_module_params_on_conversion,
        torch.__future__.set_overwrite_module_params_on_conversion,
    ),
    "swapped tensors in the conversion of modules": Setting(
        torch.__future__.get_swap_module_params_on_conversion, torch.__future__.set_swap_module_params_on_conversion
    ),
    "the early stop of checkpointing": create_attribute_setting(
        torch.utils.checkpoint, "_enable_checkpoint_early_stop"
    ),
    "the debug mode of checkpointing": create_attribute_setting(torch.utils.checkpoint, "_checkpoint_debug_enabled"),
    "what torch.load may make": Setting(_get_safe_names, _restore_safe_names),
    "the fuser of TorchScript": Setting(torch._C._jit_texpr_fuser_enabled, torch._C._jit_set_texpr_fuser_enabled),
    **_create_hook_settings(of_modules),
    **_create_hook_settings(of_optimizers),
    "the settings of torch.compile": Setting(_get_configs, _restore_configs),
}
