"""Ray Train's trainer of a gang: where its workers are placed, and which callbacks of Ray's it runs."""

import asyncio
from typing import Any

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from ray.util.placement_group import placement_group

from search.execution.controller_settings import CONTROLLER_VARIABLES
from trainables.private_api import (
    DatasetsCallback,
    DefaultPlacementGroupHandle,
    FixedScalingPolicy,
    PlacementGroupCleanerCallback,
    TrainController,
    WorkerGroup,
    get_env_vars_to_propagate,
    get_ray_train_session_dir,
)
from trainables.worker.messages import GangSettings

CALL_S = 60.0  # for the registry to answer
ONE_NODE_S = 5.0  # for a node that has room to take all workers, before they may lie on several
# Each starts a process for every gang. Ray Data's has no data sets to hand out here. The cleaner works only beside
# Ray's dashboard and with one Ray on the host; the registry removes the placement group of a gang that is gone.
UNUSED = (DatasetsCallback, PlacementGroupCleanerCallback)


class PlacedWorkerGroup(WorkerGroup):  # type: ignore[misc]  # private, so that its type is Any
    """A worker group of Ray Train's in a placement group of ours.

    Ray gives each group to the node that has the most left, also one that is to be packed: of several gangs, each would
    keep a node of its own busy. So a gang that is to be packed names the fullest node that has room. Ray takes another
    one if that is gone or full by then.
    """

    @staticmethod
    def _get_worker_runtime_env(custom_runtime_env: Any) -> Any:
        """Return the environment of the workers: the settings of Ray Train without those of the controller alone.

        Where nothing is left, a worker can be a process that Ray has started ahead.
        """
        variables = get_env_vars_to_propagate()
        return {"env_vars": {name: variables[name] for name in variables if name not in CONTROLLER_VARIABLES}}

    def _create_placement_group(self, scaling_config: Any, context: Any) -> Any:
        settings: dict[str, Any] = self._train_run_context.train_loop_config or {}
        name, strategy = self._train_run_context.run_config.name, context.placement_strategy
        bundles, node = [context.resources_per_worker] * context.num_workers, ""
        if strategy == "PACK":
            node = ray.get(settings["registry"].choose_node.remote(settings["gang"]), timeout=CALL_S)
        if node:
            on_one = DefaultPlacementGroupHandle(
                placement_group(bundles, "STRICT_PACK", name, _soft_target_node_id=node)  # the only one that takes it
            )
            if context.num_workers == 1 or on_one.wait(ONE_NODE_S):
                return on_one
            on_one.shutdown()
        return DefaultPlacementGroupHandle(placement_group(bundles, strategy, name))


class PlacedScalingPolicy(FixedScalingPolicy):  # type: ignore[misc]
    """Asks for the workers by their placement group alone.

    Ray would also ask an actor of the cluster for them, so that its autoscaler adds nodes. A placement group that waits
    does the same, and the start of that actor delays the first trial by two seconds.
    """

    def after_controller_start(self, train_run_context: Any) -> None:
        """Ask nobody."""

    def _maybe_send_resource_request(self) -> None:
        """Ask nobody."""


class GangController(TrainController):  # type: ignore[misc]
    """A controller of Ray Train's that starts a PlacedWorkerGroup."""

    worker_group_cls = PlacedWorkerGroup


class GangTrainer(TorchTrainer):
    """A TorchTrainer with workers in a placement group of ours, and without the callbacks that are UNUSED.

    Its controller runs in this process. Ray starts one in a process of its own, whose imports take as long as those of
    a worker, and the workers start only after them.
    """

    def _create_default_callbacks(self) -> list[Any]:
        callbacks = super()._create_default_callbacks()  # type: ignore[misc]  # Train's v2, chosen at run time
        return [callback for callback in callbacks if not isinstance(callback, UNUSED)]

    def _initialize_and_run_controller(self, **arguments: Any) -> Any:
        controller = GangController(**{**arguments, "scaling_policy": PlacedScalingPolicy(self.scaling_config)})
        asyncio.run(controller.run())
        return controller.get_result()


def train(settings: GangSettings, gang: str, run: str) -> None:
    """Run the workers of `gang`, in a placement group named `run`, until they end.

    Raises:
        Exception: What ended the workers, if they did not return.
    """
    if settings.worker.objective:
        from trainables.worker.train_function import work_on_function as work
    else:
        from trainables.worker.worker import work
    GangTrainer(
        work,
        train_loop_config={"registry": settings.registry, "gang": gang, "worker": settings.worker},
        torch_config=TorchConfig(backend="gloo" if settings.worker.rehearsal else None),
        scaling_config=ScalingConfig(
            num_workers=settings.workers,
            use_gpu=settings.resources.get("GPU", 0) > 0,
            resources_per_worker=settings.resources,
            placement_strategy=settings.placement.upper(),
        ),
        run_config=RunConfig(
            name=run,
            storage_path=get_ray_train_session_dir(),  # of this node: nothing that anybody needs
            # One start is one fit: the gang knows what was lost, and counts it for the trial that lost it.
            failure_config=FailureConfig(max_failures=0, controller_failure_limit=0),  # type: ignore[call-arg]
        ),
    ).fit()
