"""The Ray that a search runs on: a cluster of its own on this machine, or the one that it was submitted to."""

import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, TextIO

import ray

from search.config import SearchConfig
from search.errors import UsageError
from search.machine import available_cpus

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
        runtime_env["env_vars"] = {"PYTHONPATH": str(root)}
        ray.init(
            address="local",
            num_cpus=available_cpus(),
            object_store_memory=OBJECT_STORE_BYTES,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.WARNING,
            runtime_env=runtime_env,
        )
    with redirect_stdout(_Filtered(sys.stderr)):
        try:
            yield
        finally:
            ray.shutdown()


class _Filtered:
    """Standard output while Ray runs: Ray prints its own warnings there, between lines meant for other programs.

    Dropped are the one about the number of worker processes, since a gang has six by design, on however few cores, and
    the one about a worker that died, since the gang says in one line what became of its trial.
    """

    DROPPED = ("worker processes have been started", "A worker died or was killed while executing")

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._dropped = False

    def write(self, text: str) -> int:
        ends_dropped = self._dropped and text == "\n"
        self._dropped = any(dropped in text for dropped in self.DROPPED)
        if not self._dropped and not ends_dropped:
            self._stream.write(text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def resources() -> dict[str, float]:
    """What the cluster has, by name of the resource."""
    return dict(ray.cluster_resources())  # type: ignore[no-untyped-call]


def count_gangs(config: SearchConfig, worker: Mapping[str, float], cluster: Mapping[str, float]) -> int:
    """How many gangs run at once: as many as the cluster holds, or fewer if the user or the budget says so.

    Raises:
        UsageError: The cluster cannot hold one.
    """
    fit = min(int(cluster.get(name, 0.0) / (amount * config.workers) + 1e-9) for name, amount in worker.items())
    wanted = config.concurrency or min(fit, config.trials)
    if fit < 1 or wanted > fit:
        raise UsageError(
            f"{max(1, wanted)} gangs of {config.workers} workers with {dict(worker)} each must fit into the cluster, "
            f"but it has { ({name: cluster.get(name, 0.0) for name in worker}) }. Lower --concurrency or --workers."
        )
    return min(wanted, config.trials)
