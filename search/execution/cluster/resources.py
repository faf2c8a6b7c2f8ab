"""The resources of a cluster, and the number of gangs that fit into it."""

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

import ray

from searchlight.search import private_api
from searchlight.search.errors import UsageError
from searchlight.search.execution.cluster.connection import join_thread
from searchlight.search.execution.cluster.snapshot import Amounts
from searchlight.search.execution.options import ResourceOptions
from searchlight.search.formatting import pluralize

logger = logging.getLogger(__name__)
POLL_S = 1.0
GANG_BYTES = 2**30  # for the processes of a gang other than its workers


def schedulable_nodes() -> list[dict[str, Any]]:
    """Return the nodes of the cluster as `ray.nodes` does, without those that are draining."""
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    leaving = private_api.cluster_state.get_draining_nodes()
    return [node for node in nodes if node["Alive"] and node["NodeID"] not in leaving]


def get_node_resources() -> list[dict[str, float]]:
    """Return the resources of each schedulable node by name."""
    return [dict(node["Resources"]) for node in schedulable_nodes()]


def autoscaler_limits() -> dict[str, float] | None:
    """Return the largest resources of the autoscaler by name, or None without an autoscaler."""
    most = private_api.cluster_state.get_max_resources_from_cluster_config()
    return {name: float(amount) for name, amount in most.items()} if most else None


def resolve_worker_resources(
    options: ResourceOptions, cluster: Sequence[Amounts], growing: Amounts | None = None
) -> dict[str, float]:
    """Return the resources of one worker. By default, it gets a GPU if a node has or may get one."""
    gpus = options.gpus_per_worker
    if gpus is None:
        gpus = 1.0 if any(node.get("GPU", 0.0) >= 1.0 for node in (*cluster, growing or {})) else 0.0
    return {"CPU": options.cpus_per_worker, **({"GPU": gpus} if gpus else {}), **options.resources}


def count_fitting_gangs(
    options: ResourceOptions, worker: Amounts, cluster: Sequence[Amounts], growing: Amounts | None = None
) -> int:
    """Return how many gangs fit into the nodes of `cluster`, or into the resources it can grow to.

    A worker needs one node. A gang may span several.
    """
    workers = sum(_count_multiples(node, worker) for node in cluster)
    fit = min(workers // options.workers, _count_gangs_by_memory(cluster))
    if growing is None:
        return fit
    return max(fit, _count_multiples(growing, {name: amount * options.workers for name, amount in worker.items()}))


def num_gangs(
    options: ResourceOptions, trials: int, worker: Amounts, cluster: Sequence[Amounts], growing: Amounts | None = None
) -> int:
    """Return how many gangs run concurrently: all that fit, limited by `concurrency` and `trials`.

    Raises:
        UsageError: None fits, or fewer than `concurrency` do and the cluster cannot grow.
    """
    fit = count_fitting_gangs(options, worker, cluster, growing)
    wanted = options.concurrency or min(fit, trials)
    if fit < 1 or (wanted > fit and growing is None):
        have = "; ".join(str({name: node.get(name, 0.0) for name in worker}) for node in cluster[:8])
        lacks_memory = _count_gangs_by_memory(cluster) < max(1, wanted)
        of_memory = f" and {GANG_BYTES / 2**30:.2g} GiB of memory" if lacks_memory else ""
        raise UsageError(
            f"{max(1, wanted)} gangs of {options.workers} workers with {dict(worker)} each{of_memory} must fit into "
            f"the cluster, but its nodes have {have}. Lower --concurrency or --workers."
        )
    return min(wanted, trials)


def _count_gangs_by_memory(cluster: Sequence[Amounts]) -> int:
    return sum(_count_multiples(node, {"memory": GANG_BYTES}) for node in cluster)


def _count_multiples(have: Amounts, need: Amounts) -> int:
    return min(int(have.get(name, 0.0) / amount + 1e-9) for name, amount in need.items())


class CapacityMonitor:
    """Updates the number of `gangs` that may run once a second, and of those that `fit`, while nodes join and leave.

    It also sends it to the registry. It is at least one, since a waiting gang makes a cluster grow.
    """

    def __init__(
        self, options: ResourceOptions, trials: int, worker: Amounts, registry: Any, say: Callable[[str], None]
    ) -> None:
        self._options, self._worker, self._registry, self._say = options, worker, registry, say
        self._trials, self._concurrency = trials, options.concurrency
        self._nodes = self.gangs = self.fit = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._poll_cluster, daemon=True, name="capacity")

    def __enter__(self) -> "CapacityMonitor":
        self.update()
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._ended.set()
        join_thread(self._thread)

    def set_limits(self, trials: int, concurrency: int | None) -> None:
        """Allow other numbers of trials, in all and at a time (None: as at first), from the next poll on."""
        self._trials, self._concurrency = trials, concurrency or self._options.concurrency

    def update(self) -> None:
        """Count the gangs that fit at present, and show a change."""
        nodes, growing = get_node_resources(), autoscaler_limits()
        fit = count_fitting_gangs(self._options, self._worker, nodes, growing)
        self.fit = fit
        allowed = max_gangs(self._concurrency, fit, growing is not None)
        self._registry.set_capacity.remote(max(fit, allowed))  # the registry ends gangs beyond this number
        joined, self._nodes = len(nodes) - self._nodes, len(nodes)
        before, self.gangs = self.gangs, min(allowed, self._trials)
        if before and before != self.gangs:
            self._say(f"{_describe_change(joined)}: {pluralize(self.gangs, 'trial')} at a time")

    def _poll_cluster(self) -> None:
        while not self._ended.wait(POLL_S):
            try:
                self.update()
            except Exception:  # Ray raises various types while its head is busy, and the next poll may succeed
                logger.exception("the cluster cannot be queried")


def max_gangs(concurrency: int | None, fit: int, grows: bool) -> int:
    """Return how many gangs may run. In a cluster that grows, `concurrency` may exceed `fit`."""
    if concurrency is None:
        return max(1, fit)
    return concurrency if grows else max(1, min(concurrency, fit))


def _describe_change(joined: int) -> str:
    if joined == 0:
        return "the cluster changed"
    nodes = "a node" if abs(joined) == 1 else f"{abs(joined)} nodes"
    return f"{nodes} joined" if joined > 0 else f"{nodes} left"
