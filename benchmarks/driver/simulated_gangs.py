"""Gangs of which only the workers are simulated, with many gangs in one process.

A gang of one GPU has eight processes and 1.35 GiB. A bare Ray actor takes 67 MiB, and one that imports Tune 121 MiB, so
256 of them would still take 30 GiB. So a gang is an object here, in one of a few actors. Tune's actor manager calls it
like an actor, with the same calls, results and sizes of results.

The gang's code (`searchlight.search.execution.gang.Gang`, its mailbox and its calls of the registry), its placement
groups and the whole driver are real. A thread replaces the trainer of Ray Train. It takes a segment, waits as long as
its epochs would train, and sends the reports of a worker. Each has a checkpoint of some bytes for the driver to delete.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray
from ray.actor import ActorClass
from ray.util import placement_group

from benchmarks.driver.scale_task import ScaleConfig, compute_loss
from searchlight.search.execution.gang import Gang
from searchlight.trainables.worker.messages import EpochReport, SegmentAssignment, SegmentEnd

METRICS = 20
HOSTS = 4


class StandIn(Gang):
    """A gang whose workers wait instead of training."""

    def train_workers(self, run: str, is_synchronous: bool) -> None:
        registry, me = self.settings.registry, ray.get_runtime_context()
        group = placement_group([self.settings.resources] * self.settings.workers, name=run)
        group.wait(60)
        ray.get(registry.register_worker.remote(self.name, run, group, [ray.put(me.current_actor)], me.get_node_id()))
        stopped = registry.wait_for_stop.remote(self.name)
        turn = 0
        while True:
            turn, segment = ray.get(registry.wait_for_segment.remote(self.name, turn))
            if segment is None:
                return
            for report in _generate_reports(segment, stopped):
                ray.get(registry.put.remote(self.name, turn, report))


def _generate_reports(segment: SegmentAssignment, stopped: Any) -> Iterator[EpochReport | SegmentEnd]:
    config, folder = ScaleConfig.model_validate(segment.config), Path(segment.folder)
    epoch_s = float(os.environ["SCALE_EPOCH_S"])
    folder.mkdir(parents=True, exist_ok=True)
    for epoch in range(segment.epoch + 1, segment.until + 1):
        if ray.wait([stopped], timeout=epoch_s)[0]:
            yield SegmentEnd("interrupted", "the search was stopped")
            return
        path = folder / f"epoch-{epoch}-{segment.attempt}.pt"
        path.write_bytes(b"weights")
        metrics = {"val/loss": compute_loss(config, epoch)}
        metrics |= {f"train/metric_{i}": 0.1 * i + epoch for i in range(METRICS - 1)}
        costs = {"samples": 1024.0, "gpu_seconds": epoch_s}
        yield EpochReport(epoch, metrics, str(path), costs, done=epoch == segment.until)


class Host:
    """An actor that holds some of the gangs. Each call of Tune has its own thread, since it blocks."""

    def __init__(self) -> None:
        self._gangs: dict[int, StandIn] = {}

    def create(self, key: int, kwargs: dict[str, Any]) -> None:
        self._gangs[key] = StandIn(**kwargs)

    def call(self, key: int, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return getattr(self._gangs[key], name)(*args, **kwargs)


class Method:
    """A method of a gang, called like that of an actor."""

    def __init__(self, host: Any, key: int, name: str, made: Any) -> None:
        self._host, self._key, self._name, self._made = host, key, name, made

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        if self._name == "__ray_ready__":
            return self._made
        return self._host.call.remote(self._key, self._name, args, kwargs)


class Handle:
    """A replacement of an actor handle, for Tune."""

    def __init__(self, host: Any, key: int, kwargs: dict[str, Any]) -> None:
        self._host, self._key = host, key
        self._made = host.create.remote(key, kwargs)

    def __getattr__(self, name: str) -> Method:
        if name.startswith("_") and name != "__ray_ready__":
            raise AttributeError(name)
        return Method(self._host, self._key, name, self._made)


class StandIns(ActorClass):  # type: ignore[type-arg]
    """A replacement of an actor class, for Tune. It creates gangs in each of the hosts in turn.

    Args:
        gangs: The largest number of gangs.
    """

    def __init__(self, gangs: int) -> None:
        self._most = 4 * (gangs // HOSTS + 1)  # simultaneous calls of Tune, and liveness checks of the registry
        self._hosts: list[Any] = []
        self._count = 0

    def options(self, **options: Any) -> "StandIns":
        return self

    def remote(self, **kwargs: Any) -> Handle:
        if not self._hosts:
            environment = {"env_vars": {"SCALE_EPOCH_S": os.environ["SCALE_EPOCH_S"], "OMP_NUM_THREADS": "1"}}
            make = ray.remote(num_cpus=0, max_concurrency=self._most, runtime_env=environment)(Host)
            self._hosts = [make.remote() for _ in range(HOSTS)]
        self._count += 1
        return Handle(self._hosts[self._count % HOSTS], self._count, kwargs)
