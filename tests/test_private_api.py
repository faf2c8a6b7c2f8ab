"""Test that each private name of Ray, Optuna and PyTorch has the shape that its callers need."""

import inspect
import re
import subprocess
import sys
import threading
import tomllib
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from optuna.samplers import TPESampler
from optuna.trial import create_trial
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from ray.train.v2._internal.execution import worker_group
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.util.placement_group import placement_group

from searchlight.search import private_api as of_search
from searchlight.trainables import private_api as of_trainables
from tests.conftest import ROOT

OWNERS = {"search": of_search, "trainables": of_trainables}

# The parameters that callers give, in their order, by name.
PARAMETERS: dict[str, tuple[str, ...]] = {
    "DefaultPlacementGroupHandle": ("pg",),
    "LocalTrainFnUtils": ("experiment_name",),
    "ParzenEstimator": ("observations", "search_space", "parameters", "predetermined_weights"),
    "SearchSpaceTransform": ("search_space", "transform_log", "transform_step", "transform_0_1"),
    "clear_cublas_workspaces": (),
    "clear_sharding_cache": (),
    "default_gamma": ("x",),
    "default_gamma_multiobjective": ("x",),
    "get_env_vars_to_propagate": (),
    "get_fsdp_group": ("self",),
    "get_fsdp_state": ("self",),
    "get_ray_address_from_environment": ("addr", "temp_dir"),
    "get_ray_train_session_dir": (),
    "get_train_fn_utils": (),
    "init_grpc_channel": ("address", "options", "asynchronous"),
    "set_torch_environment": (),
    "set_train_fn_utils": ("train_fn_utils",),
    "shut_down_workers": ("self",),
    "split_trials": ("study", "trials", "n_below"),
}
METHODS = {
    "DefaultPlacementGroupHandle": ("wait", "shutdown"),
    "FixedScalingPolicy": ("_maybe_send_resource_request", "after_controller_start"),
    "ParzenEstimator": ("sample",),
    "SearchSpaceTransform": ("bounds", "transform", "untransform"),
    "TrainController": ("get_result", "run", "worker_group_cls"),
    "WorkerGroup": (
        "_create_placement_group",
        "_get_worker_runtime_env",
        "execute",
        "execute_single",
        "execute_single_async",
        "get_workers",
    ),
    "async_compile": ("pool",),
    "cluster_state": (
        "actor_table",
        "available_resources_per_node",
        "get_draining_nodes",
        "get_max_resources_from_cluster_config",
    ),
    "device_contexts": ("CURRENT_DEVICE",),
    "dynamo_config": ("fail_on_recompile_limit_hit", "get_config_copy", "load_config"),
    "functorch": ("get_unwrapped", "is_functorch_wrapped_tensor"),
    "ray_constants": ("ENABLE_RAY_CLUSTER", "ENABLE_RAY_CLUSTERS_ENV_VAR"),
    "ray_services": ("ConsolePopen", "start_api_server"),
    "ray_utils": ("set_sigterm_handler",),
    "SynchronizationActor": ("options", "remote"),
    "torch_c": ("_accelerator_getAccelerator", "_group_tensors_by_device_and_dtype"),
    **dict.fromkeys(("functorch_config", "inductor_config"), ("get_config_copy", "load_config")),
}
SPARSE = torch.eye(3).to_sparse()
TENSOR = torch.ones(2)
HOOKS = (*of_trainables.MODULE_HOOKS, *of_trainables.OPTIMIZER_HOOKS)
# What a call, or the attribute itself, gives.
VALUES: dict[str, Any] = {
    **dict.fromkeys((*HOOKS, "process_groups"), lambda value: isinstance(value, dict)),
    **dict.fromkeys(("DataLoaderIterator", "DatasetsCallback", "PlacementGroupCleanerCallback"), inspect.isclass),
    "DisableTorchFunction": lambda guard: hasattr(guard, "__enter__"),
    "StorageWeakRef": lambda reference: reference(TENSOR.untyped_storage()).cdata == TENSOR.untyped_storage()._cdata,
    "count_function_modes": lambda count: count() == 0,
    "get_allocator_settings": lambda get: isinstance(get(), str),
    "get_backward_id": lambda get: get() == -1,
    "get_device_constructors": lambda get: torch.zeros in get(),
    "get_function_modes": lambda get: get() == [],
    "get_generator_address": lambda get: get(torch.default_generator) == get(torch.default_generator) != 0,
    "get_sparse_indices": lambda get: get(SPARSE).tolist() == [[0, 1, 2], [0, 1, 2]],
    "get_sparse_values": lambda get: get(SPARSE).tolist() == [1.0, 1.0, 1.0],
    "get_storage_id": lambda get: get(TENSOR) == get(TENSOR[1:]) != get(SPARSE.to_dense()),
    "storage_packages": lambda packages: all(len(package) == 3 for package in packages),
    "DispatchMode": lambda mode: inspect.isclass(mode) and hasattr(mode, "__torch_dispatch__"),
    "get_nnz": lambda count: count(SPARSE) == 3,
    "get_saved_tensor_hooks": lambda get: get(False) is None,
    "get_tensor_version": lambda version: version(torch.ones(1).add_(1)) == 1,
    "is_full_backward_hook": lambda value: value in (None, True, False),
    "ray_node": lambda node: node is None or hasattr(node, "dead_processes"),
    "print_options": lambda options: "precision" in vars(options),
    "ray_parameter": lambda module: (
        {"no_monitor", "include_log_monitor"} <= inspect.signature(module.RayParams).parameters.keys()
    ),
    "tune_globals": lambda names: "_session" in names,
    "validate_distribution_args": lambda value: isinstance(value, bool),
    "InternalKVGcsServiceStub": lambda stub: "self.InternalKVGet " in inspect.getsource(stub),
    "InternalKVGetRequest": lambda request: request(namespace=b"a", key=b"b").key == b"b",
}


# Builds of torch for the CPU lack these, but declare them.
FOR_CUDA = {"clear_cublas_workspaces"} if not torch.backends.cuda.is_built() else set[str]()


@pytest.mark.parametrize("name", sorted(FOR_CUDA))
def test_private_name_for_cuda_is_declared_without_parameters(name):
    declared = (Path(torch.__file__).parent / "_C" / "__init__.pyi").read_text(encoding="utf-8")
    assert f"def {of_trainables.NAMES[name].rpartition('.')[2]}() -> None: ..." in declared


@pytest.mark.parametrize(
    ("package", "name"),
    [(package, name) for package in OWNERS for name in OWNERS[package].NAMES if name not in FOR_CUDA],
)
def test_private_name_has_the_shape_that_its_callers_need(package, name):
    value = getattr(OWNERS[package], name)
    assert name in PARAMETERS or name in METHODS or name in VALUES, "a name must have a test of its shape"
    if name in PARAMETERS:
        assert tuple(inspect.signature(value).parameters)[: len(PARAMETERS[name])] == PARAMETERS[name]
    assert [method for method in METHODS.get(name, ()) if not hasattr(value, method)] == []
    assert name not in VALUES or VALUES[name](value)


# What subclasses override or call, and private arguments of public functions.
MEMBERS = [
    (threading, "_register_atexit", ("func",)),
    (TPESampler, "_sample", ("self", "study", "trial", "search_space")),
    (TPESampler, "_compare", ("samples", "acquisition_func_vals")),
    (DataParallelTrainer, "_create_default_callbacks", ("self",)),
    (of_search.WorkerGroup, "_create_placement_group", ("self", "scaling_config", "worker_group_context")),
    (worker_group.state, "_shutdown_sync_actor", ("sync_actor",)),
    (worker_group.worker_group.SynchronizationActor, "options", ("actor_options",)),
    (
        sys.modules[placement_group.__module__],
        "placement_group",
        ("bundles", "strategy", "name", "lifetime", "_soft_target_node_id"),
    ),
]


@pytest.mark.parametrize(("owner", "name", "parameters"), MEMBERS, ids=[name for _, name, _ in MEMBERS])
def test_private_member_has_the_parameters_that_are_given(owner, name, parameters):
    assert tuple(inspect.signature(getattr(owner, name)).parameters)[: len(parameters)] == parameters


def test_optuna_objects_have_the_private_attributes_in_use():
    sampler = vars(TPESampler(seed=0))
    assert {"_n_ei_candidates", "_parzen_estimator_parameters", "_rng"} <= sampler.keys()
    assert isinstance(create_trial(value=0.0)._trial_id, int)


def test_worker_group_keeps_the_context_that_placement_reads():
    context = SimpleNamespace(run_config=SimpleNamespace(storage_context=None))
    group = of_search.WorkerGroup.__new__(of_search.WorkerGroup)
    with suppress(AttributeError):  # of the rest of the constructor
        group.__init__(context, None)
    assert group._train_run_context is context


@pytest.mark.parametrize("package", OWNERS)
def test_each_package_owns_the_private_names_that_it_uses(package):
    files = (file for file in (ROOT / package).rglob("*.py") if file.name != "private_api.py")
    code = "\n".join(file.read_text(encoding="utf-8") for file in files)
    unused = {name for name in OWNERS[package].NAMES if not re.search(rf"\b{name}\b", code)}
    assert unused <= {*HOOKS}  # isolation reads these by the tuples of their names


@pytest.mark.parametrize("package", OWNERS)
def test_missing_name_is_told_with_the_version_to_install(package, monkeypatch):
    owner = OWNERS[package]
    monkeypatch.setitem(owner.NAMES, "gone", "ray.train.v2._internal.gone:Gone.method")
    message = (
        f"ray must have ray.train.v2._internal.gone.Gone.method, but ray {version('ray')} does not. "
        f"Install ray{owner.TESTED['ray']}."
    )
    with pytest.raises(ImportError, match=f"^{re.escape(message)}$"):
        _ = owner.gone
    with pytest.raises(AttributeError, match=rf"^module '{re.escape(owner.__name__)}' has no attribute 'unknown'$"):
        _ = owner.unknown


@pytest.mark.parametrize("package", OWNERS)
def test_project_allows_exactly_the_versions_that_were_tried(package):
    owner = OWNERS[package]
    assert {re.split("[.:]", target)[0] for target in owner.NAMES.values()} == owner.TESTED.keys()
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    allowed = {own.name: own.specifier for own in map(Requirement, dependencies)}
    for library, tested in owner.TESTED.items():
        assert allowed[library] == SpecifierSet(tested)
        locked = re.search(rf"^{library}==(.*)$", (ROOT / "requirements.lock").read_text(), re.MULTILINE)[1]
        assert all(allowed[library].contains(found) for found in (locked, version(library)))
        # All tests run with the one minor version. A wider range needs a second environment for its oldest version.
        major, minor = map(int, locked.split(".")[:2])
        assert allowed[library] == SpecifierSet(f">={major}.{minor},<{major}.{minor + 1}")


@pytest.mark.parametrize("package", OWNERS)
def test_import_of_the_module_imports_no_library(package):
    code = f"import sys, searchlight.{package}.private_api; assert not {{'ray', 'torch', 'optuna'}} & {{*sys.modules}}"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=60)
