"""The resources of a cluster, and how many gangs fit into it."""

from collections.abc import Mapping, Sequence
from typing import Any

import ray

from search.config import SearchConfig
from search.errors import UsageError

GANG_BYTES = 2**30  # of the processes beside a gang's workers, which bring their own


def schedulable_nodes() -> list[dict[str, Any]]:
    """The nodes of the cluster, as Ray has them, but for those that are going away."""
    found: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    going = ray._private.state.state.get_draining_nodes()
    return [node for node in found if node["Alive"] and node["NodeID"] not in going]


def get_node_resources() -> list[dict[str, float]]:
    """What each of them has, by name of the resource."""
    return [dict(node["Resources"]) for node in schedulable_nodes()]


def autoscaler_limits() -> dict[str, float] | None:
    """What the cluster may grow to, by name of the resource; None if nothing makes it grow."""
    most = ray._private.state.state.get_max_resources_from_cluster_config()
    return {name: float(amount) for name, amount in most.items()} if most else None


def resolve_worker_resources(
    config: SearchConfig, cluster: Sequence[Mapping[str, float]], growing: Mapping[str, float] | None = None
) -> dict[str, float]:
    """What one worker needs, in a cluster of such nodes, or that may grow to so much."""
    gpus = config.gpus_per_worker
    if gpus is None:
        gpus = 1.0 if any(node.get("GPU", 0.0) >= 1.0 for node in (*cluster, growing or {})) else 0.0
    return {"CPU": config.cpus_per_worker, **({"GPU": gpus} if gpus else {}), **config.resources}


def count_fitting_gangs(
    config: SearchConfig,
    worker: Mapping[str, float],
    cluster: Sequence[Mapping[str, float]],
    growing: Mapping[str, float] | None = None,
) -> int:
    """How many gangs the cluster holds, or may grow to.

    Args:
        worker: What one worker needs.
        cluster: What each node has. A worker lies on one node; a gang may span several.
        growing: What the cluster may grow to, all nodes together.
    """
    workers = sum(_count_multiples(node, worker) for node in cluster)
    fit = min(workers // config.workers, _count_gangs_by_memory(cluster))
    if growing is None:
        return fit
    return max(fit, _count_multiples(growing, {name: amount * config.workers for name, amount in worker.items()}))


def num_gangs(
    config: SearchConfig,
    worker: Mapping[str, float],
    cluster: Sequence[Mapping[str, float]],
    growing: Mapping[str, float] | None = None,
) -> int:
    """How many gangs run at once: as many as the cluster holds, or as the user or the budget says.

    Raises:
        UsageError: The cluster cannot hold one, or not as many as the user wants and it does not grow.
    """
    fit = count_fitting_gangs(config, worker, cluster, growing)
    wanted = config.concurrency or min(fit, config.trials)
    if fit < 1 or (wanted > fit and growing is None):
        have = "; ".join(str({name: node.get(name, 0.0) for name in worker}) for node in cluster[:8])
        of_memory = (
            f" and {GANG_BYTES / 2**30:.2g} GiB of memory" if _count_gangs_by_memory(cluster) < max(1, wanted) else ""
        )
        raise UsageError(
            f"{max(1, wanted)} gangs of {config.workers} workers with {dict(worker)} each{of_memory} must fit into the "
            f"cluster, but its nodes have {have}. Lower --concurrency or --workers."
        )
    return min(wanted, config.trials)


def _count_gangs_by_memory(cluster: Sequence[Mapping[str, float]]) -> int:
    return sum(_count_multiples(node, {"memory": GANG_BYTES}) for node in cluster)


def _count_multiples(have: Mapping[str, float], need: Mapping[str, float]) -> int:
    return min(int(have.get(name, 0.0) / amount + 1e-9) for name, amount in need.items())
