"""The private names of Ray, Optuna and PyTorch that this project needs.

A name is resolved when it is read, so that an import of this module imports none of these libraries.
"""

import pkgutil
from importlib.metadata import version
from typing import Any

# The versions that have all names of NAMES.
TESTED = {"optuna": ">=5.0,<6", "ray": ">=2.60,<2.61", "torch": ">=2.13,<2.14"}

# What torch calls for all modules, or all optimizers.
MODULE_HOOKS = (
    "backward_hooks", "backward_pre_hooks", "buffer_registration_hooks", "forward_hooks", "forward_hooks_always_called",
    "forward_hooks_with_kwargs", "forward_pre_hooks", "module_registration_hooks", "parameter_registration_hooks",
)  # fmt: skip
OPTIMIZER_HOOKS = ("optimizer_post_hooks", "optimizer_pre_hooks")

EXECUTION = "ray.train.v2._internal.execution"
NAMES = {
    # Ray Train
    "DatasetsCallback": "ray.train.v2._internal.callbacks:DatasetsCallback",
    "DefaultPlacementGroupHandle": f"{EXECUTION}.worker_group.placement_group_handle:DefaultPlacementGroupHandle",
    "LocalTrainFnUtils": f"{EXECUTION}.train_fn_utils:LocalTrainFnUtils",
    "FixedScalingPolicy": f"{EXECUTION}.scaling_policy:FixedScalingPolicy",
    "PlacementGroupCleanerCallback": (
        "ray.train.v2._internal.callbacks.placement_group_callback:PlacementGroupCleanerCallback"
    ),
    "TrainController": f"{EXECUTION}.controller:TrainController",
    "WorkerGroup": f"{EXECUTION}.worker_group.worker_group:WorkerGroup",
    "get_env_vars_to_propagate": "ray.train.v2._internal.constants:get_env_vars_to_propagate",
    "get_ray_train_session_dir": "ray.train.constants:_get_ray_train_session_dir",
    "get_train_fn_utils": f"{EXECUTION}.train_fn_utils:get_train_fn_utils",
    "set_train_fn_utils": f"{EXECUTION}.train_fn_utils:set_train_fn_utils",
    # Ray's cluster
    "InternalKVGcsServiceStub": "ray.core.generated.gcs_service_pb2_grpc:InternalKVGcsServiceStub",
    "InternalKVGetRequest": "ray.core.generated.gcs_service_pb2:InternalKVGetRequest",
    "cluster_state": "ray._private.state:state",
    "get_ray_address_from_environment": "ray._private.services:get_ray_address_from_environment",
    "init_grpc_channel": "ray._private.grpc_utils:init_grpc_channel",
    "ray_constants": "ray._private.ray_constants:",
    "ray_node": "ray._private.worker:_global_node",
    "ray_services": "ray._private.services:",
    # Optuna
    "ParzenEstimator": "optuna.samplers._tpe.parzen_estimator:_ParzenEstimator",
    "default_gamma": "optuna.samplers._tpe.sampler:default_gamma",
    "default_gamma_multiobjective": "optuna.samplers._tpe.sampler:default_gamma_multiobjective",
    "split_trials": "optuna.samplers._tpe.sampler:_split_trials",
    # Tensors and data loaders
    "DataLoaderIterator": "torch.utils.data.dataloader:_MultiProcessingDataLoaderIter",
    "get_nnz": "torch:Tensor._nnz",
    "get_tensor_version": "torch:Tensor._version.__get__",
    "shut_down_workers": "torch.utils.data.dataloader:_MultiProcessingDataLoaderIter._shutdown_workers",
    # Operators of torch
    "DispatchMode": "torch.utils._python_dispatch:TorchDispatchMode",
    "is_fp16_product_native": "torch:ops.mkldnn._is_mkldnn_fp16_supported",
    # Sharded modules
    "clear_sharding_cache": "torch.distributed.tensor.debug:_clear_sharding_prop_cache",
    "get_fsdp_group": "torch.distributed.fsdp._fully_shard._fsdp_state:FSDPState._fsdp_param_group.fget",
    "get_fsdp_state": "torch.distributed.fsdp:FSDPModule._get_fsdp_state",
    # Settings of torch
    "async_compile": "torch._inductor.async_compile:AsyncCompile",
    "checkpoint_debug_enabled": "torch.utils.checkpoint:_checkpoint_debug_enabled",
    "checkpoint_early_stop": "torch.utils.checkpoint:_enable_checkpoint_early_stop",
    "count_dispatch_modes": "torch:_C._len_torch_dispatch_stack",
    "count_function_modes": "torch:_C._len_torch_function_stack",
    "dynamo_config": "torch._dynamo.config:",
    "functorch_config": "torch._functorch.config:",
    "get_saved_tensor_hooks": "torch:_C._autograd._top_saved_tensors_default_hooks",
    "get_sdp_priority_order": "torch:_C._get_sdp_priority_order",
    "inductor_config": "torch._inductor.config:",
    "is_forward_grad_enabled": "torch:_C._is_fwd_grad_enabled",
    "is_jit_fuser_enabled": "torch:_C._jit_texpr_fuser_enabled",
    "is_multithreading_enabled": "torch:_C._is_multithreading_enabled",
    "is_nnpack_enabled": "torch:_C._get_nnpack_enabled",
    "print_options": "torch:_tensor_str.PRINT_OPTS",
    "process_groups": "torch.distributed.distributed_c10d:_world.pg_map",
    "validate_distribution_args": "torch.distributions:Distribution._validate_args",
    "is_full_backward_hook": "torch.nn.modules.module:_global_is_full_backward_hook",
    **{name: f"torch.nn.modules.module:_global_{name}" for name in MODULE_HOOKS},
    **{name: f"torch.optim.optimizer:_global_{name}" for name in OPTIMIZER_HOOKS},
}


def __getattr__(name: str) -> Any:
    """Return what a name of NAMES stands for.

    Raises:
        ImportError: The installed version of the library does not have it.
    """
    if name not in NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    target = NAMES[name]
    try:
        return pkgutil.resolve_name(target)
    except (ImportError, AttributeError) as error:
        library = target.partition(":")[0].partition(".")[0]
        raise ImportError(
            f"{library} must have {target.replace(':', '.').rstrip('.')}, but {library} {version(library)} does not. "
            f"Install {library}{TESTED[library]}."
        ) from error


def get_mixture(estimator: Any) -> tuple[Any, Any]:
    """Return the weights and the kernels of each parameter, of a ParzenEstimator of Optuna."""
    weights, kernels = estimator._mixture_distribution
    return weights, kernels
