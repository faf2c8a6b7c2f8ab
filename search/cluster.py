"""The Ray that a search runs on: a cluster of its own on this machine, or the one that it was submitted to."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray

from search.config import SearchConfig
from search.errors import UsageError

OBJECT_STORE_BYTES = 256 * 2**20  # what passes through it is reports; Ray would take a third of the memory


@contextmanager
def connected(modules: Sequence[Path], root: Path) -> Iterator[None]:
    """Ray, started here unless RAY_ADDRESS names a cluster, and left again afterwards.

    Args:
        modules: Files and packages that travel to the workers.
        root: The folder that `search`, `trainables` and `models` are in.
    """
    runtime_env: dict[str, Any] = {"py_modules": [str(path) for path in modules]} if modules else {}
    if "RAY_ADDRESS" in os.environ:
        ray.init(runtime_env=runtime_env, log_to_driver=False)
    else:
        # Train's own clean-up looks for "the" cluster of the host and dies quietly where there are two.
        runtime_env["env_vars"] = {"PYTHONPATH": str(root)}
        ray.init(
            address="local",
            num_cpus=len(os.sched_getaffinity(0)),
            object_store_memory=OBJECT_STORE_BYTES,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="warning",
            runtime_env=runtime_env,
        )
    try:
        yield
    finally:
        ray.shutdown()


def count_gangs(config: SearchConfig, worker: Mapping[str, float], cluster: Mapping[str, float]) -> int:
    """How many gangs run at once: as many as the cluster holds, or fewer if the user or the budget says so.

    Raises:
        UsageError: The cluster cannot hold one.
    """
    fit = min(int(cluster.get(name, 0.0) / (amount * config.workers) + 1e-9) for name, amount in worker.items())
    wanted = config.concurrency or min(fit, config.trials)
    if fit < 1 or wanted > fit:
        raise UsageError(
            f"{wanted} gangs of {config.workers} workers with {dict(worker)} each must fit into the cluster, "
            f"but it has {({name: cluster.get(name, 0.0) for name in worker})}. Lower --concurrency or --workers."
        )
    return min(wanted, config.trials)
