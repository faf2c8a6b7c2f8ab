"""The private names of Ray Train and PyTorch that workers need.

A name is resolved when it is read, so that an import of this module imports none of these libraries.
"""

import pkgutil
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

# The versions that were tried with all names of NAMES. pyproject.toml allows no others.
TESTED = {"ray": ">=2.60,<2.61", "torch": ">=2.13,<2.14"}

# What torch calls for all modules, or all optimizers.
MODULE_HOOKS = (
    "backward_hooks", "backward_pre_hooks", "buffer_registration_hooks", "forward_hooks", "forward_hooks_always_called",
    "forward_hooks_with_kwargs", "forward_pre_hooks", "module_registration_hooks", "parameter_registration_hooks",
)  # fmt: skip
OPTIMIZER_HOOKS = ("optimizer_post_hooks", "optimizer_pre_hooks")

UTILS = "ray.train.v2._internal.execution.train_fn_utils"
NAMES = {
    # Ray Train
    "SynchronizationActor": "ray.train.v2._internal.execution.checkpoint.sync_actor:SynchronizationActor",
    "LocalTrainFnUtils": f"{UTILS}:LocalTrainFnUtils",
    "get_ray_train_session_dir": "ray.train.constants:_get_ray_train_session_dir",
    "get_train_fn_utils": f"{UTILS}:get_train_fn_utils",
    "set_torch_environment": "ray.train.torch.config:_set_torch_distributed_env_vars",
    "set_train_fn_utils": f"{UTILS}:set_train_fn_utils",
    "tune_globals": "ray.train._internal.session:__dict__",  # what ray.tune takes for the session of a trial
    # Tensors and data loaders
    "DataLoaderIterator": "torch.utils.data.dataloader:_MultiProcessingDataLoaderIter",
    "DisableTorchFunction": "torch:_C.DisableTorchFunction",
    "StorageWeakRef": "torch.multiprocessing.reductions:StorageWeakRef",
    "get_generator_address": "torch:Generator._cdata.__get__",
    "get_nnz": "torch:Tensor._nnz",
    "get_sparse_indices": "torch:Tensor._indices",
    "get_sparse_values": "torch:Tensor._values",
    "get_storage_id": "torch:_C._storage_id",
    "get_tensor_version": "torch:Tensor._version.__get__",
    "shut_down_workers": "torch.utils.data.dataloader:_MultiProcessingDataLoaderIter._shutdown_workers",
    "storage_packages": "torch.serialization:_package_registry",
    # Operators of torch
    "DispatchMode": "torch.utils._python_dispatch:TorchDispatchMode",
    "device_contexts": "torch.utils._device:",
    "functorch": "torch:_C._functorch",
    "get_backward_id": "torch:_C._current_graph_task_id",
    "get_device_constructors": "torch.utils._device:_device_constructors",
    "get_function_modes": "torch.overrides:_get_current_function_mode_stack",
    "torch_c": "torch:_C",
    # Sharded modules
    "clear_sharding_cache": "torch.distributed.tensor.debug:_clear_sharding_prop_cache",
    "get_fsdp_group": "torch.distributed.fsdp._fully_shard._fsdp_state:FSDPState._fsdp_param_group.fget",
    "get_fsdp_state": "torch.distributed.fsdp:FSDPModule._get_fsdp_state",
    # Memory of a GPU, in builds for CUDA only
    "clear_cublas_workspaces": "torch:_C._cuda_clearCublasWorkspaces",
    # Settings of torch
    "async_compile": "torch._inductor.async_compile:AsyncCompile",
    "count_function_modes": "torch:_C._len_torch_function_stack",
    "dynamo_config": "torch._dynamo.config:",
    "functorch_config": "torch._functorch.config:",
    "get_allocator_settings": "torch:_C._accelerator_getAllocatorSettings",
    "get_saved_tensor_hooks": "torch:_C._autograd._top_saved_tensors_default_hooks",
    "inductor_config": "torch._inductor.config:",
    "is_full_backward_hook": "torch.nn.modules.module:_global_is_full_backward_hook",
    "print_options": "torch:_tensor_str.PRINT_OPTS",
    "process_groups": "torch.distributed.distributed_c10d:_world.pg_map",
    "validate_distribution_args": "torch.distributions:Distribution._validate_args",
    **{name: f"torch.nn.modules.module:_global_{name}" for name in MODULE_HOOKS},
    **{name: f"torch.optim.optimizer:_global_{name}" for name in OPTIMIZER_HOOKS},
}


def resolve_private_name(name: str, module: str, names: Mapping[str, str], tested: Mapping[str, str]) -> Any:
    """Return what `name` stands for in `names`, the private names of `module`.

    Args:
        name: The attribute of `module` that is read.
        module: The name of the module, for a message.
        names: The dotted path of each private name, with a colon after the module.
        tested: The versions of each library that were tried.

    Raises:
        AttributeError: The module has no such name.
        ImportError: The installed version of the library does not have it.
    """
    if name not in names:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    target = names[name]
    try:
        return pkgutil.resolve_name(target)
    except (ImportError, AttributeError) as error:
        library = target.partition(":")[0].partition(".")[0]
        raise ImportError(
            f"{library} must have {target.replace(':', '.').rstrip('.')}, but {library} {version(library)} does not. "
            f"Install {library}{tested[library]}."
        ) from error


def __getattr__(name: str) -> Any:
    return resolve_private_name(name, __name__, NAMES, TESTED)
