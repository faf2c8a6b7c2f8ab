"""Ray Train's trainer of a gang: the placement of its workers, and Ray's callbacks."""

import asyncio
import logging
import os
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.backend import Backend, BackendConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.util.placement_group import placement_group

from searchlight.search.execution.controller_settings import CONTROLLER_VARIABLES, LEAVE
from searchlight.search.private_api import (
    DatasetsCallback,
    DefaultPlacementGroupHandle,
    FixedScalingPolicy,
    PlacementGroupCleanerCallback,
    TrainController,
    WorkerGroup,
    get_env_vars_to_propagate,
    replace_synchronization_actor,
)
from searchlight.trainables.cuda import GPU_BACKEND, SYNCHRONOUS
from searchlight.trainables.ports import LOOPBACK, find_free_ports
from searchlight.trainables.private_api import get_ray_train_session_dir
from searchlight.trainables.worker.entry import work
from searchlight.trainables.worker.messages import GangSettings, WorkerSettings
from searchlight.trainables.worker.process_group import join_group, leave_group, open_store, set_environment
from searchlight.trainables.worker.synchronization import SynchronizationOnDemand

logger = logging.getLogger(__name__)

CALL_S = 60.0  # timeout of calls to the registry
GROUP_S = 1800.0  # limit of a collective operation, as in Ray
ONE_NODE_S = 5.0  # how long to wait for all workers on one node before several are used
# Each starts a process for every gang. Ray Data is not used here. The cleaner needs the dashboard and a single
# Ray on the host; the registry removes placement groups instead.
UNUSED = (DatasetsCallback, PlacementGroupCleanerCallback)


class PlacedWorkerGroup(WorkerGroup):  # type: ignore[misc]  # private, so that its type is Any
    """A worker group of Ray Train in a placement group of ours.

    Ray places a group on the emptiest node, also with PACK, so that several gangs would each use a separate node.
    Therefore, a packed gang requests the fullest node that has room. Ray uses another node if that one is gone or full.
    """

    @staticmethod
    def _get_worker_runtime_env(custom_runtime_env: Any) -> Any:
        """Return the environment of the workers without the settings of the controller.

        If it is empty, Ray can use a process that it has started in advance.
        """
        variables = {**get_env_vars_to_propagate(), **custom_runtime_env.get("env_vars", {})}
        return {"env_vars": {name: variables[name] for name in variables if name not in CONTROLLER_VARIABLES}}

    def _create_placement_group(self, scaling_config: Any, context: Any) -> Any:
        settings: dict[str, Any] = self._train_run_context.train_loop_config or {}
        name, strategy = self._train_run_context.run_config.name, context.placement_strategy
        bundles, node = [context.resources_per_worker] * context.num_workers, ""
        if strategy == "PACK":
            node = ray.get(settings["registry"].choose_node.remote(settings["gang"]), timeout=CALL_S)
        if node:
            on_one = DefaultPlacementGroupHandle(
                placement_group(bundles, "STRICT_PACK", name, _soft_target_node_id=node)  # only this function takes it
            )
            if context.num_workers == 1 or on_one.wait(ONE_NODE_S):
                return on_one
            on_one.shutdown()
        return DefaultPlacementGroupHandle(placement_group(bundles, strategy, name))


class PlacedScalingPolicy(FixedScalingPolicy):  # type: ignore[misc]
    """Requests workers only by their placement group.

    Ray would also request them from an actor, so that the autoscaler adds nodes. A pending placement group has the same
    effect, and starting that actor delays the first trial by two seconds.
    """

    def after_controller_start(self, train_run_context: Any) -> None:
        """Request nothing."""

    def _maybe_send_resource_request(self) -> None:
        """Request nothing."""


class GangController(TrainController):  # type: ignore[misc]
    """A controller of Ray Train that starts a PlacedWorkerGroup."""

    worker_group_cls = PlacedWorkerGroup


class GangTrainer(DataParallelTrainer):
    """Trains as Ray's TorchTrainer does, with workers in a placement group of ours, and without the UNUSED callbacks.

    Its controller runs in this process. Ray would start another process for it first, whose imports take as long as
    those of a worker. For the same reason, the actor that synchronizes ranks is started on demand. This is no subclass
    of TorchTrainer, because importing that imports torch. That takes seconds and 180 MiB in each gang, and only workers
    need it.
    """

    def _create_default_callbacks(self) -> list[Any]:
        callbacks = super()._create_default_callbacks()
        return [callback for callback in callbacks if not isinstance(callback, UNUSED)]

    def _initialize_and_run_controller(self, **arguments: Any) -> Any:
        replace_synchronization_actor(SynchronizationOnDemand)
        controller = GangController(**{**arguments, "scaling_policy": PlacedScalingPolicy(self.scaling_config)})
        asyncio.run(controller.run())
        return controller.get_result()


class TorchBackend(Backend):
    """Ray Train's backend for torch, whose store listens only where the workers of the gang need it."""

    share_cuda_visible_devices = True  # NCCL needs to see the GPUs of all ranks on a node

    def on_start(self, worker_group: Any, backend_config: Any) -> None:
        """Create the process group of all workers, as Ray does before they train."""
        if not backend_config.process_group:
            return
        worker_group.execute(set_environment)
        nodes = [worker.metadata for worker in worker_group.get_workers()]
        host = LOOPBACK if len({node.node_id for node in nodes}) == 1 else nodes[0].node_ip
        if len(nodes) > 1:
            port = worker_group.execute_single(0, open_store, host, GROUP_S)
        else:
            port = worker_group.execute_single(0, find_free_ports)[0]
        group = (backend_config.process_group, host, port)
        joining = [
            worker_group.execute_single_async(rank, join_group, *group, rank, len(nodes), GROUP_S)
            for rank in range(len(nodes))
        ]
        ray.get(joining)

    def on_shutdown(self, worker_group: Any, backend_config: Any) -> None:
        """Destroy the process group of several workers, as Ray does before it ends them."""
        if len(worker_group) == 1:
            return
        limit_s = float(os.environ[LEAVE])
        try:
            ray.get(worker_group.execute_async(leave_group), timeout=limit_s)
        except GetTimeoutError:
            logger.warning("The workers did not leave their process group within %g s.", limit_s)


@dataclass
class TorchBackendConfig(BackendConfig):
    """The settings of a TorchBackend.

    Attributes:
        process_group: The backend of `torch.distributed`, such as "gloo", or "" for a single worker without a group.
    """

    process_group: str

    @property
    def backend_cls(self) -> type[TorchBackend]:
        return TorchBackend


def _choose_process_group(worker: WorkerSettings, has_gpus: bool) -> str:
    """Return the backend of the workers' process group, or "" for a program, which makes its own."""
    if worker.command:
        return ""
    if worker.rehearsal or not has_gpus:
        return "gloo"
    # The libraries of a function, e.g. Lightning, compare the name with what TorchTrainer gives them.
    return "nccl" if worker.objective else GPU_BACKEND


def train(settings: GangSettings, gang: str, run: str) -> None:
    """Run the workers of `gang` in a placement group named `run` until they end.

    Raises:
        Exception: The error that ended the workers.
    """
    has_gpus = settings.resources.get("GPU", 0) > 0
    GangTrainer(
        work,
        train_loop_config={"registry": settings.registry, "gang": gang, "worker": settings.worker},
        backend_config=TorchBackendConfig(_choose_process_group(settings.worker, has_gpus)),
        scaling_config=ScalingConfig(
            num_workers=settings.workers,
            use_gpu=has_gpus,
            resources_per_worker=settings.resources,
            placement_strategy=settings.placement.upper(),
        ),
        run_config=RunConfig(
            name=run,
            storage_path=get_ray_train_session_dir(),  # a local folder, since nothing in it is needed
            # One start is one fit, since the gang itself counts the failures of each trial.
            failure_config=FailureConfig(max_failures=0, controller_failure_limit=0),  # type: ignore[call-arg]
            worker_runtime_env={"env_vars": {SYNCHRONOUS: "1"} if settings.worker.is_synchronous else {}},
        ),
    ).fit()
