"""The private names of Ray, Optuna and Python that the driver needs.

A name is resolved when it is read, so that an import of this module imports none of these libraries.
"""

import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any

from searchlight.trainables import private_api

# The versions that were tried with all names of NAMES. pyproject.toml allows no others.
TESTED = {"optuna": ">=5.0,<5.1", "ray": private_api.TESTED["ray"]}

INTERNAL = "ray.train.v2._internal"
NAMES = {
    # Ray Train
    "DatasetsCallback": f"{INTERNAL}.callbacks:DatasetsCallback",
    "DefaultPlacementGroupHandle": (
        f"{INTERNAL}.execution.worker_group.placement_group_handle:DefaultPlacementGroupHandle"
    ),
    "FixedScalingPolicy": f"{INTERNAL}.execution.scaling_policy:FixedScalingPolicy",
    "PlacementGroupCleanerCallback": (f"{INTERNAL}.callbacks.placement_group_callback:PlacementGroupCleanerCallback"),
    "TrainController": f"{INTERNAL}.execution.controller:TrainController",
    "WorkerGroup": f"{INTERNAL}.execution.worker_group.worker_group:WorkerGroup",
    "get_env_vars_to_propagate": "ray.train.v2._internal.constants:get_env_vars_to_propagate",
    # Ray's cluster
    "InternalKVGcsServiceStub": "ray.core.generated.gcs_service_pb2_grpc:InternalKVGcsServiceStub",
    "InternalKVGetRequest": "ray.core.generated.gcs_service_pb2:InternalKVGetRequest",
    "cluster_state": "ray._private.state:state",
    "get_ray_address_from_environment": "ray._private.services:get_ray_address_from_environment",
    "init_grpc_channel": "ray._private.grpc_utils:init_grpc_channel",
    "ray_constants": "ray._private.ray_constants:",
    "ray_node": "ray._private.worker:_global_node",
    "ray_parameter": "ray._private.parameter:",
    "ray_services": "ray._private.services:",
    "ray_utils": "ray._private.utils:",
    # Optuna
    "SearchSpaceTransform": "optuna._transform:_SearchSpaceTransform",
    "ParzenEstimator": "optuna.samplers._tpe.parzen_estimator:_ParzenEstimator",
    "default_gamma": "optuna.samplers._tpe.sampler:default_gamma",
    "default_gamma_multiobjective": "optuna.samplers._tpe.sampler:default_gamma_multiobjective",
    "split_trials": "optuna.samplers._tpe.sampler:_split_trials",
}


def __getattr__(name: str) -> Any:
    return private_api.resolve_private_name(name, __name__, NAMES, TESTED)


def call_before_pools_close(call: Callable[[], object]) -> None:
    """Call a function once the main thread ends, before Python closes the pools of threads of all libraries."""
    threading._register_atexit(call)  # type: ignore[attr-defined]


def replace_synchronization_actor(stand_in: Any) -> None:
    """Let groups of workers of Ray Train create `stand_in` in place of a SynchronizationActor, and end it by `kill`."""
    groups, states = (import_module(f"{INTERNAL}.execution.worker_group.{name}") for name in ("worker_group", "state"))
    groups.SynchronizationActor = stand_in  # type: ignore[attr-defined]
    states._shutdown_sync_actor = stand_in.kill  # type: ignore[attr-defined]


def set_system_attr(study: Any, trial: Any, key: str, value: Any) -> None:
    """Set an attribute of a running trial that belongs to a sampler of Optuna. `value` is stored as JSON."""
    study._storage.set_trial_system_attr(trial._trial_id, key, value)


def get_mixture(estimator: Any) -> tuple[Any, Any]:
    """Return the weights and the kernels of each parameter, of a ParzenEstimator of Optuna."""
    weights, kernels = estimator._mixture_distribution
    return weights, kernels
